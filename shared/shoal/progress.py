"""Progress of a step that takes long: plain lines, or one line that is written anew on a terminal."""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

#: Time until the first line of a step, and between two lines; on a terminal, between two states of the line.
FIRST_AFTER_S, EVERY_S, EVERY_S_ON_TERMINAL = 1.0, 5.0, 0.5

_CLEAR_LINE = "\r\033[K"

#: Characters of a row on a terminal that does not say how many it has.
_UNKNOWN_WIDTH = 79


class Progress:
    """The progress of one step, on standard error: nothing in the first second, then a line every few seconds.

    A line has what is done, of how much, how fast and how long still, if `total` is known. As a context manager it
    writes them from a thread, for a step that is one call; a loop can call `tick` instead.
    """

    def __init__(
        self,
        label: str,
        total: int = 0,
        *,
        unit: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.label, self.total, self.unit = label, total, unit
        self.done = 0
        self._stream = stream or sys.stderr
        self._clock = clock
        self._begin_s = clock()
        self._due_s = self._begin_s + FIRST_AFTER_S
        self._is_terminal = self._stream.isatty()
        self._has_shown = False
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def advance(self, count: int = 1) -> None:
        """Note that so many more are done."""
        self.done += count

    def tick(self) -> None:
        """Write a line if one is due."""
        if (now_s := self._clock()) < self._due_s:
            return
        self._due_s = now_s + (EVERY_S_ON_TERMINAL if self._is_terminal else EVERY_S)
        self._has_shown = True
        self._stream.write(f"{_CLEAR_LINE}{self.line()[: self._width()]}" if self._is_terminal else f"{self.line()}\n")
        self._stream.flush()

    def line(self) -> str:
        """Return the state of the step in words."""
        passed_s = self._clock() - self._begin_s
        if not self.total:
            return f"{self.label} … {passed_s:.0f} s"
        text = f"{self.label}: {self.done:,} of {self.total:,}{self.unit}"
        if not self.done:
            return f"{text}, {passed_s:.0f} s so far"
        rate = self.done / passed_s
        return f"{text}, {rate:,.0f}{self.unit} a second, {_duration((self.total - self.done) / rate)} left"

    def _width(self) -> int:
        """Return how much of a line the terminal shows in one row, as only the last row of a longer one is cleared."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            columns = 0
        return max(columns - 1, 0) or _UNKNOWN_WIDTH

    def finish(self) -> None:
        """End the line on a terminal."""
        if self._has_shown and self._is_terminal:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        self._thread.join()
        self.finish()

    def _run(self) -> None:
        while not self.ended.wait(EVERY_S_ON_TERMINAL):
            self.tick()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
