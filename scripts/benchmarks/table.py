"""Figures as Markdown tables."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.trial import Row, shown


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
