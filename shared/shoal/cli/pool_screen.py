"""The screen of `shoal top`: tables of the pool."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.errors import ShoalError
from shoal.process.printable import printable
from shoal.process.progress import duration

_Values = Mapping[str, Any]

#: A function that reads the pool. It returns the figures with the long jobs, or raises a ShoalError.
Reader = Callable[[], _Values]

#: Shown in place of an unknown value.
UNKNOWN = "-"

#: Colours of the states of workers and long jobs. Other states have the colour of plain text.
_STATE_STYLES = {
    **dict.fromkeys(("ready", "running"), "green"),
    **dict.fromkeys(("starting", "queued", "paused"), "yellow"),
    **dict.fromkeys(("stalled", "gone"), "red"),
}


def print_pool(read: Reader) -> None:
    """Print the pool once."""
    Console().print(pool_tables(read()))


def watch_pool(name: str, read: Reader, every_s: float) -> None:
    """Show the pool until Ctrl-C. If reading fails, the last figures stay below the error."""
    pool: _Values = {}
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            trouble = []
            try:
                pool = read()
            except ShoalError as error:
                trouble = [Text(printable(error.line), "red")]
            now = time.strftime("%H:%M:%S", time.localtime(_number(pool.get("time"))))
            head = Text(f"{name}  {now if pool else ''}", "bold")
            live.update(Group(head, *trouble, Text(), pool_tables(pool)), refresh=True)
            time.sleep(every_s)


def pool_tables(pool: _Values) -> Group:
    """Return tables of a pool's figures, which have the form of `GET /v1/pool`."""
    rates = {**_map(pool.get("rates")), "num_dead": pool.get("num_dead")}
    workers = _table(_WORKERS, _maps(pool.get("workers")))
    if not workers.rows:
        workers.add_row(Text("no worker is alive", "red"))
    tables = [_table(_LANES, _maps(pool.get("lanes"))), _table(_RATES, [rates]), workers]
    jobs = [job for job in _maps(pool.get("long_jobs")) if job.get("status") in ("queued", "running", "paused")]
    if jobs:
        tables.append(_table(_LONG_JOBS, [{**_map(job.get("progress")), **job} for job in jobs]))
    return Group(*(part for table in tables for part in (table, Text())))


def _words(value: object) -> Text:
    """Return a value as text that cannot control the terminal."""
    text = UNKNOWN if value is None or value == "" else printable(str(value))
    return Text(text, _STATE_STYLES.get(text, ""), no_wrap=True, overflow="ellipsis")


def _last_part(value: object) -> Text:
    return _words(str(value or "").rpartition("/")[2])


def _shown(text: Callable[[float], str]) -> Callable[[object], Text]:
    """Return a function that shows a number as `text` does, and any other value as unknown."""
    return lambda value: Text(text(_number(value)) if isinstance(value, int | float) else UNKNOWN)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1_000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


_count = _shown(lambda number: f"{number:,.0f}")
_rate = _shown(lambda number: f"{number:,.0f}" if number >= 10 or not number else f"{number:.1f}")
_share = _shown(lambda number: f"{100 * number:.0f} %")
_size = _shown(lambda number: f"{number / 2**20:,.{1 if number < 2**20 else 0}f} MB")
_seconds = _shown(_time)

_Columns = Mapping[str, Callable[[object], Text]]

#: The fields that the columns of each table show, each with the function that shows its value. Each table fits into 80
#: characters.
_LANES: _Columns = {"lane": _words, "num_jobs": _count, "num_texts": _count, "num_bytes": _size}
_LANES = {**_LANES, **dict.fromkeys(("oldest_age_s", "wait_p50_s", "wait_p95_s", "wait_max_s"), _seconds)}
_RATES: _Columns = {
    **dict.fromkeys(("jobs_per_s", "failed_per_s", "computed_texts_per_s", "tokens_per_s"), _rate),
    **{"busy": _share, "cache_hit_rate": _share, "num_dead": _count},
}
_WORKERS: _Columns = {
    **{"id": _words, "state": _words, "model": _last_part, "engine": _words},
    **{"texts_per_s": _rate, "busy": _share, "memory_bytes": _size},
}
_LONG_JOBS: _Columns = {
    **{"id": _words, "status": _words, "step": _words},
    **{"fraction": _share, "rows_per_s": _rate, "eta_s": _seconds},
}


def _table(columns: _Columns, rows: Iterable[_Values]) -> Table:
    """Return a table as wide as the terminal. In a narrow terminal, words after the second column are cut."""
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    for n, (field, shown) in enumerate(columns.items()):
        heading = re.sub("^num_|_s$|_bytes$", "", field.replace("_per_s", "/s")).replace("_", " ")
        are_words = shown in (_words, _last_part)
        table.add_column(Text(heading, no_wrap=True, overflow="ellipsis"), justify="left" if are_words else "right")
        table.columns[-1].no_wrap = not (are_words and n > 1)
    for row in rows:
        table.add_row(*(shown(row.get(field)) for field, shown in columns.items()))
    return table


def _map(value: object) -> _Values:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[_Values]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> float:
    """Return the value if it is a number that can be shown, else 0."""
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0.0
