"""The table of a run."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any


def table(rows: Iterable[tuple[str, Any]]) -> str:
    """Two columns of Markdown."""
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def counts(found: Mapping[str, int]) -> str:
    """Numbers by name, the largest first."""
    items = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {name}" for name, number in items) or "none"


def times(seconds: list[float]) -> str:
    """Median and maximum of times."""
    if not seconds:
        return "none"
    return f"median {median(seconds):.1f} s, longest {max(seconds):.1f} s, of {len(seconds)}"
