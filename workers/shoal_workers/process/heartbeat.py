"""The heartbeat, which announces a worker every second and counts the workers that share its processors."""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.process import logs
from shoal.queue.pool import ALIVE_S, Membership, Pool
from shoal_workers.process import processors

log = logging.getLogger(__name__)

#: The name of a worker in the group that shares its processors: pid namespace (0 if unknown), process id, worker's id.
_NAME = re.compile(r"(\d{1,20}):([1-9]\d{0,8}):.*", re.DOTALL)

_PID_NAMESPACE = Path("/proc/self/ns/pid")


def membership_of(worker_id: str) -> Membership:
    """Return the group of workers that share this process's processors, and the worker's name in it."""
    return Membership(processors.group(), f"{_pid_namespace()}:{os.getpid()}:{worker_id}")


def has_ended(name: str) -> bool:
    """Return True if the worker with this name is in the same pid namespace, and its process has ended."""
    found = _NAME.fullmatch(name)
    namespace = _pid_namespace()
    return bool(found and namespace and int(found[1]) == namespace and _is_gone(int(found[2])))


def _is_gone(pid: int) -> bool:
    """Return True if no process has this id, or only a zombie has it."""
    try:
        os.kill(pid, 0)  # sends no signal, and fails if there is no such process
    except ProcessLookupError:
        return True
    except OSError:  # the process belongs to another user
        return False
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    return False


def _pid_namespace() -> int:
    """Return the id of this process's pid namespace, or 0 if it is unknown."""
    if sys.platform != "linux":
        return 1  # these systems have a single namespace
    try:
        return _PID_NAMESPACE.stat().st_ino
    except OSError:
        return 0


#: One in this number of announcements includes the contents of the heartbeat.
CONTENTS_EVERY = 5

#: Fields of the contents that are announced immediately after a change.
URGENT = ("state", "threads", "indexes", "index_errors")


class Heartbeat:
    """A thread that announces a worker to the pool until `stop`.

    After each beat, `note_sharing` is called with the number of workers that share this worker's processors, this
    worker included.
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
        self._names: tuple[str, ...] = ()  # the names of all workers that share the processors
        self._num_sharing = 0
        self._stopped = threading.Event()
        self._announced: list[object] = []
        self._num_without_contents = CONTENTS_EVERY
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Announce the worker now, before it takes its first job, and then regularly."""
        self._try_to_beat()
        self._thread.start()

    def beat(self) -> None:
        """Announce the worker once, with the contents if they are due, urgent, or missing in Redis."""
        about = self._about()
        urgent = [about.get(name) for name in URGENT]
        self._num_without_contents += 1
        is_due = self._num_without_contents >= CONTENTS_EVERY or urgent != self._announced
        if is_due or not self._announce(None):
            self._announce(about)
            self._num_without_contents, self._announced = 0, urgent
        self._note_sharing(self._num_sharing - sum(map(has_ended, self._names)))

    def stop(self) -> None:
        """Stop announcing the worker, and remove it from the pool."""
        self._stopped.set()
        self._thread.join()
        try:
            self._pool.leave(self._worker_id, self._membership)
        except ShoalError as error:
            log.debug("the worker could not leave the pool, and is forgotten when its heartbeat expires: %s", error)

    def _announce(self, about: dict[str, Any] | None) -> bool:
        # Redis sends the names again only if their number is not `num_known`. After an end, 0 asks for them anyway.
        num_known = 0 if any(map(has_ended, self._names)) else self._num_sharing
        announced = self._pool.announce(self._worker_id, about, self._membership, num_known)
        self._num_sharing = announced.num_sharing
        if announced.sharing is not None:
            self._names = announced.sharing
        return announced.has_about

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._stopped.wait(begun + self._every_s - time.monotonic()):  # a beat without an answer takes long
            begun = time.monotonic()
            self._try_to_beat()

    def _try_to_beat(self) -> None:
        try:
            self.beat()
        except (ShoalError, MemoryError) as error:  # an encoder may need all memory for a moment
            log.debug("no heartbeat: %s", error)
        except Exception as error:  # any, because the end of this thread would make the worker look dead for good
            log.error("no heartbeat: %s", logs.places(error))
