"""Files that are one document each, and their records."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, NoReturn

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest, PathNotAllowed
from shoal.extraction.reader_client import KINDS, ReaderClient, UnreadableFile
from shoal.records.document import Record
from shoal.records.source_file import BLOCK_BYTES, SourceFile, SourceRules, open_file

#: The kind of a file in a folder, by the ending of its name. In a folder, a .txt file is one document.
FOLDER_KINDS = {**KINDS, ".txt": "text"}

#: Largest number of files of a folder.
MAX_FILES = 1_000_000

#: The first second of the year 1900 and the last of 9999, in Unix seconds. The time of a file may be any number.
_FIRST_S, _LAST_S = -2_208_988_800, 253_402_300_799


class FoundFile(NamedTuple):
    """A file in a folder: its path below the folder, with slashes, its kind, its size and its last change."""

    path: str
    kind: str
    size_bytes: int
    modified_ns: int


def list_files(folder: Path, rules: SourceRules, most: int = MAX_FILES) -> list[FoundFile]:
    """Return the files of known kinds below a folder, ordered by their paths.

    Hidden files are left out, and links to folders are not followed. Raises PathNotAllowed for a folder of uploads, and
    InvalidRequest for a folder that cannot be read or has more than `most` files.
    """
    if rules.is_closed(folder):
        raise PathNotAllowed(f"{folder} is a folder of files that clients have sent: name one file, or another folder")

    def refuse(error: OSError) -> NoReturn:
        raise InvalidRequest(
            f"{excerpt(error.filename)} cannot be read ({error.strerror}): check its name and permissions"
        ) from error

    found: list[FoundFile] = []
    for here, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not rules.is_closed(os.path.join(here, name))
        ]
        for name in names:
            kind, path = kind_of(name, FOLDER_KINDS), os.path.join(here, name)
            if kind is None or name.startswith(".") or not os.path.isfile(path):
                continue
            with suppress(OSError):  # the file was removed meanwhile
                about = os.stat(path)
                found.append(FoundFile(os.path.relpath(path, folder), kind, about.st_size, about.st_mtime_ns))
            if len(found) > most:
                raise InvalidRequest(f"{folder} has over {most:,} files, the limit of a source: index parts of it")
    return sorted(found)


def folder_fingerprint(folder: Path, rules: SourceRules) -> dict[str, int | str]:
    """Return the fingerprint of a folder, in the form of `Source.fingerprint`. It changes if any of the files does."""
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
    """Return the kind of a file by the ending of its name, or None if no kind has this ending."""
    return kinds.get(os.path.splitext(name.lower())[1])


def read_document(
    file: SourceFile, document_id: str, path: str, kind: str, reader: ReaderClient, waiting: Callable[[], object]
) -> Record | BadDocument:
    """Return the record of an open file: its text, title and time of change."""
    try:
        found = reader.read(kind, iter(lambda: file.stream.read(BLOCK_BYTES), b""), waiting)
    except UnreadableFile as error:
        return BadDocument(f"{path}: {error}")
    modified_s = min(max(file.modified_ns // 10**9, _FIRST_S), _LAST_S)
    modified = f"{datetime.fromtimestamp(modified_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    title = {"title": found.title} if found.title else {}
    return {"id": document_id, "text": found.text, **title, "modified": modified}


def read_folder(
    folder: Path,
    files: Iterable[FoundFile],
    rules: SourceRules,
    waiting: Callable[[], object],
) -> Iterator[Record | BadDocument]:
    """Yield a record for each file, or its error. The id is the path below the folder."""
    with ReaderClient() as reader:
        for file in files:
            path = str(folder / file.path)
            try:
                file.path.encode()
                with open_file(path, rules) as opened:
                    yield read_document(opened, file.path, path, file.kind, reader, waiting)
            except UnicodeEncodeError:
                yield BadDocument(f"{path!a}: its name is not UTF-8: rename it")
            except (InvalidRequest, PathNotAllowed) as error:  # the file is gone, or must not be read
                yield BadDocument(error.message)
