"""The folders of long jobs that came over HTTP: made for uploads and results, and removed when no job needs them."""

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import Internal, JobNotEnded, Overloaded, ShoalError, UnknownJob
from shoal.job_folders import JobFolders, file_size, owner_name
from shoal.settings import Settings
from shoal_api.long_jobs.job_folder import JOB, NO_JOB, JobFolder, locked, submitted_in, translated, uploads_in

if TYPE_CHECKING:
    from shoal.long_jobs.status import LongJobStatus

log = logging.getLogger(__name__)

#: Most folders of earlier jobs that are looked at when one is made: folders that no job needs are removed.
_CHECKED_AT_A_TIME = 20

#: Age from which a folder is looked at: a younger one may be about to be locked.
_MIN_AGE_S = 60.0

#: Time for which the upload of a job that failed or was cancelled is kept, so that the job can be retried.
_RETRY_KEPT_S = 86_400.0

#: Time for which the folder of an unknown job is kept. The job may still run: Redis may have lost its data meanwhile,
#: or the API may now use another Redis.
_UNKNOWN_KEPT_S = 7 * 86_400.0

#: Time for which an idempotency key counts.
_DAY_S = 86_400.0

#: Seconds to wait before another attempt where the space for uploads is taken.
_WAIT_S = 60


class UploadStore:
    """The store of the uploads and results of a pool, with a folder for each job. Thread-safe.

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
    def new(self, client: str, idempotency_key: str | None = None) -> Iterator[JobFolder]:
        """Make a folder for a job of the client, which is removed at the end unless `JobFolder.keep` was called.

        With the idempotency key of a request of the client within a day it is the folder of that one. Some of the older
        folders are removed before that if they are not needed any more. Raises Overloaded while that request runs.
        """
        self._remove_old()
        name = self._name(owner_name(client), idempotency_key)
        with translated(self.folder), closing(JobFolder(self, name)) as folder:
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
        with translated(folder), locked(folder):
            # A folder without the id of a job is removed later, if this process cannot do it or ends before.
            (folder / JOB).replace(folder / NO_JOB)
            try:
                yield
            except JobNotEnded:
                (folder / NO_JOB).replace(folder / JOB)
                raise
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                log.error("%s is left of a deleted job, as some of it cannot be removed: check who owns it", folder)
                raise Internal("the job is deleted, but not all of its files: the server's log names their folder")

    def _folder_of(self, client: str, job_id: str) -> Path | None:
        for folder in (self.folder / name for name in self._folders.names() if name.startswith(owner_name(client))):
            submitted = submitted_in(folder)
            if submitted and submitted[0] == job_id:
                return folder
        return None

    def check_results(self, client: str) -> None:
        """Raise DiskFull if the results of all jobs take too much space, or those of the client do."""
        self._folders.check_results(owner_name(client))

    def check_space(self, owner: str = "", num_bytes: int = 0) -> None:
        """Raise Overloaded if there is no space for `num_bytes` more, for uploads of the owner or for uploads at all.

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
            submitted = folder / JOB
            if _age_s(submitted if submitted.exists() else folder) < _DAY_S:
                return before
        return name

    def _remove_old(self) -> None:
        with suppress(OSError):
            unchecked = self._unchecked or self._folders.names()
            names, self._unchecked = unchecked[:_CHECKED_AT_A_TIME], unchecked[_CHECKED_AT_A_TIME:]
            for name in names:  # of requests at the same time, several may check one
                self._clean(self.folder / name)

    def _clean(self, folder: Path) -> None:
        """Remove the folder if its job is forgotten or was never submitted, and its upload if no job needs it."""
        age_s = _age_s(folder)
        if age_s < _MIN_AGE_S:
            return
        submitted = submitted_in(folder)
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


def _remove_uploads(folder: Path) -> None:
    """Remove the upload of a job; the age of the folder stays."""
    before = folder.stat()
    for path in uploads_in(folder):
        path.unlink(missing_ok=True)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _num_upload_bytes(folder: Path) -> int:
    """Return the bytes of the upload in the folder, without files that are gone by now."""
    with suppress(FileNotFoundError):
        return sum(map(file_size, uploads_in(folder)))
    return 0


def _remove(folder: Path, submitted: tuple[str, str] | None) -> None:
    """Remove a folder, unless a request fills it or has done so since its job was read."""
    with suppress(OSError, Overloaded), locked(folder):
        if submitted_in(folder) == submitted:
            shutil.rmtree(folder, ignore_errors=True)
