"""Documents read from a file, one row at a time, with the first bad row named by its line."""

import csv
import gzip
import io
import json
import os.path
import reprlib
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from shoal import wire
from shoal.errors import BadDocument, InvalidRequest, MissingExtra

Row = dict[str, Any]
#: Rows with the line each starts on, or in a .parquet file the number of the row; both count from 1.
Rows = Iterator[tuple[int, Row]]

USUAL_TEXT_COLUMNS = ("headline", "title", "content", "body", "sentence")
RESERVED_NAMES = frozenset({"id", "text", "score"})

#: Most names of columns that a message lists.
MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Document:
    """A text to index, with the row's other columns as values that JSON can hold."""

    id: str
    text: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A .csv, .tsv, .jsonl, .txt or .parquet file, read anew by each iteration in constant memory.

    Without `text_column` the text is "text", else the only column that is not the id, else the only one of
    `USUAL_TEXT_COLUMNS`. Without `id_column` the id is "id", else the position counted from 0. Iterating raises
    `BadDocument` at a bad row, `InvalidRequest` for a file or column that cannot be used, and `MissingExtra` when
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
        """Read the whole file once and return the number of documents; raise at the first bad row."""
        seen: dict[str, int] = {}
        for number, document in self._numbered():
            if (first := seen.setdefault(document.id, number)) != number:
                place, twin = _place(self.path, number), _place(self.path, first)
                raise BadDocument(f"{place}: the id {reprlib.repr(document.id)} is already that of {twin}")
        if not seen:
            raise BadDocument(f"{self.path}: there are no documents in it; at least one is needed")
        return len(seen)

    def _numbered(self) -> Iterator[tuple[int, Document]]:
        columns = None
        for position, (number, row) in enumerate(_reader(self.path)(self.path)):
            columns = columns or self._columns(list(row))
            yield number, _document(_place(self.path, number), row, *columns, position)

    def _columns(self, found: list[str]) -> tuple[str, str | None]:
        for named in (self.text_column, self.id_column):
            if named is not None and named not in found:
                raise InvalidRequest(f"{self.path}: there is no column {named!r}; the columns are {_listed(found)}")
        id_column = "id" if self.id_column is None and "id" in found else self.id_column
        text_column = self.text_column or self._guess_text_column([name for name in found if name != id_column])
        return text_column, id_column

    def _guess_text_column(self, names: list[str]) -> str:
        exact = [name for name in names if name == "text"]
        usual = [name for name in names if name in USUAL_TEXT_COLUMNS]
        for choice in (exact, names, usual):
            if len(choice) == 1:
                return choice[0]
        raise InvalidRequest(f"{self.path}: the text could be any of {_listed(names)}; name it with --text-column")


def _document(place: str, row: Row, text_column: str, id_column: str | None, position: int) -> Document:
    fields = {name: _json_value(value) for name, value in row.items() if name not in (text_column, id_column)}
    if taken := RESERVED_NAMES & fields.keys():
        raise BadDocument(f"{place}: a hit has its own {_listed(sorted(taken))}; rename the column of that name")
    if deep := [name for name, value in fields.items() if not wire.is_json(value)]:
        raise BadDocument(f"{place}: {_listed(deep)} is nested over {wire.MAX_DEPTH} levels deep; make it flatter")
    document_id = str(position) if id_column is None else _id(place, row, id_column)
    return Document(document_id, _text(place, row, text_column), fields)


def _text(place: str, row: Row, column: str) -> str:
    if column not in row:
        raise BadDocument(f"{place}: the text {column!r} is missing")
    text = row[column]
    if not isinstance(text, str):
        raise BadDocument(f"{place}: the text {column!r} is {reprlib.repr(text)}; it must be a string")
    if not text.strip():
        raise BadDocument(f"{place}: the text in column {column!r} is empty")
    return text


def _id(place: str, row: Row, column: str) -> str:
    value = _json_value(row.get(column))
    if value is None or not str(value).strip():
        raise BadDocument(f"{place}: the id {column!r} is missing or empty")
    return str(value)


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)


def _reader(path: Path) -> Callable[[Path], Rows]:
    if not os.path.isfile(path):
        raise InvalidRequest(f"there is no file {path}; give the path of a file, not of a folder")
    for ending, reader in _READERS.items():
        if path.name.lower().endswith(ending):
            return reader
    raise InvalidRequest(f"{path} is of no known kind; its name must end in one of {', '.join(_READERS)}")


