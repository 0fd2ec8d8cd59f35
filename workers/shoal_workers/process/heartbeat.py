"""The heartbeat, which announces a worker every second and counts the workers that share its processors."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.process import logs
from shoal.queue.pool import ALIVE_S, Pool

log = logging.getLogger(__name__)


class Heartbeat:
    """A thread that announces a worker to the pool until it is closed.

    `group` is the id of the workers that share processors; after each beat, `note_sharing` is called with their number.
    """

    def __init__(
        self,
        pool: Pool,
        worker_id: str,
        about: Callable[[], dict[str, Any]],
        group: str = "",
        note_sharing: Callable[[int], object] = lambda _: None,
        every_s: float = ALIVE_S / 3,
    ):
        self._pool = pool
        self._worker_id = worker_id
        self._about = about
        self._every_s = every_s
        self._group = group
        self._note_sharing = note_sharing
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        """Announce the worker now, before it takes its first job, and then regularly."""
        self._try_to_beat()
        self._thread.start()
        return self

    def beat(self) -> None:
        """Announce the worker once."""
        self._note_sharing(self._pool.announce(self._worker_id, self._about(), self._group))

    def close(self) -> None:
        """Stop announcing the worker, and remove it from the pool."""
        self._stopped.set()
        self._thread.join()
        try:
            self._pool.leave(self._worker_id, self._group)
        except ShoalError as error:
            log.debug("the worker could not leave the pool, and is forgotten when its heartbeat expires: %s", error)

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._stopped.wait(begun + self._every_s - time.monotonic()):  # a beat itself may take long
            begun = time.monotonic()
            self._try_to_beat()

    def _try_to_beat(self) -> None:
        try:
            self.beat()
        except (Overloaded, Unavailable, MemoryError) as error:  # an encoder may need all memory for a moment
            log.debug("no heartbeat: %s", error)
        except Exception as error:  # any error, because a worker without this thread would look dead
            log.error("no heartbeat: %s", logs.places(error))
