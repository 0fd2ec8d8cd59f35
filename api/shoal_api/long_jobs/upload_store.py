"""The folders of long jobs that came over HTTP: made for uploads and results, and removed when no job needs them.

The name of a folder contains the id of its job. With this id, a later request finds out whether the folder is still
needed. A folder is locked while a request fills or removes it.
"""

import errno
import fcntl
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import sample

from shoal.contract.excerpt import excerpt
from shoal.errors import DiskFull, Internal, InvalidRequest, NotReady, Overloaded, ShoalError, TooLarge, UnknownJob
from shoal.job_folders import JobFolders, file_size, short_name
from shoal.long_jobs.status import LongJobStatus
from shoal.settings import Settings
from shoal_api.request import MAX_DISCARDED, PIECE_BYTES, JsonRequest

log = logging.getLogger(__name__)

#: The name of an incomplete upload.
_PARTIAL = ".upload"

#: Longest name of an upload, in bytes of UTF-8.
_MAX_NAME_BYTES = 200

#: Number of earlier jobs' folders that are checked when a folder is made. Folders that no job needs are removed.
_CHECKED_AT_A_TIME = 20

#: Seconds for which the upload of a failed or cancelled job is kept, so that the job can be retried.
_RETRY_KEPT_S = 86_400.0

#: Seconds for which the folder of an unknown job is kept. The job may still run: Redis may have lost its data
#: meanwhile, or the API may now use another Redis.
_UNKNOWN_KEPT_S = 7 * 86_400.0

#: Pause before a client should try again once the space for uploads is used up, in seconds.
_WAIT_S = 60


class UploadStore(JobFolders):
    """The folders of a pool's jobs, with uploads and results; `status_of` returns the state of a job. Thread-safe."""

    def __init__(self, settings: Settings, status_of: Callable[[str], LongJobStatus]):
        super().__init__(settings)
        self.max_upload_bytes = settings.max_upload_mb * 2**20
        self.receive_timeout_s = settings.receive_timeout_s
        self._max_bytes = settings.max_uploads_mb * 2**20
        self._status_of = status_of

    @contextmanager
    def new(self, client: str, job_id: str) -> Iterator["JobFolder"]:
        """Make the folder of a job, or find it. After the block, remove it unless the job needs it."""
        with suppress(OSError):
            names = self.names()
            self._clean(sample(names, min(_CHECKED_AT_A_TIME, len(names))))
        path = self.folder / f"{short_name(client)}-{job_id}"
        with translated(self.folder), ExitStack() as lock:
            folder = JobFolder(self, path)
            while True:  # repeats if another request removes the folder before it is locked
                path.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    lock.enter_context(locked(path))
                    break
            try:
                yield folder
            finally:
                if not folder.is_kept:
                    shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def removal(self, client: str, job_id: str) -> Iterator[None]:
        """Remove the folder of a client's job once the block has deleted the job. Raises Overloaded and Internal."""
        folder = self.folder / f"{short_name(client)}-{job_id}"
        with translated(folder), ExitStack() as lock:
            with suppress(FileNotFoundError):
                lock.enter_context(locked(folder))
            yield
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)

    def check_space(self, owner: str = "", num_bytes: int = 0) -> None:
        """Raise Overloaded if the owner's uploads, together with `num_bytes` more, would exceed the free space."""
        for is_cleaned in (False, True):
            num_used, num_owned = self.sizes(owner, _num_upload_bytes)
            if num_owned + num_bytes <= self._max_bytes - num_used:
                return
            if not is_cleaned:
                self._clean(name for name in self.names() if _num_upload_bytes(self.folder / name))
        raise Overloaded(
            f"uploads take {num_used:,} of {self._max_bytes:,} bytes (SHOAL_MAX_UPLOADS_MB), {num_owned:,} of them for "
            "this client: wait until their jobs are done, or delete some",
            _WAIT_S,
        )

    def _clean(self, names: Iterable[str]) -> None:
        """Remove the folders of forgotten jobs, and the uploads that no job needs, except files in use."""
        for name in names:
            folder = self.folder / name
            with suppress(OSError, ShoalError):  # another request may remove or fill the folder now
                try:
                    job = self._status_of(name.partition("-")[2])
                except UnknownJob:
                    with locked(folder):
                        is_old = time.time() - folder.stat().st_mtime > _UNKNOWN_KEPT_S
                        if is_old or (folder / _PARTIAL).exists():  # the process that received the file has died
                            shutil.rmtree(folder, ignore_errors=True)
                    continue
                if job.status == "done" or (job.has_ended and time.time() - (job.ended_at or math.inf) > _RETRY_KEPT_S):
                    for path in uploads_in(folder):
                        path.unlink(missing_ok=True)


