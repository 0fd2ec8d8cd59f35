"""Trials, their figures, and the tables of figures."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import wrk

#: The figures of one run by name. A figure named `group: column` goes into the group's table.
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement that can be repeated: `run` is called with the seconds and the number of the run.

    A run that returns no figures does not count.
    """

    case: str
    target: str
    run: Callable[[int, int], Figures]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of all runs of a trial: for each figure a value from each run."""

    scenario: str
    case: str
    target: str
    figures: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """Return the median of a figure over the runs."""
        return statistics.median(self.figures[name])


def figures_of(measured: wrk.Measured, texts_per_request: int) -> Figures:
    """Return the rate and latencies of a run as figures."""
    return {
        "requests/s": measured.requests_per_s,
        "texts/s": measured.requests_per_s * texts_per_request,
        "p50 ms": measured.p50_ms,
        "p90 ms": measured.p90_ms,
        "p99 ms": measured.p99_ms,
    }


def shown(value: float) -> str:
    """Return a number as text: no decimals from 100 on, two from 1 on, three below."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def tables(rows: Iterable[Row]) -> str:
    """Return the rows as Markdown tables, one for each group of figures, with median (lowest to highest)."""
    grouped: dict[str, list[tuple[Row, dict[str, Sequence[float]]]]] = {}
    for row in rows:
        for group, figures in _by_group(row.figures).items():
            grouped.setdefault(group, []).append((row, figures))
    return "\n\n".join(_table(group, of_group) for group, of_group in grouped.items())


def _by_group(figures: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Sequence[float]]]:
    groups: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in figures.items():
        group, colon, column = name.partition(": ")
        groups.setdefault(group if colon else "", {})[column if colon else name] = values
    return groups


def _table(group: str, rows: Sequence[tuple[Row, dict[str, Sequence[float]]]]) -> str:
    columns = list(dict.fromkeys(name for _, figures in rows for name in figures))
    lines = [f"{group}:\n"] if group else []
    lines += [f"| case | target | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for row, figures in rows:
        cells = [_cell(figures[name]) if name in figures else "" for name in columns]
        lines.append(f"| {row.case} | {row.target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    text = shown(statistics.median(values))
    lowest, highest = shown(min(values)), shown(max(values))
    return text if lowest == highest else f"{text} ({lowest} to {highest})"
