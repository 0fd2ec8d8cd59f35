"""The priority of threads at the processors."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

#: How much nicer threads of low priority are. Beside a thread of the usual priority they have a quarter of a processor:
#: with a niceness of 10 it would be a tenth, and bulk nearly stops where other programs keep all processors busy.
NICENESS = 5

T = TypeVar("T")


def at_low_priority(make: Callable[[], T]) -> T:
    """Call `make`, and return its result. On Linux all threads that it starts have a low priority, for good.

    Threads inherit the priority of the one that starts them, so it is called on a thread of its own.
    """
    with ThreadPoolExecutor(1, "low-priority", _lower) as thread:
        return thread.submit(make).result()


def _lower() -> None:
    """Lower the priority of this thread; elsewhere than on Linux it would be the whole process's."""
    if sys.platform == "linux":
        with suppress(OSError):  # where the system does not allow it
            os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS))
