"""The share of the processors that a worker is due, which follows the workers that come and go."""

from collections.abc import Callable

from shoal_workers.process import processors

#: A worker gets a larger share only after it was due for this time, in seconds: so a worker that restarts within it
#: finds its processors free.
GROW_AFTER_S = 3.0

#: The same for a smaller share: in a rolling restart, the new worker runs beside the old one for about so long.
SHRINK_AFTER_S = 10.0


class ProcessorShare:
    """The compute threads of a worker: `available` processors divided among the workers that share them.

    At least `num_expected` of them share, as a supervisor starts again those that end. `fixed_threads` other than 0 are
    given whatever is due. Times are on any one clock.
    """

    def __init__(
        self,
        num_workers: int,
        num_expected: int = 1,
        fixed_threads: int = 0,
        available: Callable[[], float] = processors.available,
    ):
        self._num_expected = num_expected
        self._fixed_threads = fixed_threads
        self._available = available
        self._due_since = 0.0
        self._is_growing: bool | None = None
        self.threads = self._due(num_workers)

    def update(self, num_workers: int, now: float) -> int:
        """Return the threads of the worker, now that `num_workers` workers share the processors."""
        due = self._due(num_workers)
        is_growing = None if due == self.threads else due > self.threads
        if is_growing != self._is_growing:
            self._is_growing, self._due_since = is_growing, now
        if now - self._due_since >= (GROW_AFTER_S if is_growing else SHRINK_AFTER_S):
            self.threads, self._is_growing = due, None
        return self.threads

    def _due(self, num_workers: int) -> int:
        return self._fixed_threads or processors.threads_for(max(self._num_expected, num_workers), self._available())
