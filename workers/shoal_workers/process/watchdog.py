"""The watchdog, which ends a worker that hangs. Other workers then do its jobs, and its supervisor restarts it."""

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Self, TextIO

log = logging.getLogger(__name__)

#: Seconds without progress after which the heartbeat of a worker says that it is stalled.
STALLED_AFTER_S = 5.0

#: Exit code of a worker that the watchdog has ended.
EXIT_STALLED = 70


class Activity:
    """The present activity of a worker and its age. The worker's thread marks it; other threads read it."""

    def __init__(self) -> None:
        self.mark("starting")

    def mark(self, doing: str) -> None:
        """Record that an activity begins now, even if it is the same as before."""
        self.doing = doing
        self.begun_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the present activity began."""
        return time.monotonic() - self.begun_s


class Watchdog:
    """A thread that calls `report` and ends the process if the thread that made the watchdog makes no progress.

    If native code holds the interpreter's lock, a C thread ends the process after twice the time, with a traceback in
    `file`.
    """

    def __init__(self, activity: Activity, timeout_s: float, file: TextIO, report: Callable[[str, str], None]):
        self._activity = activity
        self._timeout_s = timeout_s
        self._file = file
        self._report = report
        self._every_s = min(1.0, timeout_s / 4)
        self._watched = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._activity.age_s > self._timeout_s:
                    self._end()
                # Each call postpones the time at which the C thread ends the process.
                faulthandler.dump_traceback_later(2 * self._timeout_s, exit=True, file=self._file)
            except (MemoryError, RuntimeError):  # no memory, or no C thread; the next try may succeed
                log.debug("the watchdog could not check the worker", exc_info=True)
            self._stopped.wait(self._every_s)

    def _end(self) -> None:
        try:
            summary = f"stalled while {self._activity.doing}, for {self._activity.age_s:.0f} s"
            log.critical("%s: the worker ends itself, to be started again", summary)
            self._report(summary, "".join(traceback.format_stack(sys._current_frames()[self._watched])))
        finally:
            os._exit(EXIT_STALLED)
