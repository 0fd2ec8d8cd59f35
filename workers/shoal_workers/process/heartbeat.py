"""The heartbeat: announces a worker every second in a thread of its own, and every few seconds what it serves."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from shoal.errors import ShoalError
from shoal.process import logs
from shoal.queue.pool import ALIVE_S, Membership, Pool
from shoal_workers.process.neighbours import Neighbours

log = logging.getLogger(__name__)

#: Announcements from one with the contents of the heartbeat to the next.
CONTENTS_EVERY = 5

#: Fields of the contents that are announced as soon as they change.
URGENT = ("state", "threads", "indexes", "index_errors")


class Heartbeat:
    """A thread that announces a worker until stopped. After an outage of Redis it goes on by itself.

    It calls `note_sharing` each time with the number of workers that share the processors of its `membership`.
    """

    def __init__(
        self,
        pool: Pool,
        worker_id: str,
        about: Callable[[], dict[str, Any]],
        every_s: float = ALIVE_S / 3,
        membership: Membership | None = None,
        note_sharing: Callable[[int], object] = lambda _: None,
    ):
        self._pool = pool
        self._worker_id = worker_id
        self._about = about
        self._every_s = every_s
        self._membership = membership
        self._note_sharing = note_sharing
        self._neighbours = Neighbours()
        self._stopped = threading.Event()
        self._announced: list[object] = []
        self._num_without_contents = CONTENTS_EVERY
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Announce the worker now, before it can take a job, and from then on."""
        self._try_to_beat()
        self._thread.start()

    def beat(self) -> None:
        """Announce the worker once, with the contents if one of `URGENT` has changed, or if they are due."""
        about = self._about()
        urgent = [about.get(name) for name in URGENT]
        self._num_without_contents += 1
        is_due = self._num_without_contents >= CONTENTS_EVERY or urgent != self._announced
        if is_due or not self._announce(None):
            self._announce(about)
            self._num_without_contents, self._announced = 0, urgent
        self._note_sharing(self._neighbours.count())

    def stop(self) -> None:
        """Stop announcing the worker, and take it out of the pool."""
        self._stopped.set()
        self._thread.join()
        try:
            self._pool.leave(self._worker_id, self._membership)
        except ShoalError as error:
            log.debug("the worker could not leave the pool, and is forgotten when its heartbeat expires: %s", error)

    def _announce(self, about: dict[str, Any] | None) -> bool:
        """Announce the worker; return True if Redis has the contents."""
        announced = self._pool.announce(self._worker_id, about, self._membership, self._neighbours.num_known)
        self._neighbours.update(announced)
        return announced.has_about

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._try_to_beat()

    def _try_to_beat(self) -> None:
        try:
            self.beat()
        except (ShoalError, MemoryError) as error:  # the text that is encoded may take all memory for a moment
            log.debug("no heartbeat: %s", error)
        except Exception as error:  # any: without this thread, the worker would never be found again
            log.error("no heartbeat: %s", logs.places(error))
