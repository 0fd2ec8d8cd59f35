"""Sources of documents: files of records, with the first bad record named by its line."""

import os.path
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadDocument, InvalidRequest
from shoal.excerpt import excerpt
from shoal.records.document import Document, make_document
from shoal.records.parquet_records import read_parquet
from shoal.records.record import Records, listed, location
from shoal.records.text_records import read_csv, read_jsonl, read_tsv, read_txt

USUAL_TEXT_COLUMNS = ("headline", "title", "content", "body", "sentence")


@dataclass(frozen=True, slots=True)
class Source:
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
            yield number, make_document(location(self.path, number), record, *columns, position)

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
