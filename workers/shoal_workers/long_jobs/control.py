"""The ties of a running job to its submitter and its runner: it says how far it is, and is told to stop."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Literal

from shoal.errors import Cancelled, Paused, ShoalError
from shoal.long_jobs.rq_job import CANCEL, PAUSE, LongJob
from shoal.long_jobs.status import Progress
from shoal.long_task import TaskProgress
from shoal_workers.long_jobs.meter import Meter

#: Pause between two notes of the progress; a pause or a cancellation is noticed with them.
EVERY_S = 0.5

#: The reason why a job was stopped before it was done: its submitter, the end of the runner, or another runner has it.
Reason = Literal["", "pause", "cancel", "stop", "lost"]


class JobControl:
    """The control of one run of a job, in the process that does it."""

    def __init__(
        self,
        job: LongJob,
        worker: str,
        translated: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._job, self._worker = job, worker
        self._translated = translated
        self._clock = clock
        self._meter = Meter(clock())
        self._due_s = clock()
        self._latest: Progress | None = None
        self._most_rows = Progress.from_map(job.meta.get("progress")).rows
        self.is_told_to_stop = False
        self.reason: Reason = ""

    def report(self, progress: TaskProgress) -> None:
        """Note the progress, every `EVERY_S`; raise Paused or Cancelled if the job is to stop.

        While Redis is away, nothing is noted and the job goes on.
        """
        self._latest = self._meter.measure(progress, self._clock())
        if self.is_told_to_stop:
            self.save()
            self.reason = "stop"
            raise Paused("the runner is stopped: the job goes on when a runner is started")
        if self._clock() < self._due_s:
            return
        self._due_s = self._clock() + EVERY_S
        self.reason = self.save()
        if self.reason == "cancel":
            raise Cancelled("the job was cancelled")
        if self.reason:
            raise Paused("the job was paused" if self.reason == "pause" else "another runner has the job")

    def save(self) -> Reason:
        """Save what was reported last; return the reason to stop, if there is one."""
        if self._latest is not None:
            self._job.meta["progress"] = self._latest.to_map()
            if self._latest.rows > self._most_rows:  # it gets on, so what stopped it before was no fault of its own
                self._most_rows = self._latest.rows
                self._job.renew_retries()
        wanted: str | None = ""
        with suppress(ShoalError), self._translated():
            wanted = self._job.exchange(self._worker)
        if wanted is None:
            return "lost"
        return "pause" if wanted == PAUSE else "cancel" if wanted == CANCEL else ""
