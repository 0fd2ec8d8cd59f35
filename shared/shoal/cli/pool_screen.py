"""The screen of `shoal top`: tables of the pool, and the keys that a user presses."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.errors import ShoalError
from shoal.process.printable import printable
from shoal.process.progress import duration

_Values = Mapping[str, Any]

#: Shown in place of an unknown value.
UNKNOWN = "-"

#: Colours of the states of workers and long jobs. Other states have the colour of plain text.
_STATE_STYLES = {
    "ready": "green",
    "running": "green",
    "done": "green",
    "stalled": "red",
    "unsynchronised": "red",
    "failed": "red",
    "gone": "red",
    "starting": "yellow",
    "queued": "yellow",
    "paused": "yellow",
}

#: For each order of the workers, a function that returns the sort key. Numbers are negated, so the largest comes first.
ORDERS: Mapping[str, Callable[[_Values], Any]] = {
    "id": lambda worker: str(worker.get("id")),
    "texts": lambda worker: -_number(worker.get("texts_per_s")),
    "busy": lambda worker: -_number(worker.get("busy")),
    "memory": lambda worker: -_number(worker.get("memory_bytes")),
}

#: Characters for bars, from the lowest to the highest.
_BARS = "▁▂▃▄▅▆▇█"

#: Largest number of bars. There is one bar for each of the last reads of the pool.
NUM_BARS = 20

#: Characters of the progress bar of a long job.
_BAR_WIDTH = 20

#: Largest number of keys that are read at a time.
_MAX_KEYS = 64

#: Longest time until the screen is drawn again, in seconds. The terminal may have another size by then.
_DRAW_EVERY_S = 0.5

#: A function that reads the pool. It returns the figures with the long jobs, or raises a ShoalError.
Reader = Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class View:
    """The figures of the pool that were read last, and the choices of the user."""

    pool: Mapping[str, Any] = field(default_factory=dict)
    #: The jobs per second at each of the last reads.
    jobs_per_s: deque[Any] = field(default_factory=lambda: deque(maxlen=NUM_BARS))
    trouble: str = ""
    order: str = "id"
    is_paused: bool = False
    has_ended: bool = False

    def press(self, key: str) -> None:
        """Do what the key asks for: end, pause or sort."""
        if key in ("q", "Q", ""):  # an empty key: the terminal is gone
            self.has_ended = True
        elif key in ("p", "P", " "):
            self.is_paused = not self.is_paused
        elif key in ("s", "S"):
            names = list(ORDERS)
            self.order = names[(names.index(self.order) + 1) % len(names)]

    def read(self, read: Reader) -> None:
        """Read the pool. If reading fails, the last figures stay."""
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


def pool_tables(pool: _Values, order: str = "id", jobs_per_s: Iterable[object] = ()) -> Group:
    """Return tables of a pool's figures, which have the form of `GET /v1/pool`. Bars show earlier rates of jobs."""
    parts: list[RenderableType] = [_lanes(pool), Text(), _rates(pool, jobs_per_s), Text(), _workers(pool, order)]
    if found := [job for job in _maps(pool.get("long_jobs")) if job.get("status") in ("queued", "running", "paused")]:
        parts += [Text(), _long_jobs(found)]
    return Group(*parts)


def _lanes(pool: _Values) -> Table:
    table = _table("lane", "jobs", "texts", "MB", "oldest", "wait p50", "p95", "max")
    for lane in _maps(pool.get("lanes")):
        oldest_age_s = lane.get("oldest_age_s") if lane.get("num_jobs") else None
        waits = (lane.get(name) for name in ("wait_p50_s", "wait_p95_s", "wait_max_s"))
        counts = (_count(lane.get(name)) for name in ("num_jobs", "num_texts"))
        times = map(_seconds, (oldest_age_s, *waits))
        table.add_row(_plain(lane.get("lane")), *counts, _megabytes(lane.get("num_bytes")), *times)
    return table


