"""Sources of documents: files of records and folders of documents, read as a stream of good and bad rows."""

import hashlib
import os.path
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest
from shoal.extraction.reader_client import KINDS, ReaderClient
from shoal.process.allowed_path import local_path
from shoal.records.document import (
    RESERVED_NAMES,
    BadRow,
    Document,
    DocumentColumns,
    Record,
    Records,
    SourceLabel,
    listed,
)
from shoal.records.document_files import folder_fingerprint, kind_of, list_files, read_document, read_folder
from shoal.records.line_records import PACKED_ENDING, read_csv, read_jsonl, read_tsv, read_txt
from shoal.records.parquet_records import read_parquet
from shoal.records.source_file import SourceFile, SourceRules, open_file
from shoal.settings import DEFAULTS

#: Columns that are the id if no column is named, in order of preference. BEIR's files have "_id".
USUAL_ID_COLUMNS = ("id", "_id")

#: Default rules of a source: there are no roots.
NO_ROOTS = SourceRules()

#: A function that yields the records of an open file. It raises BadDocument if the file as a whole cannot be read.
Reader = Callable[[SourceFile, SourceLabel], Records]

_JSON_READERS: dict[str, Reader] = dict.fromkeys((".jsonl", ".json", ".ndjson"), read_jsonl)
_TEXT_READERS: dict[str, Reader] = {".csv": read_csv, ".tsv": read_tsv, **_JSON_READERS, ".txt": read_txt}

#: For each ending of a file's name, the reader of the format and the unit by which it numbers records.
_READERS: dict[str, tuple[Reader, str]] = {
    **{f"{ending}{packed}": (read, "line") for packed in ("", PACKED_ENDING) for ending, read in _TEXT_READERS.items()},
    ".parquet": (read_parquet, "row"),
}

#: Endings of the names of files that are not read as one text a line.
RECORD_ENDINGS = tuple(ending for ending in _READERS if ending != ".txt")


