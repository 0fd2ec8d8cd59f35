"""The texts of files that a build has read, which the next one takes if the files have not changed."""

import json
import sqlite3
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Self

from shoal import __version__
from shoal.extraction.kinds import TEXTS_VERSION
from shoal.records.folder import FoundFile
from shoal.records.record import Record

#: Seconds after the last change of a file in which it may be changed again without a later time of change.
SETTLES_S = 2.0

#: Files from one commit to the next: a build that is killed reads at most so many again.
COMMIT_EVERY = 256

#: What a damaged file raises: values in it may be of any type.
_DAMAGES = (sqlite3.Error, zlib.error, ValueError, TypeError, LookupError, OverflowError, RecursionError)

#: Highest number of a build: SQLite's integers have 64 bits.
_MAX_BUILD = 2**62

_TABLE = "CREATE TABLE IF NOT EXISTS texts (mark BLOB PRIMARY KEY, record BLOB, build INTEGER) WITHOUT ROWID"


class ReadFiles:
    """The records of files in a file of SQLite, each under a mark of the file that it was read from. For one thread.

    A mark is a hash of the path, the size, the inode, the two times of change and the way in which texts are made of
    files. Of these, no program can set the time at which the inode changed. If the file of SQLite is damaged or
    cannot be written, all files are read. `now_s` is the time in Unix seconds.
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
        """Return what was read from a file; None if it has changed since, or was not read."""
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
        """Note what was read from a file, if a later change of it would be noticed."""
        if self._connection is None or self._now_s() - max(file.modified_ns, file.changed_ns) / 1e9 < SETTLES_S:
            return
        packed = zlib.compress(json.dumps(record).encode(), 1)
        with suppress(sqlite3.Error):
            values = (_mark(file), packed, self._build)
            self._connection.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", values)
            self._num_kept += 1
            if self._num_kept % COMMIT_EVERY == 0:
                self._connection.commit()

    def forget(self) -> None:
        """Forget all files."""
        self.close()
        with suppress(OSError, sqlite3.Error):
            self._path.unlink(missing_ok=True)
            self._open()

    def end(self) -> None:
        """Forget the files that were not asked for: they have changed, or are gone."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("DELETE FROM texts WHERE build < ?", (self._build,))

    def close(self) -> None:
        """Save what was noted, and close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.commit()
            connection.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def _open(self) -> None:
        self._connection = sqlite3.connect(self._path)
        self._connection.execute(_TABLE)
        ((last,),) = self._connection.execute("SELECT coalesce(max(build), 0) FROM texts")
        if (build := last + 1) > _MAX_BUILD:
            raise OverflowError("no build has so high a number")
        self._build = build


def _mark(file: FoundFile) -> bytes:
    numbers = (file.size_bytes, file.inode, file.modified_ns, file.changed_ns, TEXTS_VERSION)
    marked = "\0".join((file.path, file.kind, __version__, *map(str, numbers)))
    return blake2b(marked.encode(errors="surrogateescape"), digest_size=16).digest()
