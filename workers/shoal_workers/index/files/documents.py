"""The documents of a version: a line of JSON for each, the line's offset, and hashes of ids and texts."""

import json
import mmap
from collections.abc import Collection, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.contract import wire
from shoal.errors import IndexCorrupt, InvalidText
from shoal_workers.index.files.array_file import open_array, save_array
from shoal_workers.index.files.manifest import DOCUMENTS, IDS, OFFSETS

#: Size of a hash in bytes. No two different texts with the same hash of this size have ever been found.
HASH_BYTES = 16

#: `json.dumps` would make an encoder for each object, which takes as long as reading the object.
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def hash_of(text: str) -> bytes:
    """Return the hash of a text, of `HASH_BYTES` bytes."""
    return blake2b(text.encode(), digest_size=HASH_BYTES).digest()


class HashTable:
    """Hashes of the rows' texts or ids, sorted: their first halves, second halves and rows, uint64 `[3, count]`."""

    def __init__(self, table: NDArray[np.uint64]):
        self._table = table
        self.firsts, self.seconds, self.rows = table

    @classmethod
    def of(cls, hashes: bytes | bytearray) -> Self:
        """Return the table of `hashes`, which are concatenated in the order of their rows."""
        halves = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        order = np.argsort(halves[:, 0], kind="stable")
        return cls(np.stack([halves[order, 0], halves[order, 1], order.astype(np.uint64)]))

    @classmethod
    def open(cls, folder: Path, name: str, count: int) -> Self:
        """Memory-map the file that `save` wrote. Raises IndexCorrupt."""
        return cls(open_array(folder / name, np.uint64, (3, count)))

    def save(self, folder: Path, name: str) -> None:
        """Write the table into a file in the folder of an index's version."""
        save_array(folder / name, self._table)

    def in_order(self) -> NDArray[np.uint64]:
        """Return the halves of each row's hash, uint64 `[count, 2]`."""
        found = np.empty((len(self.rows), 2), np.uint64)
        found[self.rows] = np.stack([self.firsts, self.seconds], axis=1)
        return found

    def first_rows(self) -> NDArray[np.int64]:
        """Return, for each row, the first row with the same hash; int64 `[count]`."""
        is_first = np.ones(len(self.rows), bool)
        is_first[1:] = (self.firsts[1:] != self.firsts[:-1]) | (self.seconds[1:] != self.seconds[:-1])
        positions = np.maximum.accumulate(np.where(is_first, np.arange(len(self.rows)), 0))
        found = np.empty(len(self.rows), np.int64)
        found[self.rows] = self.rows[positions]
        return found

    def find_in(self, other: "HashTable") -> NDArray[np.int64]:
        """Return, for each row, a row of the other table with the same hash, or -1 without one; int64 `[count]`."""
        positions = np.searchsorted(other.firsts, self.firsts)
        positions[positions == len(other.rows)] = 0
        is_equal = (other.firsts[positions] == self.firsts) & (other.seconds[positions] == self.seconds)
        found = np.empty(len(self.rows), np.int64)
        found[self.rows] = np.where(is_equal, other.rows[positions].astype(np.int64), -1)
        return found

    def rows_of(self, hashes: bytes) -> NDArray[np.int64]:
        """Return all rows that have one of `hashes`, which are concatenated; int64, in ascending order."""
        halves = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        starts, ends = (np.searchsorted(self.firsts, halves[:, 0], side) for side in ("left", "right"))
        counts = ends - starts
        wanted = np.repeat(np.arange(len(halves)), counts)
        positions = np.arange(len(wanted)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        is_equal = self.seconds[positions] == halves[wanted, 1]
        return np.unique(self.rows[positions[is_equal]].astype(np.int64))


class Documents:
    """The documents in the `count` rows of a version, mapped into memory. Reading is thread-safe.

    Raises IndexCorrupt for files that no build wrote.
    """

    def __init__(self, folder: Path, count: int):
        self._folder = folder
        self._count = count
        self._offsets = offsets = open_array(folder / OFFSETS, np.int64, (count + 1,))
        try:
            with (folder / DOCUMENTS).open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise IndexCorrupt(
                f"{folder / DOCUMENTS} cannot be read ({error!s:.200}): build the index again"
            ) from error
        self._ids = HashTable.open(folder, IDS, count)
        if offsets[0] != 0 or offsets[-1] != len(self._lines) or not (offsets[1:] > offsets[:-1]).all():
            raise IndexCorrupt(
                f"{folder / OFFSETS} does not say where the documents in {DOCUMENTS} begin: build the index again"
            )

    def document(self, row: int) -> dict[str, Any]:
        """Return the document of a row: its `id`, `text` and other fields.

        Raises IndexCorrupt for a document that no build wrote, or that could not be sent to a client.
        """
        line = self._lines[self._offsets[row] : self._offsets[row + 1]]
        try:
            document = json.loads(line.decode())
            wire.pack(document)
            if not isinstance(document, dict) or any(type(document.get(name)) is not str for name in ("id", "text")):
                raise ValueError("it has no id or no text")
            if line.count(b"[") + line.count(b"{") > wire.MAX_DEPTH and not wire.is_json(document):
                raise ValueError("it is nested too deeply")
        except (ValueError, OverflowError, RecursionError, InvalidText) as error:
            raise IndexCorrupt(
                f"document {row} in {self._folder / DOCUMENTS} cannot be read ({type(error).__name__}): "
                "build the index again"
            ) from error
        return document

    def rows_of(self, ids: Collection[str]) -> NDArray[np.int64]:
        """Return the rows of all documents that have one of these ids, in ascending order.

        Raises IndexCorrupt for ids that no build wrote.
        """
        rows = self._ids.rows_of(b"".join(map(hash_of, ids)))
        if len(rows) and rows[-1] >= self._count:
            raise IndexCorrupt(f"{self._folder / IDS} has rows that {DOCUMENTS} lacks: build the index again")
        return rows


def to_line(values: dict[str, Any]) -> bytes:
    """Return an object as a line of JSON."""
    return f"{_to_json(values)}\n".encode()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in each line of a file. Raises ValueError for a line that is not JSON."""
    with path.open("rb") as file:
        yield from map(json.loads, file)


def keep_lines(path: Path, is_kept: NDArray[np.bool_]) -> None:
    """Remove lines from a file, in one step: only lines whose flag in `is_kept`, `[lines]`, is True stay."""
    scratch = path.with_name(f"{path.name}.kept")
    with path.open("rb") as old, scratch.open("wb") as new:
        new.writelines(line for line, kept in zip(old, is_kept, strict=True) if kept)
    scratch.replace(path)
