"""The files of long jobs that came over HTTP: each has a folder with the file that was uploaded for it and its result.

A folder is locked while a request fills it. It gets the id of its job just before the job is submitted; by that a later
request finds out whether the folder is still needed. A folder that is not locked and has no id is left over from a
process that died.
"""

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shoal.errors import DiskFull, Internal, JobNotEnded, NotReady, Overloaded, ShoalError, UnknownFile, UnknownJob
from shoal.excerpt import excerpt
from shoal.job_folders import RESULT, JobFolders, file_size, owner_name
from shoal.settings import Settings
from shoal_api.request import JsonRequest
from shoal_api.upload import check_name, num_bytes_of, pieces_of

if TYPE_CHECKING:
    from shoal.long_jobs.status import LongJobStatus

log = logging.getLogger(__name__)

#: The file that holds the id of the job, the same before the job is submitted or while it is deleted, and an upload
#: that is not complete yet.
_JOB, _NO_JOB, _PARTIAL = ".job", ".job.new", ".upload"

#: Bytes of an upload after which the space that all take is looked at again.
_CHECK_EVERY_BYTES = 64 * 2**20

#: Most folders of earlier jobs that are looked at when one is made: folders that no job needs are removed.
_CHECKED_AT_A_TIME = 20

#: Age from which a folder is looked at: a younger one may be about to be locked.
_MIN_AGE_S = 60.0

#: Time for which the upload of a job that failed or was cancelled is kept, so that the job can be retried.
_RETRY_KEPT_S = 86_400.0

#: Time for which the folder of an unknown job is kept. The job may not be forgotten: Redis may have lost its data while
#: a runner does it, or be another one.
_UNKNOWN_KEPT_S = 7 * 86_400.0

#: Time for which an idempotency key counts.
_DAY_S = 86_400.0

#: Seconds to wait before another attempt where the space for uploads is taken.
_WAIT_S = 60

_RESULT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class JobFiles:
    """The folders of all jobs of a pool that came over HTTP. Thread-safe.

    `status_of` returns a long job, and raises UnknownJob for one that is forgotten.
    """

    def __init__(self, settings: Settings, status_of: Callable[[str], "LongJobStatus"]):
        self._folders = JobFolders(settings)
        self.place, self.folder = self._folders.place, self._folders.folder
        self.max_upload_bytes = settings.max_upload_mb * 2**20
        self._max_bytes = settings.max_uploads_mb * 2**20
        self._status_of = status_of
        self._unchecked: list[str] = []

    @contextmanager
    def new(self, client: str, idempotency_key: str | None = None) -> Iterator["JobFolder"]:
        """Make a folder for a job of the client, which is removed at the end unless `JobFolder.keep` was called.

        With the idempotency key of a request of the client within a day it is the folder of that one. Some of the older
        folders are removed before that if they are not needed any more. Raises Overloaded while that request runs.
        """
        self._remove_old()
        name = self._name(owner_name(client), idempotency_key)
        with _translated(self.folder), closing(JobFolder(self, name)) as folder:
            yield folder

    @contextmanager
    def removal(self, client: str, job_id: str) -> Iterator[None]:
        """Remove the folder of a job of the client after the block, which deletes the job.

        No request fills the folder meanwhile. Raises Overloaded while one does, and Internal if files are left.
        """
        folder = self._folder_of(client, job_id)
        if folder is None:
            yield
            return
        with _translated(folder), _locked(folder):
            # A folder without the id of a job is removed later, if this process cannot do it or ends before.
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

    def _folder_of(self, client: str, job_id: str) -> Path | None:
        for folder in (self.folder / name for name in self._folders.names() if name.startswith(owner_name(client))):
            submitted = _submitted(folder)
            if submitted and submitted[0] == job_id:
                return folder
        return None

    def check_results(self, client: str) -> None:
        """Raise DiskFull if the results of all jobs take too much space, or those of the client do."""
        self._folders.check_results(owner_name(client))

    def check_space(self, owner: str = "", num_bytes: int = 0) -> None:
        """Raise Overloaded if all uploads take too much space with so many bytes more, or those of the owner do.

        The uploads of an owner may take as much as is free beside them. Uploads that no job needs any more are
        removed first.
        """
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
        """Return the bytes of the upload in each folder, those that are free, and those that the owner has."""
        sizes = {name: _num_upload_bytes(self.folder / name) for name in self._folders.names()}
        num_owned = sum(size for name, size in sizes.items() if owner and name.startswith(owner))
        return sizes, self._max_bytes - sum(sizes.values()), num_owned

    def _name(self, owner: str, idempotency_key: str | None) -> str:
        """Return the name of the folder for a request: one that it may have begun yesterday, else that of today."""
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

    def _remove_old(self) -> None:
        with suppress(OSError):
            self._unchecked = self._unchecked or self._folders.names()
            for _ in range(min(_CHECKED_AT_A_TIME, len(self._unchecked))):
                self._clean(self.folder / self._unchecked.pop())

    def _clean(self, folder: Path) -> None:
        """Remove the folder if its job is forgotten or was never submitted, and its upload if no job needs it."""
        age_s = _age_s(folder)
        if age_s < _MIN_AGE_S:
            return
        submitted = _submitted(folder)
        if submitted is None:
            _remove(folder, submitted)
            return
        try:
            job = self._status_of(submitted[0])
        except UnknownJob:
            if age_s > _UNKNOWN_KEPT_S:
                _remove(folder, submitted)
        except ShoalError:
            return
        else:
            ended_s = time.time() - job.ended_at if job.has_ended and job.ended_at else 0.0
            if job.status == "done" or ended_s > _RETRY_KEPT_S:
                _remove_uploads(folder)


