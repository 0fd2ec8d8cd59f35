"""Limits that the system enforces on a process: on its memory, its open files, and its life after its parent's end."""

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
    """Limit this process, on Linux, to `max_bytes` more memory than it has now: beyond that, allocations fail.

    `num_held()` returns how many of the `max_bytes` are already allocated. The limit concerns the whole process, so the
    `with` block should be short. A failed allocation raises MemoryError.
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
    """Limit this process, on Linux, to `max_bytes` more memory than it has now: beyond that, allocations fail."""
    if sys.platform != "linux":
        return
    data_bytes = int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lowest = min(limit for limit in (data_bytes + max_bytes, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))


def raise_file_limit(wanted: int) -> int:
    """Raise this process's limit of open files to `wanted`, or as far as the system allows; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    num_files = max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))
    return num_files


def die_with_parent(number: signal.Signals = signal.SIGTERM, parent: int = 0) -> None:
    """Let Linux send this process the signal `number` when its parent ends, or at once if `parent` has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:
            os.kill(os.getpid(), number)
