"""Files that are one document each, alone or in a folder."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import BadDocument, FileError, InvalidRequest, PathNotAllowed
from shoal.extraction.kinds import UnreadableFile
from shoal.extraction.text_reader import TextReader
from shoal.records.files.source_file import BLOCK_BYTES, SourceFile, open_file
from shoal.records.folder import FoundFile
from shoal.records.record import Record
from shoal.records.source_rules import SourceRules

if TYPE_CHECKING:
    from shoal.records.read_files import ReadFiles


def read_document(
    file: SourceFile, path: str, kind: str, reader: TextReader, waiting: Callable[[], object]
) -> Record | BadDocument:
    """Return the text of an open file, its title if it has one, and its time if it is one of this machine.

    `waiting` is called often while the file is read. Raises MissingExtra.
    """
    try:
        found = reader.read(kind, _pieces(file), waiting)
    except UnreadableFile as error:
        return BadDocument(f"{path}: {error}")
    record: Record = {"text": found.text}
    if found.title:
        record["title"] = found.title
    if isinstance(file.modified, int):
        record["modified"] = f"{datetime.fromtimestamp(file.modified // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return record


def read_folder(
    folder: Path,
    files: Iterable[FoundFile],
    rules: SourceRules,
    waiting: Callable[[], object],
    read_files: "ReadFiles | None" = None,
) -> Iterator[Record | BadDocument]:
    """Yield a document for each file, whose id is its path below the folder, or what is wrong with it.

    Those of `read_files` that have not changed are not read again, and what is read is noted there.
    """
    with TextReader() as reader:
        for file in files:
            if read_files is not None and (known := read_files.find(file)):
                yield known
                continue
            found = _document(folder, file, rules, reader, waiting)
            if read_files is not None and not isinstance(found, BadDocument):
                read_files.keep(file, found)
            yield found
    if read_files is not None:
        read_files.end()


def _document(
    folder: Path, file: FoundFile, rules: SourceRules, reader: TextReader, waiting: Callable[[], object]
) -> Record | BadDocument:
    path = str(folder / file.path)
    try:
        file.path.encode()
        with open_file(path, rules) as opened:
            record = read_document(opened, path, file.kind, reader, waiting)
    except UnicodeEncodeError:
        return BadDocument(f"{path!a}: its name is not UTF-8: rename it")
    except (InvalidRequest, FileError, PathNotAllowed) as error:  # it was removed, or may not be read
        return BadDocument(error.message)
    return record if isinstance(record, BadDocument) else {"id": file.path, **record}


def _pieces(file: SourceFile) -> Iterator[bytes]:
    while piece := file.stream.read(BLOCK_BYTES):
        yield piece
