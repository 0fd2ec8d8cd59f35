"""The folders of long jobs that came over HTTP: made for uploads and results, and removed when no job needs them.

A folder is locked while a request fills it. It gets the id of its job just before the job is submitted. By the id, a
later request finds out whether the folder is still needed. An unlocked folder without an id is left over from a process
that died.
"""

import errno
import fcntl
import logging
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.contract.excerpt import excerpt
from shoal.errors import (
    DiskFull,
    Internal,
    InvalidRequest,
    JobNotEnded,
    NotReady,
    Overloaded,
    ShoalError,
    TooLarge,
    UnknownJob,
)
from shoal.job_folders import RESULT, JobFolders, file_size, owner_name
from shoal.settings import Settings
from shoal_api.request import MAX_DISCARDED, MAX_LENGTH_DIGITS, PIECE_BYTES, JsonRequest

if TYPE_CHECKING:
    from shoal.long_jobs.status import LongJobStatus

log = logging.getLogger(__name__)

#: Names of files in a folder: the file with the id of the job; this file while it is being written, or while the job is
#: being deleted; and an incomplete upload.
_JOB, _NO_JOB, _PARTIAL = ".job", ".job.new", ".upload"

#: Bytes of an upload between two checks of the space that all uploads take.
_CHECK_EVERY_BYTES = 64 * 2**20

#: Longest name of an upload, in bytes of UTF-8.
_MAX_NAME_BYTES = 200

#: How many folders of earlier jobs are checked when a folder is made. Folders that no job needs are removed.
_CHECKED_AT_A_TIME = 20

#: Age from which a folder is checked, in seconds. A younger folder may be about to be locked.
_MIN_AGE_S = 60.0

#: Time for which the upload of a job that failed or was cancelled is kept, so that the job can be retried.
_RETRY_KEPT_S = 86_400.0

#: Time for which the folder of an unknown job is kept. The job may still run: Redis may have lost its data meanwhile,
#: or the API may now use another Redis.
_UNKNOWN_KEPT_S = 7 * 86_400.0

#: Time for which an idempotency key is valid.
_DAY_S = 86_400.0

#: Seconds after which a client may try again if the space for uploads is used up.
_WAIT_S = 60