class JobFolder:
    """The folder of one job, locked until it is closed. Its name begins with that of its owner."""

    def __init__(self, files: JobFiles, name: str):
        self._files = files
        self._path = files.folder / name
        self._descriptor = _made_and_locked(self._path)
        #: The id of the job and the digest of its request, if there is a job already.
        self.submitted = _submitted(self._path)

    @property
    def result(self) -> str:
        """The place of the job's result, relative to the folder for files."""
        return f"{self._files.place}/{self._path.name}/{RESULT}"

    def receive(self, request: JsonRequest, name: str, is_stopping: Callable[[], bool]) -> str:
        """Write the body of the request to a file of that name; return its place relative to the folder for files.

        Raises InvalidRequest for a name that is none, and for a body without a length or that breaks off, TooLarge,
        Overloaded if uploads take too much space, NotReady if the server stops meanwhile, and DiskFull.
        """
        check_name(name)
        num_bytes = num_bytes_of(request, self._files.max_upload_bytes)
        self._files.check_space(self._path.name.partition("-")[0], num_bytes)
        self._write(pieces_of(request, num_bytes), name, is_stopping)
        return f"{self._files.place}/{self._path.name}/{name}"

    def keep(self, job_id: str, digest: str) -> None:
        """Keep the folder until the job with this id, of a request with this digest, is forgotten."""
        partial = self._path / _NO_JOB
        with _translated(self._path):
            partial.write_text(f"{job_id} {digest}")
            partial.replace(self._path / _JOB)
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
        with _translated(self._path):
            with open(partial, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                    num_written += len(piece)
                    if is_stopping():
                        raise NotReady("this server was told to stop: upload the file again")
                    if num_written % _CHECK_EVERY_BYTES < len(piece):
                        self._files.check_space()
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path / name)  # a job that was submitted after all reads one that is complete


def open_result(folder: Path, name: str) -> BinaryIO:
    """Return a file of a result, opened; raise UnknownFile for a name that is that of no file in the folder."""
    with suppress(OSError):
        if _RESULT_NAME.fullmatch(name) and stat.S_ISREG((folder / name).lstat().st_mode):
            # The file may be another one by now: a link could lead out of the folder, and a pipe would be waited for.
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            return os.fdopen(descriptor, "rb")
    raise UnknownFile(f"the result has no file {excerpt(name)}: its manifest.json names the files")


def _submitted(folder: Path) -> tuple[str, str] | None:
    """Return the id of the folder's job and the digest of its request; None if no job was submitted."""
    with suppress(FileNotFoundError):
        job_id, _, digest = (folder / _JOB).read_text().partition(" ")
        return job_id, digest
    return None


def _remove_uploads(folder: Path) -> None:
    """Remove the upload of a job; the age of the folder stays."""
    before = folder.stat()
    for path in _uploads(folder):
        path.unlink(missing_ok=True)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def _uploads(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in (_JOB, _NO_JOB) and not path.is_dir()]


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _num_upload_bytes(folder: Path) -> int:
    """Return the bytes of the upload in the folder, without files that are gone by now."""
    with suppress(FileNotFoundError):
        return sum(map(file_size, _uploads(folder)))
    return 0


def _remove(folder: Path, submitted: tuple[str, str] | None) -> None:
    """Remove a folder, unless a request fills it or has done so since its job was read."""
    with suppress(OSError, Overloaded), _locked(folder):
        if _submitted(folder) == submitted:
            shutil.rmtree(folder, ignore_errors=True)


def _made_and_locked(folder: Path) -> int:
    """Return a descriptor of the folder as `_lock` does; make the folder, again if it is removed in this moment."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return _lock(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder in the block. Raises FileNotFoundError and Overloaded as `_lock` does."""
    descriptor = _lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
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


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Raise DiskFull or Internal for an error of the system in the block."""
    try:
        yield
    except OSError as error:
        log.error("%s cannot be written (%s)", folder, error.strerror)
        if error.errno in DiskFull.ERRNOS:
            raise DiskFull("the disk for uploads is full: free some space, or name a source that is there") from None
        raise Internal("the folder for uploads cannot be written: the server's log names it and the reason") from None