def _rates(pool: _Values, jobs_per_s: Iterable[object]) -> Table:
    """Return a table with the rates of all workers, the dead letters, and bars for the last rates of jobs."""
    rates = pool.get("rates")
    last = rates if isinstance(rates, Mapping) else {}
    table = _table("jobs/s", "failed/s", "texts/s", "tokens/s", "busy", "cached", "dead", "jobs/s lately")
    texts_per_s = [last.get(f"{name}_texts_per_s") for name in ("computed", "cached")]
    num_texts = sum(map(_number, texts_per_s)) if None not in texts_per_s else None
    table.add_row(
        *(_rate(last.get(name)) for name in ("jobs_per_s", "failed_per_s")),
        _rate(num_texts),
        _rate(last.get("tokens_per_s")),
        *(_percent(last.get(name)) for name in ("busy", "cache_hit_rate")),
        Text(_count(pool.get("num_dead")).plain, "red" if pool.get("num_dead") else ""),
        Text(_sparkline(jobs_per_s), "cyan"),
    )
    return table


def _workers(pool: _Values, order: str) -> Table:
    table = _table("worker", "state", "model", "engine", "threads", "texts/s", "busy", "fill", "memory", left=4)
    for worker in sorted(_maps(pool.get("workers")), key=ORDERS[order]):
        engine = " ".join(str(worker[name]) for name in ("engine", "precision") if worker.get(name))
        table.add_row(
            _plain(worker.get("id")),
            _state(worker.get("state")),
            _plain(str(worker.get("model") or "").rpartition("/")[2]),
            _plain(engine),
            _count(worker.get("threads")),
            _rate(worker.get("texts_per_s")),
            _percent(worker.get("busy")),
            _percent(worker.get("batch_fill")),
            _megabytes(worker.get("memory_bytes"), " MB"),
        )
    if not table.rows:
        table.add_row("no worker is alive", style="red")
    return table


def _long_jobs(jobs: Iterable[_Values]) -> Table:
    table = _table("long job", "state", "kind", "step", "progress", "rows", "rows/s", "left", left=5)
    for job in jobs:
        progress = job.get("progress")
        progress = progress if isinstance(progress, Mapping) else {}
        table.add_row(
            _plain(job.get("id")),
            _state(job.get("status")),
            _plain(job.get("kind")),
            _plain(progress.get("step")),
            ProgressBar(1.0, min(1.0, _number(progress.get("fraction"))), _BAR_WIDTH),
            _count(progress.get("rows")),
            _rate(progress.get("rows_per_s")),
            _seconds(progress.get("eta_s")),
        )
    return table


def _table(*names: str, left: int = 1) -> Table:
    """Return a table as wide as the terminal. The first `left` columns contain words; a narrow terminal cuts them."""
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    for n, name in enumerate(names):
        may_shrink = 0 < n < left and name != "state"
        table.add_column(Text(name, no_wrap=True, overflow="ellipsis"), justify="left" if n < left else "right")
        table.columns[-1].no_wrap = not may_shrink
    return table


def _plain(value: object) -> Text:
    """Return a value as text that cannot control the terminal."""
    text = UNKNOWN if value is None or value == "" else str(value)
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def _state(value: object) -> Text:
    text = _plain(value)
    text.style = _STATE_STYLES.get(text.plain, "")
    return text


def _maps(value: object) -> list[_Values]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> float:
    """Return the value if it is a number, else 0, so that it can be sorted and summed."""
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0.0


def _shown(value: object, text: Callable[[float], str]) -> Text:
    return Text(text(_number(value)) if isinstance(value, int | float) else UNKNOWN)


def _count(value: object) -> Text:
    return _shown(value, lambda number: f"{number:,.0f}")


def _rate(value: object) -> Text:
    return _shown(value, lambda number: f"{number:,.0f}" if number >= 10 or not number else f"{number:.1f}")


def _percent(value: object) -> Text:
    return _shown(value, lambda number: f"{100 * number:.0f} %")


def _megabytes(value: object, unit: str = "") -> Text:
    return _shown(value, lambda number: f"{number / 2**20:,.{1 if number < 2**20 else 0}f}{unit}")


def _seconds(value: object) -> Text:
    def text(seconds: float) -> str:
        if seconds < 1:
            return f"{1_000 * seconds:.0f} ms"
        return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)

    return _shown(value, text)


def _sparkline(values: Iterable[object]) -> str:
    """Return a bar for each value. The largest value has the highest bar."""
    numbers = [_number(value) for value in values]
    most = max([0.0, *numbers])
    return "".join(_BARS[int(number / most * (len(_BARS) - 1))] if most else _BARS[0] for number in numbers)