class UploadStore(JobFolders):
    """The folders of a pool's jobs, with uploads and results; `status_of` returns the state of a job. Thread-safe."""

    def __init__(self, settings: Settings, status_of: Callable[[str], "LongJobStatus"]):
        super().__init__(settings)
        self.max_upload_bytes = settings.max_upload_mb * 2**20
        self._max_bytes = settings.max_uploads_mb * 2**20
        self._status_of = status_of
        self._unchecked: list[str] = []

    @contextmanager
    def new(self, client: str, idempotency_key: str | None = None) -> Iterator["JobFolder"]:
        """Make the folder of a job, or find it by the idempotency key. After the block, remove it if it has no job."""
        with suppress(OSError):
            unchecked = self._unchecked or self.names()
            names, self._unchecked = unchecked[:_CHECKED_AT_A_TIME], unchecked[_CHECKED_AT_A_TIME:]
            for old in names:  # several requests may check the same folder at a time
                self._clean(self.folder / old)
        name = self._name(owner_name(client), idempotency_key)
        with translated(self.folder), closing(JobFolder(self, name)) as folder:
            yield folder

    @contextmanager
    def removal(self, client: str, job_id: str) -> Iterator[None]:
        """Remove the folder of a client's job once the block has deleted the job. Raises Overloaded and Internal."""
        own = [self.folder / name for name in self.names() if name.startswith(owner_name(client))]
        folder = next((path for path in own if (job := submitted_in(path)) and job[0] == job_id), None)
        if folder is None:
            yield
            return
        with translated(folder), locked(folder):
            # Without the id, a later request removes the folder if this process cannot remove it, or ends too early.
            (folder / _JOB).replace(folder / _NO_JOB)
            try:
                yield
            except JobNotEnded:
                (folder / _NO_JOB).replace(folder / _JOB)
                raise
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                log.error("%s is left of a deleted job, as some of it cannot be removed: check who owns it", folder)
                raise Internal("the job is deleted, but not all of its files: the server's log names their folder")

    def check_space(self, owner: str = "", num_bytes: int = 0) -> None:
        """Raise Overloaded if the owner's uploads, together with `num_bytes` more, would exceed the free space."""
        sizes, num_free, num_owned = self._upload_sizes(owner)
        if num_owned + num_bytes > num_free:
            for name in (name for name, size in sizes.items() if size):
                with suppress(OSError):
                    self._clean(self.folder / name)
            _, num_free, num_owned = self._upload_sizes(owner)
        if num_owned + num_bytes > num_free:
            raise Overloaded(
                f"uploads take {self._max_bytes - num_free:,} of {self._max_bytes:,} bytes (SHOAL_MAX_UPLOADS_MB), "
                f"{num_owned:,} of them for this client: wait until their jobs are done, or delete some",
                _WAIT_S,
            )

    def _upload_sizes(self, owner: str) -> tuple[dict[str, int], int, int]:
        """Return the bytes of each folder's uploads, the bytes that are free, and the bytes of the owner's uploads."""
        sizes = {name: _num_upload_bytes(self.folder / name) for name in self.names()}
        num_owned = sum(size for name, size in sizes.items() if owner and name.startswith(owner))
        return sizes, self._max_bytes - sum(sizes.values()), num_owned

    def _name(self, owner: str, idempotency_key: str | None) -> str:
        """Return a folder's name. It depends on the idempotency key and the day; yesterday's is used for 24 h."""
        if idempotency_key is None:
            return f"{owner}-{secrets.token_hex(12)}"
        today = int(time.time() / _DAY_S)
        once = [blake2b(f"{owner}\0{day}\0{idempotency_key}".encode(), digest_size=12) for day in (today - 1, today)]
        before, name = (f"{owner}-{digest.hexdigest()}" for digest in once)
        folder = self.folder / before
        with suppress(FileNotFoundError):
            submitted = folder / _JOB
            if _age_s(submitted if submitted.exists() else folder) < _DAY_S:
                return before
        return name

    def _clean(self, folder: Path) -> None:
        """Remove the folder if its job is forgotten or was never submitted, and its upload if no job needs it."""
        age_s = _age_s(folder)
        if age_s < _MIN_AGE_S:
            return
        submitted = submitted_in(folder)
        job: LongJobStatus | None = None
        if submitted is not None:
            try:
                job = self._status_of(submitted[0])
            except UnknownJob:
                if age_s <= _UNKNOWN_KEPT_S:
                    return
            except ShoalError:
                return
        if job is None:
            with suppress(OSError, Overloaded), locked(folder):  # Overloaded: a request fills it
                if submitted_in(folder) == submitted:
                    shutil.rmtree(folder, ignore_errors=True)
        elif job.status == "done" or (job.has_ended and time.time() - (job.ended_at or math.inf) > _RETRY_KEPT_S):
            for path in uploads_in(folder):
                path.unlink(missing_ok=True)