def _place(path: Path, number: int) -> str:
    return f"{path}, {'row' if path.name.lower().endswith('.parquet') else 'line'} {number}"


def _listed(names: Collection[str]) -> str:
    shown = [reprlib.repr(name) for name in islice(names, MAX_LISTED)]
    return ", ".join([*shown, "…"] if len(names) > MAX_LISTED else shown) or "(none)"


def _refuse_twins(place: str, columns: list[str]) -> None:
    if twins := sorted({name for name in columns if columns.count(name) > 1}):
        raise BadDocument(f"{place}: more than one column is called {_listed(twins)}; names must differ")


@contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            yield file
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    # Invalid bytes come through as surrogates, so that the line they stand on is known.
    with _opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="") as text:
        try:
            for number, line in enumerate(text, 1):
                _refuse_bytes(path, number, line)
                yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
            raise BadDocument(f"{_place(path, number + 1)}: not readable as gzip: {exc}") from exc


def _refuse_bytes(path: Path, number: int, line: str) -> None:
    if "\0" in line:
        raise BadDocument(f"{_place(path, number)}: there is a NUL byte; the file must be UTF-8 text")
    try:
        line.encode()
    except UnicodeEncodeError as exc:
        raise BadDocument(f"{_place(path, number)}: byte 0x{ord(line[exc.start]) & 0xFF:02x} is not UTF-8") from None


def _txt_rows(path: Path) -> Rows:
    return ((number, {"text": line.rstrip("\r\n")}) for number, line in _lines(path) if line.strip())


def _jsonl_rows(path: Path) -> Rows:
    return ((number, _json_object(_place(path, number), line)) for number, line in _lines(path) if line.strip())


def _json_object(place: str, line: str) -> Row:
    try:
        row = json.loads(line, parse_int=_int64, parse_constant=_refuse_constant)
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as exc:
        reason = f"{exc.msg} at character {exc.colno}" if isinstance(exc, json.JSONDecodeError) else exc
        raise BadDocument(f"{place}: not valid JSON: {reason}") from exc
    if not isinstance(row, dict):
        raise BadDocument(f"{place}: {reprlib.repr(row)} is not a JSON object")
    return row


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _int64(digits: str) -> int:
    if -(2**63) <= int(digits) < 2**63:
        return int(digits)
    raise ValueError(f"{digits:.30} does not fit in 64 bits; make it a string")


def _table_rows(path: Path, **dialect: Any) -> Rows:
    records = _records(path, **dialect)
    line, header = next(records, (1, []))
    _refuse_twins(_place(path, line), header)
    for line, cells in records:
        if len(cells) != len(header):
            raise BadDocument(f"{_place(path, line)}: the header has {len(header)} cells, this row {len(cells)}")
        yield line, dict(zip(header, cells, strict=True))


def _records(path: Path, **dialect: Any) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in _lines(path)), strict=True, **dialect)
    start = 1
    try:
        for cells in reader:
            if cells:
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as exc:
        raise BadDocument(f"{_place(path, start)}: {exc}; is a quote not closed, or not doubled?") from exc


def _parquet_rows(path: Path) -> Rows:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as exc:
        raise MissingExtra("reading .parquet needs pyarrow; run: pip install 'shoal[parquet]'") from exc
    number = 1
    with _opened(path) as stream:
        try:
            file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
            names = file.schema_arrow.names
            _refuse_twins(_place(path, 1), names)
            batches = file.iter_batches(batch_size=1024)
            for number, cells in enumerate((row for batch in batches for row in zip(*batch.columns, strict=True)), 1):
                yield number, {name: cell.as_py() for name, cell in zip(names, cells, strict=True)}
        except (ArrowException, OSError, ValueError, OverflowError) as exc:
            raise BadDocument(f"{_place(path, number)}: not readable as parquet: {exc}") from exc


_TEXT_READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": _table_rows,
    ".tsv": partial(_table_rows, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _jsonl_rows,
    ".txt": _txt_rows,
}
_READERS = _TEXT_READERS | {".parquet": _parquet_rows} | {f"{end}.gz": read for end, read in _TEXT_READERS.items()}
