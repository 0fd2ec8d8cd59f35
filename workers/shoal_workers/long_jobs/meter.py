"""The rate of a long job, and the time that is left."""

from shoal.long_jobs.status import Progress
from shoal.long_task import TaskProgress


class Meter:
    """The rate since the step was begun or resumed; what was done before that took no time now."""

    def __init__(self, now_s: float):
        self._began_s = now_s
        self._first: TaskProgress | None = None
        self._last_fraction = 0.0

    def measure(self, progress: TaskProgress, now_s: float) -> Progress:
        """Return the progress with its rate and the seconds left, as far as they can be told."""
        fraction = progress.fraction if progress.fraction is not None else self._last_fraction
        # Another step is at its beginning; within one, a fraction is estimated, and may fall a little.
        if self._first is None or fraction < self._last_fraction / 2:
            self._first, self._began_s = progress, now_s
        self._last_fraction = fraction
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