class JobFolder:
    """The folder of one job, locked until it is closed. The folder's name begins with the owner's name."""

    def __init__(self, store: UploadStore, name: str):
        self._store = store
        self._path = store.folder / name
        while True:  # another request may remove the folder at this moment
            self._path.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                self._descriptor = lock(self._path)
                break
        #: The id of the job and the digest of its request, or None without a job: then `close` removes the folder.
        self.submitted = submitted_in(self._path)

    @property
    def result(self) -> str:
        """The place of the job's result, relative to the folder for files."""
        return f"{self._store.place}/{self._path.name}/{RESULT}"

    def receive(self, request: JsonRequest, name: str, is_stopping: Callable[[], bool]) -> str:
        """Write the body to a file with this name, and return the file's place, relative to the folder for files."""
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
        num_bytes = _num_bytes_of(request, self._store.max_upload_bytes)
        self._store.check_space(self._path.name.partition("-")[0], num_bytes)
        partial, body, request.is_read = self._path / _PARTIAL, request.environ["wsgi.input"], True
        with translated(self._path):
            with open(partial, "wb") as file:
                while (num_left := num_bytes - request.num_uploaded_bytes) > 0:  # never the whole file in memory
                    piece = body.read(min(PIECE_BYTES, num_left))
                    request.num_uploaded_bytes += len(piece)
                    if not piece:
                        raise InvalidRequest(
                            f"the body has {request.num_uploaded_bytes:,} bytes, but Content-Length says "
                            f"{num_bytes:,}: send all of it"
                        )
                    file.write(piece)
                    if is_stopping():
                        raise NotReady("this server was told to stop: upload the file again")
                    if request.num_uploaded_bytes % _CHECK_EVERY_BYTES < len(piece):
                        self._store.check_space()
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path / name)  # an earlier attempt may have submitted the job: it reads a whole file
        return f"{self._store.place}/{self._path.name}/{name}"

    def keep(self, job_id: str, digest: str) -> None:
        """Record the job's id and its request's digest in the folder, which is then kept until the job is forgotten."""
        partial = self._path / _NO_JOB
        with translated(self._path):
            partial.write_text(f"{job_id} {digest}")
            partial.replace(self._path / _JOB)
        self.submitted = job_id, digest

    def close(self) -> None:
        """Unlock the folder, and remove it unless it has a job."""
        if self.submitted is None:
            shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._descriptor)


def submitted_in(folder: Path) -> tuple[str, str] | None:
    """Return the id of the folder's job and the digest of its request; None if no job was submitted."""
    with suppress(FileNotFoundError):
        job_id, _, digest = (folder / _JOB).read_text(errors="replace").partition(" ")  # a disk may damage it
        return job_id, digest
    return None


def uploads_in(folder: Path) -> list[Path]:
    """Return the files that were uploaded into the folder. One of them may be incomplete."""
    return [path for path in folder.iterdir() if path.name not in (_JOB, _NO_JOB) and not path.is_dir()]


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Raise DiskFull or Internal in place of an OSError in the block."""
    try:
        yield
    except OSError as error:
        log.error("%s cannot be written (%s)", folder, error.strerror)
        if error.errno in DiskFull.ERRNOS:
            raise DiskFull("the disk for uploads is full: free some space, or name a source that is there") from None
        raise Internal("the folder for uploads cannot be written: the server's log names it and the reason") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block. Raises FileNotFoundError and Overloaded, as `lock` does."""
    descriptor = lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path) -> int:
    """Return a descriptor that holds the folder's lock until it is closed. Raises Overloaded and FileNotFoundError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.lstat()):
            raise FileNotFoundError(errno.ENOENT, "another folder has its name", str(folder))
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        raise Overloaded(
            "an earlier request with this idempotency key, or one that deletes its job, is under way: wait until it is "
            "answered"
        ) from None
    return descriptor


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _num_upload_bytes(folder: Path) -> int:
    """Return the bytes of the uploads in the folder, or 0 if the folder is gone by now."""
    with suppress(FileNotFoundError):
        return sum(map(file_size, uploads_in(folder)))
    return 0


def _num_bytes_of(request: JsonRequest, most: int) -> int:
    """Return the request's Content-Length. Raises InvalidRequest if there is none, and TooLarge above `most`."""
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


def discard_rest(request: JsonRequest) -> None:
    """Read and drop the rest of a refused upload, up to `MAX_DISCARDED` times the limit for other bodies."""
    if request.is_held_back:
        return
    request.is_read = True
    num_left = (request.declared_bytes or 0) - request.num_uploaded_bytes
    num_left = min(num_left, MAX_DISCARDED * (request.max_content_length or 0))
    while num_left > 0 and (piece := request.environ["wsgi.input"].read(min(num_left, PIECE_BYTES))):
        num_left -= len(piece)
