"""The progress of a running job, with its rate, as the process that does it writes it into Redis."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from rq.job import JobStatus

from shoal.errors import ShoalError
from shoal.long_jobs.rq_job import LongJob
from shoal.long_jobs.status import Progress
from shoal.long_task import TaskProgress

if TYPE_CHECKING:
    from redis.client import Pipeline

#: Pause between two notes of the progress.
EVERY_S = 0.5


class ProgressLog:
    """The progress of one run of a job, which the id of its execution names."""

    def __init__(
        self,
        job: LongJob,
        run: str,
        translated: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._job, self._run = job, run
        self._translated = translated
        self._clock = clock
        self._meter = Meter(clock())
        self._due_s = clock()
        self._latest: Progress | None = None
        self._most_rows = Progress.from_map(job.meta.get("progress")).rows

    def report(self, progress: TaskProgress) -> None:
        """Note the progress, every `EVERY_S`."""
        self._latest = self._meter.measure(progress, self._clock())
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + EVERY_S
            self.save()

    def save(self) -> None:
        """Write what was reported last, unless another run has the job or Redis is away."""
        if (latest := self._latest) is None:
            return

        def write(pipeline: "Pipeline") -> None:
            if latest.rows > self._most_rows:  # it gets on, so what stopped it before was no fault of its own
                self._job.renew_retries()
            self._job.meta = {"progress": latest.to_map()}
            values: Any = {
                "meta": self._job.serializer.dumps(self._job.meta),
                "retries_left": self._job.retries_left or 0,
            }
            pipeline.hset(self._job.key, mapping=values)

        with suppress(ShoalError), self._translated():
            if self._job.change(write, JobStatus.STARTED, self._run):
                self._most_rows = max(self._most_rows, latest.rows)


class Meter:
    """The rate since the step was begun or resumed; what was done before that took no time now.

    A wait is part of the step that waits.
    """

    def __init__(self, now_s: float):
        self._began_s = now_s
        self._first: TaskProgress | None = None

    def measure(self, progress: TaskProgress, now_s: float) -> Progress:
        """Return the progress with its rate and the seconds left, as far as they can be told."""
        is_wait = progress.step.startswith("waiting")
        if self._first is None or (progress.step != self._first.step and not is_wait):
            self._first, self._began_s = progress, now_s
        passed_s, rows = now_s - self._began_s, progress.rows - self._first.rows
        return Progress(
            rows=progress.rows,
            num_bad=progress.num_bad,
            first_bad=progress.first_bad,
            fraction=progress.fraction,
            step=progress.step,
            rows_per_s=rows / passed_s if passed_s > 0 and rows > 0 else None,
            eta_s=self._left_s(progress.fraction, passed_s),
        )

    def _left_s(self, fraction: float | None, passed_s: float) -> float | None:
        """Return the seconds left if the rest of the source takes as long as the same part of it took."""
        first = self._first.fraction if self._first else None
        if fraction is None or first is None or fraction <= first:
            return None
        return passed_s * (1 - fraction) / (fraction - first)
