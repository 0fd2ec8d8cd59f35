"""The number of a worker's compute threads, which changes when workers on the same processors start or end."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines import Engine
from shoal_workers.process import processors

#: A worker waits for this many seconds before it uses a larger share of the processors. If another worker restarts
#: within this time, its processors are still free.
GROW_AFTER_S = 3.0

#: A worker waits for this many seconds before it uses a smaller share. In a rolling restart, the new worker runs beside
#: the old one for about this time.
SHRINK_AFTER_S = 10.0


class ProcessorShare:
    """The number of a worker's compute threads: `fixed_threads`, or if that is 0, a share of the processors."""

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
        """Return the number of threads, given that `num_workers` workers share the processors at the time `now`."""
        due = self._due(num_workers)
        is_growing = None if due == self.threads else due > self.threads
        if is_growing != self._is_growing:
            self._is_growing, self._due_since = is_growing, now
        if now - self._due_since >= (GROW_AFTER_S if is_growing else SHRINK_AFTER_S):
            self.threads, self._is_growing = due, None
        return self.threads

    def _due(self, num_workers: int) -> int:
        return self._fixed_threads or processors.threads_for(max(self._num_expected, num_workers), self._available())


log = logging.getLogger(__name__)


class Resizing:
    """Changes the number of threads of a worker's models and searches, between two passes."""

    def __init__(self, threads: int, encoders: Sequence[Encoder], resize_searches: Callable[[int], object]):
        self._threads = threads
        self._encoders = encoders
        self._resize_searches = resize_searches
        self._made: deque[Sequence[Engine]] = deque(maxlen=1)
        self._thread: threading.Thread | None = None

    def start(self, threads: int) -> None:
        """Make engines with this number of threads in the background, unless they exist or engines are being made."""
        if threads == self._threads or (self._thread and self._thread.is_alive()):
            return
        self._threads = threads
        thread = threading.Thread(target=self._make, args=(threads,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives this process no more threads
            return _warn(threads, error)
        self._thread = thread

    def close(self) -> None:
        """Wait for the engines that are being made."""
        if self._thread:
            self._thread.join()

    def take(self) -> None:
        """Use the new engines if they are ready, and their number of threads for searches. No pass may be under way."""
        if not self._made:
            return
        engines = self._made.pop()
        for encoder, engine in zip(self._encoders, engines, strict=True):
            encoder.engine = engine
        self._resize_searches(engines[0].threads)

    def _make(self, threads: int) -> None:
        started = time.monotonic()
        try:
            self._made.append([encoder.engine.resized(threads) for encoder in self._encoders])
        except Exception as error:  # engines of several libraries raise errors of any type
            return _warn(threads, error)
        log.info("%d compute threads from the next pass on, made in %.1f s", threads, time.monotonic() - started)


def _warn(threads: int, error: Exception) -> None:
    log.warning("the worker keeps its compute threads, as engines with %d threads failed: %s", threads, error)
