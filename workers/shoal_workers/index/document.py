"""Documents of a source file, with the first bad record named by its line."""

import json
import os.path
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import wire
from shoal.errors import BadDocument, InvalidRequest
from shoal.excerpt import excerpt
from shoal_workers.index.parquet_records import read_parquet
from shoal_workers.index.record import Record, Records, listed, location
from shoal_workers.index.text_records import read_csv, read_jsonl, read_tsv, read_txt

USUAL_TEXT_COLUMNS = ("headline", "title", "content", "body", "sentence")
RESERVED_NAMES = frozenset({"id", "text", "score"})


@dataclass(frozen=True, slots=True)
class Document:
    """A text to index, with the record's other columns as values that JSON can hold."""

    id: str
    text: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A .csv, .tsv, .jsonl, .txt or .parquet file, read anew by each iteration in constant memory.

    Without `text_column` the text is "text", else the only column that is not the id, else the only one of
    `USUAL_TEXT_COLUMNS`. Without `id_column` the id is "id", else the position counted from 0. Iterating raises
    `BadDocument` at a bad record, `InvalidRequest` for a file or column that cannot be used, and `MissingExtra` when
    .parquet cannot be read; only `check` finds duplicate ids and files without documents.
    """

    path: Path
    text_column: str | None = None
    id_column: str | None = None

    def __post_init__(self) -> None:
        _reader(self.path)

    def __iter__(self) -> Iterator[Document]:
        return (document for _, document in self._numbered())

    def check(self) -> int:
        """Read the whole file once and return the number of documents; raise at the first bad record."""
        seen: dict[str, int] = {}
        for number, document in self._numbered():
            if (first := seen.setdefault(document.id, number)) != number:
                raise BadDocument(
                    f"{location(self.path, number)}: the id {excerpt(document.id)} is already that of "
                    f"{location(self.path, first)}; ids must differ"
                )
        if not seen:
            raise BadDocument(f"{self.path}: there are no documents in it; at least one is needed")
        return len(seen)

    def _numbered(self) -> Iterator[tuple[int, Document]]:
        columns = None
        for position, (number, record) in enumerate(_reader(self.path)(self.path)):
            columns = columns or self._columns(list(record))
            yield number, _document(location(self.path, number), record, *columns, position)

    def _columns(self, found: list[str]) -> tuple[str, str | None]:
        """Return the names of the text column and of the id column, if there is one."""
        for named in (self.text_column, self.id_column):
            if named is not None and named not in found:
                raise InvalidRequest(f"{self.path}: no column is called {excerpt(named)}; there are {listed(found)}")
        id_column = "id" if self.id_column is None and "id" in found else self.id_column
        text_column = self.text_column or self._guess_text_column([name for name in found if name != id_column])
        return text_column, id_column

    def _guess_text_column(self, names: list[str]) -> str:
        exact = [name for name in names if name == "text"]
        usual = [name for name in names if name in USUAL_TEXT_COLUMNS]
        for choice in (exact, names, usual):
            if len(choice) == 1:
                return choice[0]
        raise InvalidRequest(f"{self.path}: the text could be any of {listed(names)}; name it with --text-column")


def _document(where: str, record: Record, text_column: str, id_column: str | None, position: int) -> Document:
    fields = {name: _json_value(value) for name, value in record.items() if name not in (text_column, id_column)}
    if taken := RESERVED_NAMES & fields.keys():
        raise BadDocument(f"{where}: a hit has its own {listed(sorted(taken))}; rename the column of that name")
    if deep := [name for name, value in fields.items() if not wire.is_json(value)]:
        raise BadDocument(f"{where}: {listed(deep)} is nested over {wire.MAX_DEPTH} levels deep; make it flatter")
    document_id = str(position) if id_column is None else _id(where, record, id_column)
    return Document(document_id, _text(where, record, text_column), fields)


def _text(where: str, record: Record, column: str) -> str:
    if column not in record:
        raise BadDocument(f"{where}: the text {excerpt(column)} is missing; every record needs one")
    text = record[column]
    if not isinstance(text, str):
        raise BadDocument(f"{where}: the text {excerpt(column)} is {excerpt(text)}; it must be a string")
    if not text.strip():
        raise BadDocument(f"{where}: the text in column {excerpt(column)} is empty; fill it in or leave the record out")
    return text


def _id(where: str, record: Record, column: str) -> str:
    value = _json_value(record.get(column))
    if value is None or not str(value).strip():
        raise BadDocument(f"{where}: the id {excerpt(column)} is missing or empty; every record needs one")
    return str(value)


def _json_value(value: Any) -> Any:
    """Return the value as JSON can hold it: dates and the like as strings, NaN and infinity as null."""
    if value is None or isinstance(value, str | int):
        return value
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)


def _reader(path: Path) -> Callable[[Path], Records]:
    """Return the function that reads files of this name.

    Raises InvalidRequest if there is no such file, or if its kind is not known.
    """
    if not os.path.isfile(path):
        raise InvalidRequest(f"there is no file {path}; give the path of a file, not of a folder")
    for ending, reader in _READERS.items():
        if path.name.lower().endswith(ending):
            return reader
    raise InvalidRequest(f"{path} is of no known kind; its name must end in one of {', '.join(_READERS)}")


_TEXT_READERS: dict[str, Callable[[Path], Records]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".txt": read_txt,
}
_READERS = _TEXT_READERS | {".parquet": read_parquet} | {f"{end}.gz": read for end, read in _TEXT_READERS.items()}
