"""The remains of builds that were cancelled or deleted while no process did them: while they were paused, or waited."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.errors import ShoalError
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import Settings
from shoal_workers.index.build.scratch import remove_interrupted

#: Pause between two looks.
EVERY_S = 2.0


class CancelledBuilds:
    """The builds of cancelled and deleted jobs in the folders of all indexes of the settings."""

    def __init__(self, settings: Settings, jobs: LongJobs, clock: Callable[[], float] = time.monotonic):
        self._settings, self._jobs = settings, jobs
        self._clock = clock
        self._due_s = clock()

    def remove(self) -> None:
        """Remove what such builds have left, every `EVERY_S`; what cannot be read or removed now is left."""
        if self._clock() < self._due_s:
            return
        self._due_s = self._clock() + EVERY_S
        for folder in self._folders():
            with suppress(OSError):
                remove_interrupted(folder, self._is_unwanted)

    def _folders(self) -> Iterator[Path]:
        yield from self._settings.index_folders().values()
        with suppress(OSError):
            yield from self._settings.index_home_folder.iterdir()

    def _is_unwanted(self, job_id: str) -> bool:
        """Return True for a job that was cancelled or deleted; one that this pool never knew may be another pool's."""
        with suppress(ShoalError):
            return self._jobs.is_unwanted_build(job_id)
        return False
