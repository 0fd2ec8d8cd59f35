"""The folder of a long job that came over HTTP, with the file that was uploaded for it, and its result.

A folder is locked while a request fills it. It gets the id of its job just before the job is submitted; by that a later
request finds out whether the folder is still needed. A folder that is not locked and has no id is left over from a
process that died.
"""

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.contract.excerpt import excerpt
from shoal.errors import DiskFull, Internal, InvalidRequest, NotReady, Overloaded, TooLarge
from shoal.job_folders import RESULT
from shoal_api.request import MAX_DISCARDED, MAX_LENGTH_DIGITS, PIECE_BYTES, JsonRequest

if TYPE_CHECKING:
    from shoal_api.long_jobs.upload_store import UploadStore

log = logging.getLogger(__name__)

#: Files of the folder: the id of the job; the same id before the job is submitted and while it is deleted; and an
#: upload that is not complete yet.
JOB, NO_JOB, _PARTIAL = ".job", ".job.new", ".upload"

#: Bytes of an upload from one check of the space that all uploads take to the next.
_CHECK_EVERY_BYTES = 64 * 2**20

#: Longest name of an upload, in bytes of UTF-8.
_MAX_NAME_BYTES = 200


class JobFolder:
    """The folder of one job, locked until it is closed. Its name begins with that of its owner."""

    def __init__(self, store: "UploadStore", name: str):
        self._store = store
        self._path = store.folder / name
        while True:  # another request may remove the folder in this moment
            self._path.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                self._descriptor = lock(self._path)
                break
        #: The id of the job and the digest of its request, if there is a job already.
        self.submitted = submitted_in(self._path)

    @property
    def result(self) -> str:
        """The place of the job's result, relative to the folder for files."""
        return f"{self._store.place}/{self._path.name}/{RESULT}"

    def receive(self, request: JsonRequest, name: str, is_stopping: Callable[[], bool]) -> str:
        """Write the body of the request to a file of that name; return its place relative to the folder for files.

        Raises InvalidRequest for a name that is none, and for a body without a length or that breaks off, TooLarge,
        Overloaded if uploads take too much space, NotReady if the server stops meanwhile, and DiskFull.
        """
        _check_name(name)
        num_bytes = _num_bytes_of(request, self._store.max_upload_bytes)
        self._store.check_space(self._path.name.partition("-")[0], num_bytes)
        self._write(_pieces_of(request, num_bytes), name, is_stopping)
        return f"{self._store.place}/{self._path.name}/{name}"

    def keep(self, job_id: str, digest: str) -> None:
        """Keep the folder until the job with this id, of a request with this digest, is forgotten."""
        partial = self._path / NO_JOB
        with translated(self._path):
            partial.write_text(f"{job_id} {digest}")
            partial.replace(self._path / JOB)
        self.submitted = job_id, digest

    def drop(self) -> None:
        """Let the folder be removed after all: its job was refused."""
        self.submitted = None

    def close(self) -> None:
        """Remove the folder unless it is to be kept."""
        if self.submitted is None:
            shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._descriptor)

    def _write(self, pieces: Iterator[bytes], name: str, is_stopping: Callable[[], bool]) -> None:
        """Write the pieces as they come, so that the file is never in memory as a whole."""
        num_written, partial = 0, self._path / _PARTIAL
        with translated(self._path):
            with open(partial, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                    num_written += len(piece)
                    if is_stopping():
                        raise NotReady("this server was told to stop: upload the file again")
                    if num_written % _CHECK_EVERY_BYTES < len(piece):
                        self._store.check_space()
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path / name)  # a job that was submitted after all reads one that is complete


def submitted_in(folder: Path) -> tuple[str, str] | None:
    """Return the id of the folder's job and the digest of its request; None if no job was submitted."""
    with suppress(FileNotFoundError):
        job_id, _, digest = (folder / JOB).read_text().partition(" ")
        return job_id, digest
    return None


def uploads_in(folder: Path) -> list[Path]:
    """Return the files that were uploaded into the folder, one of them perhaps not whole."""
    return [path for path in folder.iterdir() if path.name not in (JOB, NO_JOB) and not path.is_dir()]


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Raise DiskFull or Internal for an error of the system in the block."""
    try:
        yield
    except OSError as error:
        log.error("%s cannot be written (%s)", folder, error.strerror)
        if error.errno in DiskFull.ERRNOS:
            raise DiskFull("the disk for uploads is full: free some space, or name a source that is there") from None
        raise Internal("the folder for uploads cannot be written: the server's log names it and the reason") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder in the block. Raises FileNotFoundError and Overloaded as `lock` does."""
    descriptor = lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path) -> int:
    """Return a descriptor of the folder that holds its lock until it is closed.

    Raises Overloaded while a request has it, and FileNotFoundError if the folder was removed before it was locked.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.lstat()):
            raise FileNotFoundError(errno.ENOENT, "another folder has its name", str(folder))
    except BlockingIOError:
        os.close(descriptor)
        raise Overloaded(
            "an earlier request with this idempotency key, or one that deletes its job, is under way: wait until it is "
            "answered"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_name(name: str) -> None:
    """Raise InvalidRequest for a name that could lead elsewhere, or is none that a file can have."""
    if (
        not name.isprintable()
        or set(name) & set("/\\")
        or name.startswith(".")
        or not 0 < len(name.encode()) <= _MAX_NAME_BYTES
    ):
        raise InvalidRequest(
            f"name is {excerpt(name)}: it takes the name of a file without folders, such as news.csv, of at most "
            f"{_MAX_NAME_BYTES} bytes, that does not begin with a dot"
        )


def _num_bytes_of(request: JsonRequest, most: int) -> int:
    """Return the length that the request has for its body; raise InvalidRequest without one, and TooLarge."""
    length = request.environ.get("CONTENT_LENGTH", "")[:MAX_LENGTH_DIGITS]
    if "HTTP_TRANSFER_ENCODING" in request.environ or not length.isdecimal() or not int(length):
        raise InvalidRequest(
            "an upload needs the file as its body, with a Content-Length: without one, a connection that breaks looks "
            "like the end of the file"
        )
    if int(length) > most:
        raise TooLarge(
            f"the file has {int(length):,} bytes, and an upload may have {most:,} (SHOAL_MAX_UPLOAD_MB): split it, "
            "compress it, or put it below one of the roots and name it as the source"
        )
    return int(length)


def _pieces_of(request: JsonRequest, num_bytes: int) -> Iterator[bytes]:
    """Yield the body piece by piece, and note in the request how much came; raise InvalidRequest if it breaks off."""
    request.is_read = True
    while request.num_uploaded_bytes < num_bytes:
        piece = request.environ["wsgi.input"].read(min(PIECE_BYTES, num_bytes - request.num_uploaded_bytes))
        request.num_uploaded_bytes += len(piece)
        if not piece:
            raise InvalidRequest(
                f"the body has {request.num_uploaded_bytes:,} bytes, but Content-Length says {num_bytes:,}: send all "
                "of it"
            )
        yield piece


def discard_rest(request: JsonRequest) -> None:
    """Read and drop the rest of an upload that is refused, as far as that is worth while."""
    request.is_read = True
    num_left = (request.declared_bytes or 0) - request.num_uploaded_bytes
    num_left = min(num_left, MAX_DISCARDED * (request.max_content_length or 0))
    while num_left > 0 and (piece := request.environ["wsgi.input"].read(min(num_left, PIECE_BYTES))):
        num_left -= len(piece)