class Source:
    """A file of records, a file that is one document, or a folder of documents. Each iteration reads it again.

    `path` is a file or folder on this machine. The ending of its name says the format. Without `text_column` the text
    is the column "text", else the only column besides the id. Without `id_column` the id is the first column of
    `USUAL_ID_COLUMNS` that exists, else the position of the record, counted from 0. No other column may have one of the
    `reserved` names. The `rules` say which paths are allowed. Once a row has been read, `ids_are_positions` is True if
    the ids are positions.

    The constructor raises InvalidRequest for a path that cannot be a source. Iterating raises InvalidRequest,
    BadDocument, PathNotAllowed and MissingExtra.
    """

    def __init__(
        self,
        path: str | Path,
        text_column: str | None = None,
        id_column: str | None = None,
        *,
        reserved: frozenset[str] = RESERVED_NAMES,
        max_text_chars: int = DEFAULTS.max_text_chars,
        rules: SourceRules = NO_ROOTS,
    ):
        self.path = local_path(str(path))
        self.name = self.path.rpartition("/")[2]
        self.text_column = text_column
        self.id_column = id_column
        self.ids_are_positions = False
        self._reserved = reserved
        self._max_text_chars = max_text_chars
        self._rules = rules
        self._fraction: Callable[[], float | None] = lambda: None
        self.is_folder = os.path.isdir(self.path)
        if not self.is_folder and not os.path.isfile(self.path):
            raise InvalidRequest(f"there is no file or folder {self.path}: check its name")
        self._kind = None if self.is_folder else kind_of(self.name)
        self._read: Reader | None = None
        unit = "file"
        if not self.is_folder and not self._kind:
            endings = [ending for ending in _READERS if self.name.lower().endswith(ending)]
            if not endings:
                known = ", ".join([*_TEXT_READERS, ".parquet", *KINDS])
                raise InvalidRequest(
                    f"{self.path} is of no known kind; its name must end in one of {known}; the name of a text file "
                    f"that is packed ends in {PACKED_ENDING} too, as in news.csv.gz; unpack other archives"
                )
            self._read, unit = _READERS[endings[0]]
        self.label = SourceLabel(self.path, unit)

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents. Raises BadDocument at the first bad row."""
        with closing(self.rows()) as rows:  # an exception that keeps this frame must not keep the file open
            for row in rows:
                if isinstance(row, BadRow):
                    raise BadDocument(row.reason)
                yield row

    @property
    def fraction(self) -> float | None:
        """The share of the source that the last iteration has read, from 0 to 1, or None if it is unknown."""
        return self._fraction()

    def where(self, number: int, document_id: str | None) -> str:
        """Return the beginning of a message about a row: the source, and the row's number or the document's file."""
        if self._read or (self.is_folder and document_id is None):
            return self.label.at(number)
        return f"{self.label.path}/{document_id}" if self.is_folder else self.label.path

    def rows(self, waiting: Callable[[], object] = lambda: None) -> Generator[Document | BadRow]:
        """Yield a document or a bad row for each row that is not blank; call `waiting`, which may raise, often."""
        columns: DocumentColumns | None = None
        with closing(self._records(waiting)) as records:
            for position, (number, record) in enumerate(records):
                if isinstance(record, BadDocument):
                    yield BadRow(number, record.message)
                    continue
                columns = columns or self._columns(list(record))
                try:
                    row: Document | BadRow = columns.document(record, number, position)
                except BadDocument as error:
                    row = BadRow(number, f"{self.where(number, record.get('id'))}: {error}")
                yield row

    def fingerprint(self) -> dict[str, int | str]:
        """Return `name`, `size_bytes`, `modified` and `sha256`, which differ if the source has changed."""
        if self.is_folder:
            return folder_fingerprint(Path(self.path), self._rules)
        with open_file(self.path, self._rules) as file:
            return {
                "name": self.name,
                "size_bytes": file.size_bytes,
                "modified": file.modified_ns,
                "sha256": hashlib.sha256(file.stream.read(2**20)).hexdigest(),
            }

    def _records(self, waiting: Callable[[], object]) -> Generator[tuple[int, Record | BadDocument], None, None]:
        if self.is_folder:
            folder = Path(self.path)
            files, number = list_files(folder, self._rules), 0
            if not files:
                kinds = ", ".join([*KINDS, ".txt"])
                raise BadDocument(f"{self.path}: there are no documents in it ({kinds}); name a file of records itself")
            self._fraction = lambda: number / len(files)
            for number, record in enumerate(read_folder(folder, files, self._rules, waiting), 1):
                yield number, record
            return
        with open_file(self.path, self._rules) as file:
            self._fraction = lambda: file.fraction()  # looked up when called, because a reader may replace it
            if self._read:
                yield from self._read(file, self.label)
            elif self._kind:
                with ReaderClient() as reader:
                    found = read_document(file, self.name, self.label.path, self._kind, reader, waiting)
                yield 1, found

    def _columns(self, found: list[str]) -> DocumentColumns:
        """Choose the columns with the text and the id among the columns `found` in the first record."""
        for named in (self.text_column, self.id_column):
            if named is not None and named not in found:
                raise InvalidRequest(
                    f"{self.label.path}: no column is called {excerpt(named)}; there are {listed(found)}"
                )
        id_column = self.id_column
        if id_column is None:
            id_column = next((name for name in USUAL_ID_COLUMNS if name in found), None)
        self.ids_are_positions = id_column is None
        text_column = self.text_column
        if text_column is None:
            names = [name for name in found if name != id_column]
            text_column = "text" if "text" in names else names[0] if len(names) == 1 else None
            if text_column is None:
                named = f"its first {self.label.unit} has the columns {listed(found)}; name the text with --text-column"
                raise InvalidRequest(f"{self.label.path}: {named}")
        return DocumentColumns(text_column, id_column, self._reserved, self._max_text_chars)
