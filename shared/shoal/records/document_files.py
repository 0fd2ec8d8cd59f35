"""Files that are one document each, and their records, which a build keeps for the next build."""

import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, NoReturn

from shoal import __version__
from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest, PathNotAllowed
from shoal.extraction.reader_client import KINDS, ReaderClient, UnreadableFile
from shoal.process.closing import Closing
from shoal.records.document import Record
from shoal.records.source_file import BLOCK_BYTES, SourceFile, SourceRules, open_file

#: The kind of a file in a folder, by the ending of its name. In a folder, a .txt file is one document.
FOLDER_KINDS = {**KINDS, ".txt": "text"}

#: Largest number of files of a folder.
MAX_FILES = 1_000_000

#: If a file changes twice within this many seconds, its time of change may stay the same.
SETTLES_S = 2.0

#: Number of files between two commits. After a build was killed, the next build reads at most this many files again.
COMMIT_EVERY = 256

#: The first second of the year 1900 and the last of 9999, in Unix seconds. The time of a file may be any number.
_FIRST_S, _LAST_S = -2_208_988_800, 253_402_300_799

#: The errors that reading a damaged file of SQLite raises. Its values may have any type.
_DAMAGES = (sqlite3.Error, zlib.error, ValueError, TypeError, LookupError, OverflowError, RecursionError)

_TABLE = "CREATE TABLE IF NOT EXISTS texts (mark BLOB PRIMARY KEY, record BLOB, build INTEGER) WITHOUT ROWID"


class FoundFile(NamedTuple):
    """A file in a folder: its path below the folder, with slashes, its kind and its size.

    `modified_ns` is the time of the last change of its content, and `changed_ns` the time of the last change of its
    content, name or permissions.
    """

    path: str
    kind: str
    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int


class ReadFiles(Closing):
    """A SQLite file with the records that were read from files, each stored under a mark of its file. Not thread-safe.

    A mark is a hash of the path, the size, the inode, both times of change and the version of Shoal. If the SQLite file
    is damaged or cannot be written, no record is found, and a build reads all files.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time):
        self._path = path
        self._now_s = now_s
        self._num_kept = 0
        self._connection: sqlite3.Connection | None = None
        self._build = 0
        try:
            self._open()
        except _DAMAGES:
            self.forget()

    def find(self, file: FoundFile) -> Record | None:
        """Return the record of a file, or None if the file was not read or has changed since."""
        with suppress(*_DAMAGES):
            if self._connection is None:
                return None
            mark = _mark(file)
            for (packed,) in self._connection.execute("SELECT record FROM texts WHERE mark = ?", (mark,)):
                self._connection.execute("UPDATE texts SET build = ? WHERE mark = ?", (self._build, mark))
                record: Record = json.loads(zlib.decompress(packed))
                return record if record["id"] == file.path and isinstance(record["text"], str) else None
        return None

    def keep(self, file: FoundFile, record: Record) -> None:
        """Save a record, unless its file changed in the last `SETTLES_S`, because it could change again unnoticed."""
        if self._connection is None or self._now_s() - file.changed_ns / 1e9 < SETTLES_S:
            return
        values = (_mark(file), zlib.compress(json.dumps(record).encode(), 1), self._build)
        with suppress(sqlite3.Error):
            self._connection.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", values)
            self._num_kept += 1
            if self._num_kept % COMMIT_EVERY == 0:
                self._connection.commit()

    def forget(self) -> None:
        """Delete all records."""
        self.close()
        with suppress(OSError, sqlite3.Error):
            self._path.unlink(missing_ok=True)
            self._open()

    def end(self) -> None:
        """Delete the records that this build did not use. Their files have changed or are gone."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("DELETE FROM texts WHERE build < ?", (self._build,))

    def close(self) -> None:
        """Commit the records, and close the SQLite file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.commit()
            connection.close()

    def _open(self) -> None:
        self._connection = sqlite3.connect(self._path)
        self._connection.execute(_TABLE)
        ((last,),) = self._connection.execute("SELECT coalesce(max(build), 0) FROM texts")
        self._build = last + 1
        self._connection.execute("SELECT ?", (self._build,))  # raises OverflowError for a number beyond 64 bits


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
                times = about.st_mtime_ns, about.st_ctime_ns
                found.append(FoundFile(os.path.relpath(path, folder), kind, about.st_size, *times, about.st_ino))
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
    read_files: ReadFiles | None,
) -> Iterator[Record | BadDocument]:
    """Yield a record for each file, or its error. The id is the path below the folder.

    Files that are in `read_files` and have not changed are not read again. New records are saved there.
    """
    with ReaderClient() as reader:
        for file in files:
            if known := read_files and read_files.find(file):
                yield known
                continue
            path, found = str(folder / file.path), None
            try:
                file.path.encode()
                with open_file(path, rules) as opened:
                    found = read_document(opened, file.path, path, file.kind, reader, waiting)
            except UnicodeEncodeError:
                found = BadDocument(f"{path!a}: its name is not UTF-8: rename it")
            except (InvalidRequest, PathNotAllowed) as error:  # the file is gone, or must not be read
                found = BadDocument(error.message)
            if read_files and not isinstance(found, BadDocument):
                read_files.keep(file, found)
            yield found
    if read_files:
        read_files.end()


def _mark(file: FoundFile) -> bytes:
    numbers = (file.size_bytes, file.inode, file.modified_ns, file.changed_ns)
    marked = "\0".join((file.path, file.kind, __version__, *map(str, numbers)))
    return blake2b(marked.encode(errors="surrogateescape"), digest_size=16).digest()
