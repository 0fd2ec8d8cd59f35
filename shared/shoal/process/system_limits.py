"""Limits that the system sets to a process: to its memory, and to its life without a parent."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited_memory(max_bytes: int, num_held: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Let allocations fail, with MemoryError, that take over `max_bytes` more than the process has now, on Linux.

    `num_held()` bytes of these are taken already. The whole process has the limit, so nothing long is to be done here.
    """
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(max_bytes - num_held())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def limit_memory(max_bytes: int) -> None:
    """Let allocations fail, with MemoryError, that take over `max_bytes` more than the process has now. Linux alone."""
    if sys.platform != "linux":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lowest = min(limit for limit in (_data_bytes() + max_bytes, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()


_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM, parent: int = 0) -> None:
    """Have Linux send this process a signal when the parent ends; at once, if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if parent and os.getppid() != parent:
            os.kill(os.getpid(), number)
