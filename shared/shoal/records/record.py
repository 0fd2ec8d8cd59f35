"""Records of a source: one a line or row, with the number that error messages give."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument
from shoal.records.files.source_file import SourceFile

#: Values by the name of their column.
Record = dict[str, Any]

#: Records, or what is wrong with them, each with the number of the line it starts on, or of its row in a .parquet or
#: Arrow file; both count from 1.
Records = Iterator[tuple[int, Record | BadDocument]]

#: Most bytes of a record. A longer one is skipped while it is read.
MAX_ROW_BYTES = 8 * 2**20

#: Most names of columns that a message lists.
MAX_LISTED = 10


class Place(NamedTuple):
    """A source as messages name it, and the word for the number of a record in it."""

    path: str
    unit: str

    def at(self, number: int) -> str:
        """Return the beginning of a message about the record of that number."""
        return f"{self.path}, {self.unit} {number}"


#: A function that yields the records of an open file. It raises BadDocument for what is wrong with the file as a whole.
Reader = Callable[[SourceFile, Place], Records]


def listed(names: Collection[str]) -> str:
    """Return the first names of columns for a message, each cut if it is long."""
    shown = [excerpt(name) for name in islice(names, MAX_LISTED)]
    return ", ".join([*shown, "…"] if len(names) > MAX_LISTED else shown) or "(none)"


def refuse_duplicate_columns(where: str, columns: list[str]) -> None:
    """Raise BadDocument if two columns have the same name."""
    if duplicates := sorted(name for name, num in Counter(columns).items() if num > 1):
        raise BadDocument(f"{where}: more than one column is called {listed(duplicates)}; rename all but one")


def too_long(where: str) -> BadDocument:
    """Return the error of a record that is over the limit."""
    return BadDocument(f"{where}: it has over {MAX_ROW_BYTES:,} bytes, the most of a row; cut it into passages")
