"""Ends a worker that hangs, so that others take over its jobs and its supervisor starts it again."""

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TextIO

log = logging.getLogger(__name__)

#: A worker that has done nothing for so long says that it is stalled.
STALLED_AFTER_S = 5.0

#: Exit code of a worker that ended itself because it hung.
EXIT_STALLED = 70


class Progress:
    """What a worker is doing, and since when. One thread marks it, others look."""

    def __init__(self) -> None:
        self.mark("starting")

    def mark(self, doing: str) -> None:
        """Says what begins now, be it the same again."""
        self.doing = doing
        self.begun_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since something began."""
        return time.monotonic() - self.begun_s


class Watchdog:
    """Looks whether the thread that made it makes progress, from one of its own, and ends the process if it does not.

    `say` gets a summary in one line and a traceback first. Where native code holds the interpreter's lock no Python can
    run: after twice the time a C thread ends the process, with the traceback in `file`.
    """

    def __init__(self, progress: Progress, timeout_s: float, file: TextIO, say: Callable[[str, str], None]):
        self._progress = progress
        self._timeout_s = timeout_s
        self._file = file
        self._say = say
        self._every_s = min(1.0, timeout_s / 4)
        self._watched = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._stopped.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._stopped.is_set():
            faulthandler.dump_traceback_later(2 * self._timeout_s, exit=True, file=self._file)
            if self._progress.age_s > self._timeout_s:
                self._end()
            self._stopped.wait(self._every_s)

    def _end(self) -> None:
        try:
            summary = f"stalled while {self._progress.doing}, for {self._progress.age_s:.0f} s"
            log.critical("%s: the process ends, so that it is started again", summary)
            self._say(summary, "".join(traceback.format_stack(sys._current_frames()[self._watched])))
        finally:
            os._exit(EXIT_STALLED)
