"""Files that are one document each, alone or in a folder."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, FileError, InvalidRequest, PathNotAllowed
from shoal.extraction.kinds import KINDS, UnreadableFile
from shoal.extraction.text_reader import TextReader
from shoal.records.files.source_file import BLOCK_BYTES, SourceFile, open_file
from shoal.records.record import Record
from shoal.records.source_rules import SourceRules

if TYPE_CHECKING:
    from shoal.records.read_files import ReadFiles

#: The kind of each file of a folder that is read, by the ending of its name. A .txt file is one document there.
FOLDER_KINDS = {**KINDS, ".txt": "text"}

#: Most files of a folder.
MAX_FILES = 1_000_000


class FoundFile(NamedTuple):
    """A file of a folder: its path below it, with slashes; its kind and its size.

    `modified_ns` and `changed_ns` are when its content was changed last, and when anything about it was.
    """

    path: str
    kind: str
    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int


def list_files(folder: Path, rules: SourceRules, most: int = MAX_FILES) -> list[FoundFile]:
    """Return the files of a folder and of those in it that are of a known kind, ordered by their paths.

    Hidden ones are left out, and links to folders are not followed. Raises PathNotAllowed for a folder of uploads, and
    InvalidRequest for a folder that cannot be read, or that has too many files.
    """
    if rules.is_closed(folder):
        raise PathNotAllowed(f"{folder} is a folder of files that clients have sent: name one file, or another folder")
    found: list[FoundFile] = []
    for file in _walk(folder, rules):
        found.append(file)
        if len(found) > most:
            raise InvalidRequest(f"{folder} has over {most:,} files, the most of a source: index parts of it")
    return sorted(found)


def folder_fingerprint(folder: Path, rules: SourceRules) -> dict[str, int | str]:
    """Return that by which a change of any file is noticed, in the shape of `source_file.fingerprint`."""
    files, digest = list_files(folder, rules), hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.size_bytes}\0{file.modified_ns}\n".encode(errors="surrogateescape"))
    return {
        "name": folder.name,
        "size_bytes": sum(file.size_bytes for file in files),
        "modified": max((file.modified_ns for file in files), default=0),
        "sha256": digest.hexdigest(),
    }


def kind_of(name: str, kinds: dict[str, str] = KINDS) -> str | None:
    """Return the kind of a file by the ending of its name; None if it is of none of them."""
    return kinds.get(os.path.splitext(name.lower())[1])


def read_document(file: SourceFile, path: str, kind: str, reader: TextReader, waiting: Callable[[], object]) -> Record:
    """Return the text of an open file, its title if it has one, and its time if it is one of this machine.

    `waiting` is called often while the file is read. Raises BadDocument and MissingExtra.
    """
    try:
        found = reader.read(kind, iter(lambda: file.stream.read(BLOCK_BYTES), b""), waiting)
    except UnreadableFile as error:
        raise BadDocument(f"{path}: {error}") from error
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
            if known := read_files and read_files.find(file):
                yield known
                continue
            found = _document(folder, file, rules, reader, waiting)
            if read_files and not isinstance(found, BadDocument):
                read_files.keep(file, found)
            yield found
    if read_files:
        read_files.end()


def _document(
    folder: Path, file: FoundFile, rules: SourceRules, reader: TextReader, waiting: Callable[[], object]
) -> Record | BadDocument:
    path = str(folder / file.path)
    try:
        file.path.encode()
        with open_file(path, rules) as opened:
            return {"id": file.path, **read_document(opened, path, file.kind, reader, waiting)}
    except UnicodeEncodeError:
        return BadDocument(f"{path!a}: its name is not UTF-8: rename it")
    except BadDocument as error:
        return error
    except (InvalidRequest, FileError, PathNotAllowed) as error:  # it was removed, or may not be read
        return BadDocument(error.message)


def _walk(folder: Path, rules: SourceRules) -> Iterator[FoundFile]:
    for here, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not rules.is_closed(os.path.join(here, name))
        ]
        for name in names:
            kind = kind_of(name, FOLDER_KINDS)
            if kind is None or name.startswith("."):
                continue
            path = os.path.join(here, name)
            try:
                about = os.stat(path)
            except OSError:  # removed meanwhile, or a link to nothing
                continue
            if os.path.isfile(path):
                times = about.st_mtime_ns, about.st_ctime_ns
                yield FoundFile(os.path.relpath(path, folder), kind, about.st_size, *times, about.st_ino)


def _raise(error: OSError) -> NoReturn:
    raise InvalidRequest(
        f"{excerpt(error.filename)} cannot be read ({error.strerror}): check its name and permissions"
    ) from error
