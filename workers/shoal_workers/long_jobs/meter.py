"""The rate of a long job, and the time that is left."""

from shoal.long_jobs.status import Progress
from shoal.long_task import TaskProgress


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
