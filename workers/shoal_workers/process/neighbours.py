"""The workers that share the processors with this one: Redis knows their names, and the system which have ended."""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shoal.queue.pool import Announced, Membership
from shoal_workers.process import processors

#: The name of a worker among those that share its processors: pid namespace (0: not known), process id, worker.
_NAME = re.compile(r"(\d{1,20}):([1-9]\d{0,8}):.*", re.DOTALL)

_PID_NAMESPACE = Path("/proc/self/ns/pid")


class Neighbours:
    """The workers that share the processors with this one, itself included. For one thread.

    Redis forgets a worker 3 s after its last heartbeat. One that was killed is not counted from the next `count` on, if
    its process can be seen from here: containers do not see each other's processes.
    """

    def __init__(self, names: Iterable[str] = ()):
        self._names = tuple(names)
        self._num_sharing = len(self._names)

    @property
    def num_known(self) -> int:
        """Number of names that Redis need not send again while it has as many; 0 if some of them have ended."""
        return 0 if any(map(has_ended, self._names)) else self._num_sharing

    def update(self, announced: Announced) -> None:
        """Take over what Redis answered to this worker's announcement."""
        self._num_sharing = announced.num_sharing
        if announced.sharing is not None:
            self._names = announced.sharing

    def count(self) -> int:
        """Return the number of workers that live."""
        return self._num_sharing - sum(map(has_ended, self._names))


def membership_of(worker_id: str) -> Membership:
    """Return the group of workers to which a worker of this process belongs, and its name there."""
    return Membership(processors.group(), f"{_pid_namespace()}:{os.getpid()}:{worker_id}")


def has_ended(name: str) -> bool:
    """Return True if the process of that worker is one that could be seen from here, and has ended."""
    found = _NAME.fullmatch(name)
    namespace = _pid_namespace()
    return bool(found and namespace and int(found[1]) == namespace and _is_gone(int(found[2])))


def _is_gone(pid: int) -> bool:
    """Return True if no process has that id, or only one that has ended and that its parent has not waited for."""
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    return False


def _pid_namespace() -> int:
    """Return the id of the namespace of this process's id on this machine; 0 if that is not known."""
    if sys.platform != "linux":
        return 1  # these systems have no containers of their own
    try:
        return _PID_NAMESPACE.stat().st_ino
    except OSError:
        return 0
