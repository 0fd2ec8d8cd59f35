"""Records of a source file: one a line or row, with the number that error messages give."""

import gzip
import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from shoal.errors import BadDocument, InvalidRequest
from shoal.excerpt import excerpt

#: Values by the name of their column.
Record = dict[str, Any]

#: Records with the number of the line each starts on, or of its row in a .parquet file; both count from 1.
Records = Iterator[tuple[int, Record]]

#: Most names of columns that a message lists.
MAX_LISTED = 10


def location(path: Path, number: int) -> str:
    """Return the beginning of a message about the record of that number."""
    return f"{path}, {'row' if path.name.lower().endswith('.parquet') else 'line'} {number}"


def listed(names: Collection[str]) -> str:
    """Return the first names of columns for a message, each cut if it is long."""
    shown = [excerpt(name) for name in islice(names, MAX_LISTED)]
    return ", ".join([*shown, "…"] if len(names) > MAX_LISTED else shown) or "(none)"


def refuse_duplicate_columns(where: str, columns: list[str]) -> None:
    """Raise BadDocument if two columns have the same name."""
    if duplicates := sorted({name for name in columns if columns.count(name) > 1}):
        raise BadDocument(f"{where}: more than one column is called {listed(duplicates)}; rename all but one")


@contextmanager
def open_source(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Open a file for reading bytes, unpacked if its name ends in .gz.

    Raises InvalidRequest if it cannot be opened, or if reading it fails.
    """
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            yield file
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read ({error.strerror or error}): check its name and permissions"
        ) from error
