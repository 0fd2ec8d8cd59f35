"""The loop in which the supervisor waits until a process is ready."""

import time
from collections.abc import Callable

from shoal.errors import NotReady
from shoal.process.progress import Progress

#: Longest wait, in seconds, where no other is named.
WITHIN_S = 120.0

_POLL_EVERY_S = 0.02


def wait_until(what: str, is_done: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait until `is_done` returns True, with lines of progress on standard error: "waiting for `what` … 5 s".

    Raises NotReady after `within_s`, and all errors of `is_done`.
    """
    started = time.monotonic()
    progress = Progress(f"waiting for {what}")
    while not is_done():
        waited_s = time.monotonic() - started
        if waited_s > within_s:
            raise NotReady(
                f"waited {within_s:g} s for {what}: see the lines above, or run the command with --log-level debug"
            )
        progress.tick()
        time.sleep(_POLL_EVERY_S)
    progress.finish()
