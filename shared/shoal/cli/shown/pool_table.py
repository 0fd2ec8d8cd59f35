"""The state of a pool as tables for a terminal: its lanes, rates, workers and long jobs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.process.printable import printable
from shoal.process.progress import duration

_Values = Mapping[str, Any]

#: Stands for what is not known.
UNKNOWN = "-"

#: Colours of the states of workers and of long jobs; others have that of plain text.
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

#: The orders of workers by their names: what a worker is sorted by, the largest first but for its id.
ORDERS: Mapping[str, Callable[[_Values], Any]] = {
    "id": lambda worker: str(worker.get("id")),
    "texts": lambda worker: -_number(worker.get("texts_per_s")),
    "busy": lambda worker: -_number(worker.get("busy")),
    "memory": lambda worker: -_number(worker.get("memory_bytes")),
}

#: Heights of bars, the lowest first.
_BARS = "▁▂▃▄▅▆▇█"

#: Most bars: one for each of the last looks.
NUM_BARS = 20

#: Characters of the bar of a long job.
_BAR_WIDTH = 20


def pool_tables(pool: _Values, order: str = "id", jobs_per_s: Iterable[object] = ()) -> Group:
    """Return the tables of a pool as `GET /v1/pool` has it; bars show the rate of jobs at earlier looks."""
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
        table.add_row(plain(lane.get("lane")), *counts, _megabytes(lane.get("num_bytes")), *times)
    return table


def _rates(pool: _Values, jobs_per_s: Iterable[object]) -> Table:
    """Return the rates of all workers, with those of jobs at the last looks, and the dead letters."""
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
            plain(worker.get("id")),
            _state(worker.get("state")),
            plain(str(worker.get("model") or "").rpartition("/")[2]),
            plain(engine),
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
            plain(job.get("id")),
            _state(job.get("status")),
            plain(job.get("kind")),
            plain(progress.get("step")),
            ProgressBar(1.0, min(1.0, _number(progress.get("fraction"))), _BAR_WIDTH),
            _count(progress.get("rows")),
            _rate(progress.get("rows_per_s")),
            _seconds(progress.get("eta_s")),
        )
    return table


def _table(*names: str, left: int = 1) -> Table:
    """Return a table as wide as the terminal, with numbers on the right of their columns.

    The first `left` columns are words. In a narrow terminal those after the first are cut off before any other is.
    """
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    for n, name in enumerate(names):
        may_shrink = 0 < n < left and name != "state"
        table.add_column(Text(name, no_wrap=True, overflow="ellipsis"), justify="left" if n < left else "right")
        table.columns[-1].no_wrap = not may_shrink
    return table


def plain(value: object) -> Text:
    """Return a value as text in which nothing speaks to the terminal."""
    text = UNKNOWN if value is None or value == "" else str(value)
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def _state(value: object) -> Text:
    text = plain(value)
    text.style = _STATE_STYLES.get(text.plain, "")
    return text


def _maps(value: object) -> list[_Values]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> float:
    """Return the value if it is a number, else 0, so that it can be sorted and added."""
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
    return _shown(
        value, lambda number: f"{number / 2**20:,.1f}{unit}" if number < 2**20 else f"{number / 2**20:,.0f}{unit}"
    )


def _seconds(value: object) -> Text:
    return _shown(value, _time)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1_000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _sparkline(values: Iterable[object]) -> str:
    """Return the values as bars, of which the highest is the largest value."""
    numbers = [_number(value) for value in values]
    most = max([0.0, *numbers])
    return "".join(_BARS[int(number / most * (len(_BARS) - 1))] if most else _BARS[0] for number in numbers)
