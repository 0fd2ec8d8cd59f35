"""Tables in the documentation, for tests that compare them with the code."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
ERRORS = "docs/http.md"


def read(name: str) -> str:
    """Return the text of the page at a path in the repository."""
    return (ROOT / name).read_text("utf-8")


def table(name: str, heading: str) -> dict[str, list[str]]:
    """Return the table with this heading of its first column: the other cells of each row, by its first cell."""
    lines = read(name).split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


def agree(name: str, heading: str, rows: Iterable[Sequence[str]]) -> None:
    """Fail the test if the table has other rows. With WRITE_TABLES, which `scripts/tables` sets, write the rows."""
    text = read(name)
    assert text.count(f"\n| {heading} |") == 1
    start = text.index(f"\n| {heading} |") + 1
    stop = re.compile(r"(\|.*\n)+").match(text, start).end()  # type: ignore[union-attr]
    head = text[start:stop].splitlines()[:2]
    lines = [*head, *("| " + " | ".join(cells) + " |" for cells in rows)]
    wanted = text[:start] + "\n".join(lines) + "\n" + text[stop:]
    if "WRITE_TABLES" in os.environ:
        (ROOT / name).write_text(wanted, "utf-8")
    assert read(name) == wanted
