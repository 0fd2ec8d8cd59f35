"""The screen of `shoal top`: the pool as it was read last, and the keys that are pressed."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shoal.cli.shown.pool_table import NUM_BARS, ORDERS, pool_tables
from shoal.errors import ShoalError
from shoal.process.printable import printable

#: Most keys that are read at a time.
_MAX_KEYS = 64

#: Longest time until the screen is drawn again, perhaps in another size of the terminal, in seconds.
_DRAW_EVERY_S = 0.5

#: Reads the pool: returns its snapshot with its long jobs, or raises a ShoalError.
Reader = Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class View:
    """The state of the pool as it was read last, and how it is looked at."""

    pool: Mapping[str, Any] = field(default_factory=dict)
    #: The jobs in a second at each of the last looks.
    jobs_per_s: deque[Any] = field(default_factory=lambda: deque(maxlen=NUM_BARS))
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

    def read(self, read: Reader) -> None:
        """Read the pool; what was read last stays where that fails."""
        try:
            self.pool, self.trouble = read(), ""
            rates = self.pool.get("rates")
            self.jobs_per_s.append(rates.get("jobs_per_s") if isinstance(rates, Mapping) else None)
        except ShoalError as error:
            self.trouble = error.line

    def render(self, name: str) -> Group:
        """Return the screen."""
        now = time.strftime("%H:%M:%S", time.localtime(self.pool.get("time", 0))) if self.pool.get("time") else ""
        head = Text(f"{name}  {now}", "bold")
        head.append("  paused" if self.is_paused else "", "yellow")
        keys = Text(f"q quit   p {'go on' if self.is_paused else 'pause'}   s sort: {self.order}", "dim")
        trouble = [Text(printable(self.trouble), "red")] if self.trouble else []
        return Group(head, *trouble, Text(), pool_tables(self.pool, self.order, self.jobs_per_s), Text(), keys)


def print_pool(read: Reader) -> None:
    """Print the pool once."""
    Console().print(pool_tables(read()))


def watch_pool(name: str, read: Reader, every_s: float) -> None:
    """Show the pool until the user ends it."""
    view, due_s, terminal = View(), 0.0, sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        with Live(screen=True, auto_refresh=False) as live:
            while not view.has_ended:
                if time.monotonic() >= due_s and not view.is_paused:
                    view.read(read)
                    due_s = time.monotonic() + every_s
                live.update(view.render(name), refresh=True)
                left_s = _DRAW_EVERY_S if view.is_paused else max(0.0, due_s - time.monotonic())
                if select.select([terminal], [], [], min(_DRAW_EVERY_S, left_s))[0]:
                    for key in os.read(terminal, _MAX_KEYS).decode(errors="ignore") or [""]:
                        view.press(key)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
