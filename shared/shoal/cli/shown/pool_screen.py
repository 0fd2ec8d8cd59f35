"""The screen of `shoal top`: the pool as it was read last, and the keys that are pressed."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shoal.cli.shown.pool_table import ORDERS, pool_tables
from shoal.errors import ShoalError
from shoal.process.printable import printable

#: Most keys that are read at a time.
_MAX_KEYS = 64

#: Reads the pool: returns its snapshot and its long jobs, or raises a ShoalError.
Reader = Callable[[], tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]


@dataclass(slots=True)
class View:
    """The state of the pool as it was read last, and how it is looked at."""

    pool: Mapping[str, Any] = field(default_factory=dict)
    long_jobs: Sequence[Mapping[str, Any]] = ()
    trouble: str = ""
    order: str = "id"
    is_paused: bool = False
    has_ended: bool = False

    def press(self, key: str) -> None:
        """Do what a key asks for."""
        if key in ("q", "Q", ""):  # none: the terminal is gone
            self.has_ended = True
        elif key in ("p", "P", " "):
            self.is_paused = not self.is_paused
        elif key in ("s", "S"):
            names = list(ORDERS)
            self.order = names[(names.index(self.order) + 1) % len(names)]

    def render(self, name: str) -> Group:
        """Return the screen."""
        now = time.strftime("%H:%M:%S", time.localtime(self.pool.get("time", 0))) if self.pool.get("time") else ""
        head = Text(f"{name}  {now}", "bold")
        head.append("  paused" if self.is_paused else "", "yellow")
        keys = Text(f"q quit   p {'go on' if self.is_paused else 'pause'}   s sort: {self.order}", "dim")
        trouble = [Text(printable(self.trouble), "red")] if self.trouble else []
        return Group(head, *trouble, Text(), pool_tables(self.pool, self.long_jobs, self.order), Text(), keys)


def print_pool(read: Reader) -> None:
    """Print the pool once."""
    Console().print(pool_tables(*read()))


def watch_pool(name: str, read: Reader, every_s: float) -> None:
    """Show the pool until the user ends it."""
    view, due_s = View(), 0.0
    with _keys(sys.stdin.fileno()) as wait, Live(screen=True, auto_refresh=False) as live:
        while not view.has_ended:
            if time.monotonic() >= due_s and not view.is_paused:
                _update(view, read)
                due_s = time.monotonic() + every_s
            live.update(view.render(name), refresh=True)
            for key in wait(None if view.is_paused else max(0.0, due_s - time.monotonic())):
                view.press(key)


def _update(view: View, read: Reader) -> None:
    """Read the pool; what was read last stays where that fails."""
    try:
        view.pool, view.long_jobs = read()
        view.trouble = ""
    except ShoalError as error:
        view.trouble = error.line


@contextmanager
def _keys(terminal: int) -> Iterator[Callable[[float | None], list[str]]]:
    """Give a function that waits for keys: for a number of seconds or for ever, or until the terminal has another size.

    It returns the keys that were pressed; an empty one if the terminal is gone.
    """
    before = termios.tcgetattr(terminal)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    earlier = signal.signal(signal.SIGWINCH, lambda *_: None)
    earlier_writer = signal.set_wakeup_fd(writer)

    def wait(timeout_s: float | None) -> list[str]:
        ready, _, _ = select.select([terminal, reader], [], [], timeout_s)
        if reader in ready:
            os.read(reader, _MAX_KEYS)
        return list(os.read(terminal, _MAX_KEYS).decode(errors="ignore")) or [""] if terminal in ready else []

    try:
        tty.setcbreak(terminal)
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(earlier_writer)
        signal.signal(signal.SIGWINCH, earlier)
        os.close(reader)
        os.close(writer)
