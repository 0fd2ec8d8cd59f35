"""The compute threads of a worker follow the workers that come and go; a change holds up no pass."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines import Engine
from shoal_workers.process import processors

#: A worker gets a larger share only after it was due for this time, in seconds: so a worker that restarts within it
#: finds its processors free.
GROW_AFTER_S = 3.0

#: The same for a smaller share: in a rolling restart, the new worker runs beside the old one for about so long.
SHRINK_AFTER_S = 10.0


class ProcessorShare:
    """A worker's compute threads: `fixed_threads`, or its share of the `available` processors."""

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


log = logging.getLogger(__name__)


class Resizing:
    """The models and searches of a worker, which get another number of threads between two passes."""

    def __init__(self, threads: int, encoders: Sequence[Encoder], resize_searches: Callable[[int], object]):
        self._threads = threads
        self._encoders = encoders
        self._resize_searches = resize_searches
        self._made: deque[Sequence[Engine]] = deque(maxlen=1)
        self._thread: threading.Thread | None = None

    def start(self, threads: int) -> None:
        """Make engines with this number of threads, unless they are made already or others are under way."""
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
        """Wait until no engine is being made."""
        if self._thread:
            self._thread.join()

    def take(self) -> None:
        """Give the models and searches the threads that are ready. No pass may be under way."""
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
        except Exception as error:  # any that an engine may raise
            return _warn(threads, error)
        log.info("%d compute threads from the next pass on, made in %.1f s", threads, time.monotonic() - started)


def _warn(threads: int, error: Exception) -> None:
    log.warning("the worker keeps its compute threads, as those for %d failed: %s", threads, error)
