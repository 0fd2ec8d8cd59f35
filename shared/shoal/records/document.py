"""Records of a source, the documents that are made from them, and bad rows, from which no document can be made."""

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, FileError
from shoal.process.closing import Closing
from shoal.task_progress import MAX_SHOWN

#: The values of a row by the names of their columns.
Record = dict[str, Any]

#: Pairs of a number and a record or its error. The number is the record's first line or, in a .parquet file, its row,
#: counted from 1.
Records = Iterator[tuple[int, Record | BadDocument]]

#: Size limit of a record, in bytes. A larger record becomes a bad row.
MAX_ROW_BYTES = 8 * 2**20

#: Largest number of bad rows of a source. Each needs a line on disk; a byte of a compressed file can hold a thousand.
MAX_BAD_ROWS = 10_000_000

#: Largest number of column names that a message lists.
MAX_LISTED = 10

#: Names of the fields that every hit of a search has.
RESERVED_NAMES = frozenset({"id", "text", "score"})

#: Largest depth of lists and maps in a field. The document around the field is one more level.
MAX_FIELD_DEPTH = wire.MAX_DEPTH - 1


class SourceLabel(NamedTuple):
    """The name of a source in messages: its path, and the unit that numbers its records, such as "line"."""

    path: str
    unit: str

    def at(self, number: int) -> str:
        """Return the beginning of a message about the record with that number."""
        return f"{self.path}, {self.unit} {number}"


@dataclass(frozen=True, slots=True)
class Document:
    """A text to embed or to index. `fields` has the other columns of the record, as values that JSON can represent.

    `number` is the number of the record's line or row in the source, counted from 1.
    """

    id: str
    text: str
    fields: dict[str, Any]
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row without a document: the number of its line or row, from 1, and a reason like "file, line 17: …"."""

    number: int
    reason: str


class BadRows(Closing):
    """The bad rows of a source: their number `num`, the messages of the `first` few, and a file with all of them.

    Each line of the file is a JSON object `{"row", "reason"}`. The first `num_kept` lines, which an earlier run wrote,
    are kept. Raises FileError if the file has fewer lines.
    """

    def __init__(self, path: Path, num_kept: int = 0, most: int = MAX_BAD_ROWS):
        self.num = 0
        self._most = most
        self.first: tuple[str, ...] = ()
        path.touch()
        with path.open("r+b") as file:
            try:
                for _ in range(num_kept):
                    values = json.loads(file.readline())
                    self._count(BadRow(int(values["row"]), str(values["reason"])))
            except (ValueError, KeyError, TypeError) as error:
                raise FileError(f"{path} has fewer rows than were left out: write to another folder") from error
            file.truncate(file.tell())
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: BadRow) -> None:
        """Write a bad row into the file. Raises BadDocument if there are more than `most`."""
        if self.num == self._most:
            raise BadDocument(f"over {self._most:,} rows cannot be used, so reading ends; the first: {self.first[0]}")
        self._count(row)
        self._file.write(json.dumps({"row": row.number, "reason": row.reason}, ensure_ascii=False) + "\n")

    def sync(self) -> None:
        """Wait until all rows are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def _count(self, row: BadRow) -> None:
        self.num += 1
        if len(self.first) < MAX_SHOWN:
            self.first += (row.reason,)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """The columns with the text and the id of a record, and the `reserved` names, which no other column may have.

    Without `id_column` the id is the position of the record. Texts have at most `max_text_chars` characters.
    """

    text_column: str
    id_column: str | None
    reserved: frozenset[str]
    max_text_chars: int

    def document(self, record: Record, number: int, position: int) -> Document:
        """Return the document of the record with this number and position. Raises BadDocument, which names neither."""
        others = {name: value for name, value in record.items() if name not in (self.text_column, self.id_column)}
        if taken := self.reserved & others.keys():
            raise BadDocument(f"a hit has its own {listed(sorted(taken))}; rename the column of that name")
        fields = {name: _json_value(value) for name, value in others.items()}
        if deep := [name for name, value in fields.items() if not wire.is_json(value, MAX_FIELD_DEPTH)]:
            raise BadDocument(f"{listed(deep)} is nested over {MAX_FIELD_DEPTH} levels deep; make it flatter")
        document_id = str(position)
        if self.id_column is not None:
            value = _json_value(record.get(self.id_column))
            document_id = "" if value is None else str(value)
            if isinstance(value, bool | list | dict):
                raise BadDocument(f"the id {excerpt(self.id_column)} is {excerpt(value)}; give a string or a number")
            if not document_id.strip():
                raise BadDocument(f"the id {excerpt(self.id_column)} is missing or empty; every record needs one")
        return Document(document_id, self._text(record), fields, number)

    def _text(self, record: Record) -> str:
        column = self.text_column
        if column not in record:
            raise BadDocument(f"the text {excerpt(column)} is missing; every record needs one")
        text = record[column]
        if not isinstance(text, str):
            raise BadDocument(f"the text {excerpt(column)} is {excerpt(text)}; it must be a string")
        if not text.strip():
            raise BadDocument(f"the text in column {excerpt(column)} is empty; fill it in or leave the record out")
        if len(text) > self.max_text_chars:
            limit = f"may have {self.max_text_chars:,} (SHOAL_MAX_TEXT_CHARS)"
            raise BadDocument(f"the text has {len(text):,} characters and {limit}; cut it into passages")
        return text


def _json_value(value: Any) -> Any:
    """Return the value as JSON can express it: dates and bytes of UTF-8 as strings, NaN and infinity as None."""
    if value is None or isinstance(value, str | int):
        return value
    return json.loads(json.dumps(value, default=_written), parse_constant=lambda _: None)


def _written(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def listed(names: Collection[str]) -> str:
    """Return the first `MAX_LISTED` column names for a message. Long names are cut."""
    shown = [excerpt(name) for name in islice(names, MAX_LISTED)]
    return ", ".join([*shown, "…"] if len(names) > MAX_LISTED else shown) or "(none)"


def refuse_duplicate_columns(where: str, columns: list[str]) -> None:
    """Raise BadDocument if two columns have the same name."""
    if duplicates := sorted(name for name, num in Counter(columns).items() if num > 1):
        raise BadDocument(f"{where}: more than one column is called {listed(duplicates)}; rename all but one")


def too_long(where: str) -> BadDocument:
    """Return the error of a record that has more than `MAX_ROW_BYTES`."""
    return BadDocument(f"{where}: it has over {MAX_ROW_BYTES:,} bytes, the limit of a row; cut it into passages")
