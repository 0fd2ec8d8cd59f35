"""The end of a process that outlives its parent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM, parent: int = 0) -> None:
    """Have the system send this process a signal when the parent ends; at once, if `parent` is no longer the parent.

    Only Linux has that: elsewhere a process outlives a parent that is killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if parent and os.getppid() != parent:
            os.kill(os.getpid(), number)