class JobFolder:
    """The folder of one job, locked by a request. `is_kept` says whether the folder stays after the request."""

    def __init__(self, store: UploadStore, path: Path):
        self._store, self._path = store, path
        self.is_kept = path.exists()

    @property
    def owner(self) -> str:
        """The owner's name, with which the folder's name begins."""
        return self._path.name.partition("-")[0]

    def place(self, name: str) -> str:
        """Return the path of a file with this name, relative to the folder for files. Raises InvalidRequest."""
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
        return f"{self._store.place}/{self._path.name}/{name}"

    def receive(self, request: JsonRequest, name: str, is_stopping: Callable[[], bool]) -> None:
        """Write the body to a file with this name. Raises InvalidRequest, TooLarge, Overloaded and NotReady."""
        num_bytes = _num_bytes_of(request, self._store.max_upload_bytes)
        self._store.check_space(self.owner, num_bytes)
        partial, body, request.is_read = self._path / _PARTIAL, request.environ["wsgi.input"], True
        with open(partial, "wb") as file:
            file.truncate(num_bytes)  # so that it counts from its beginning, and other uploads leave room for it
            while (num_left := num_bytes - request.num_uploaded_bytes) > 0:  # in pieces, because the file may be large
                piece = body.read(min(PIECE_BYTES, num_left))
                request.num_uploaded_bytes += len(piece)
                if not piece:
                    raise InvalidRequest(
                        f"the body has {request.num_uploaded_bytes:,} bytes, but Content-Length says {num_bytes:,}: "
                        f"send all of it, and each 64 KB in {self._store.receive_timeout_s:g} s"
                    )
                file.write(piece)
                if is_stopping():
                    raise NotReady("this server was told to stop: upload the file again")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path / name)  # atomic, because a job of an earlier attempt may read the file now


def uploads_in(folder: Path) -> list[Path]:
    """Return the files that were uploaded into the folder. One of them may be incomplete."""
    return [path for path in folder.iterdir() if not path.is_dir()]


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Turn an OSError in the block into DiskFull or Internal."""
    try:
        yield
    except OSError as error:
        log.error("%s cannot be written (%s)", folder, error.strerror)
        if error.errno in DiskFull.ERRNOS:
            raise DiskFull("the disk for uploads is full: free some space, or name a file on the server") from None
        raise Internal("the folder for uploads cannot be written: the server's log names it and the reason") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block. Raises Overloaded if another request holds it, and FileNotFoundError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.lstat()):
            raise FileNotFoundError(errno.ENOENT, "the folder was replaced by another one", str(folder))
        yield
    except BlockingIOError:
        raise Overloaded(
            "an earlier request with this idempotency key, or one that deletes its job, is under way: wait until it is "
            "answered"
        ) from None
    finally:
        os.close(descriptor)


def _num_upload_bytes(folder: Path) -> int:
    """Return the total size of the uploads in the folder in bytes, or 0 if the folder no longer exists."""
    with suppress(FileNotFoundError):
        return sum(map(file_size, uploads_in(folder)))
    return 0


def _num_bytes_of(request: JsonRequest, most: int) -> int:
    """Return the request's Content-Length. Raises InvalidRequest if there is none, and TooLarge above `most`."""
    if not (num_bytes := request.declared_bytes):
        raise InvalidRequest(
            "an upload needs the file as its body, with a Content-Length: without one, a connection that breaks looks "
            "like the end of the file"
        )
    if request.mimetype == "multipart/form-data":
        raise InvalidRequest("the body is a form: send the file by itself, as curl --data-binary @FILE does")
    if num_bytes > most:
        raise TooLarge(
            f"the file has {num_bytes:,} bytes, and an upload may have {most:,} (SHOAL_MAX_UPLOAD_MB): split it, "
            "compress it, or put it below one of the roots and name it as the source"
        )
    return num_bytes


def discard_rest(request: JsonRequest) -> None:
    """Read and drop the rest of a refused upload, up to `MAX_DISCARDED` times the limit for other bodies."""
    if request.is_held_back:
        return
    request.is_read = True
    num_left = (request.declared_bytes or 0) - request.num_uploaded_bytes
    num_left = min(num_left, MAX_DISCARDED * (request.max_content_length or 0))
    while num_left > 0 and (piece := request.environ["wsgi.input"].read(min(num_left, PIECE_BYTES))):
        num_left -= len(piece)
