"""The progress of a long step: lines on standard error."""

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Self, TextIO, TypeVar

from shoal.errors import NotReady
from shoal.process.printable import printable
from shoal.task_progress import TaskProgress

T = TypeVar("T")

#: Seconds until the first line of a step, and between two lines.
FIRST_AFTER_S, EVERY_S = 1.0, 5.0


class _Lines:
    """The lines that show a step's state, one every few seconds."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float]):
        self._stream, self._clock = stream or sys.stderr, clock
        self._due_s = clock() + FIRST_AFTER_S

    def show(self, line: Callable[[], str]) -> None:
        """Write the line if it is time for one."""
        if (now_s := self._clock()) >= self._due_s:
            self._stream.write(f"{printable(line())}\n")
            self._stream.flush()
            self._due_s = now_s + EVERY_S


class StepBar:
    """The progress of one step on standard error: nothing in the first second, then a line every few seconds.

    A line has the finished part, the speed and, if `total` is known, the time left. During a `with` statement, a thread
    writes the lines.
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
        self._clock, self._begin_s = clock, clock()
        self._lines = _Lines(stream, clock)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def tick(self) -> None:
        """Write a line if it is time for one."""
        self._lines.show(self._line)

    def over(self, items: Iterable[T]) -> Generator[T, None, None]:
        """Yield the items, and count each one."""
        for item in items:
            self.done += 1
            yield item

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(FIRST_AFTER_S / 2):
            self.tick()

    def _line(self) -> str:
        """Return the state of the step in words."""
        passed_s = self._clock() - self._begin_s
        if not self.done:
            return f"{self.label} … {duration(passed_s)}"
        rate = self.done / passed_s
        of_total = f" of {self.total:,}" if self.total else ""
        left = f", {duration((self.total - self.done) / rate)} left" if self.total else ""
        return f"{self.label}: {self.done:,}{of_total}{self.unit}, {rate:,.0f}{self.unit} a second{left}"


class RateMeter:
    """The rate of a long job's current step since the step began. A wait counts as a part of the step before it."""

    def __init__(self) -> None:
        self._begin_s = 0.0
        self._first: TaskProgress | None = None

    def measure(self, progress: TaskProgress, now_s: float) -> TaskProgress:
        """Return the progress with its rate and the seconds left, each None if it is unknown."""
        if self._first is None or (progress.step != self._first.step and not progress.step.startswith("waiting")):
            self._first, self._begin_s = progress, now_s
        passed_s, rows = now_s - self._begin_s, progress.rows - self._first.rows
        eta_s, begun = None, self._first.fraction
        if progress.fraction is not None and begun is not None and progress.fraction > begun:
            # A remaining byte is assumed to take as long as a finished one.
            eta_s = passed_s * (1 - progress.fraction) / (progress.fraction - begun)
        return replace(progress, rows_per_s=rows / passed_s if passed_s > 0 and rows > 0 else None, eta_s=eta_s)


class TaskBar:
    """The display of a long job's progress on standard error. The job calls it with each report."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._clock, self._meter = clock, RateMeter()
        self._lines = _Lines(stream, clock)

    def __call__(self, progress: TaskProgress) -> None:
        """Show the progress if it is time for a line. Measure the rate if the job gives none."""
        measured = self._meter.measure(progress, self._clock())
        self._lines.show(lambda: task_line(measured if progress.rows_per_s is None else progress))


def task_line(progress: TaskProgress) -> str:
    """Return the progress of a long job in words."""
    words = [] if progress.fraction is None else [f"{100 * progress.fraction:.0f} %"]
    words.append(f"{progress.rows:,} rows")
    if progress.rows_per_s:
        words.append(f"{progress.rows_per_s:,.0f} a second")
    if progress.eta_s is not None:
        words.append(f"{duration(progress.eta_s)} left")
    if progress.num_bad:
        words.append(f"{progress.num_bad:,} bad")
    return f"{progress.step or 'waiting'}: {', '.join(words)}"


def duration(seconds: float) -> str:
    """Return a duration in words, in at most two units."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def wait_until(what: str, is_done: Callable[[], bool], within_s: float = 120.0) -> None:
    """Wait with lines of progress until `is_done` returns True. Raises NotReady after `within_s` seconds."""
    until_s = time.monotonic() + within_s
    with StepBar(f"waiting for {what}"):
        while not is_done():
            if time.monotonic() > until_s:
                raise NotReady(
                    f"waited {within_s:g} s for {what}: see the lines above, or run the command with --log-level debug"
                )
            time.sleep(0.02)
