"""Hashes of texts, sorted: by them a build finds equal texts, and texts that a former version has vectors of.

Hashes of ids are kept in the same way, and tell which document has an id.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.array_file import open_array, save_array

#: Size of a hash: at this size, no two different texts have ever been found with the same one.
HASH_BYTES = 16


def hash_of(text: str) -> bytes:
    """Return the hash of a text, of `HASH_BYTES`."""
    return blake2b(text.encode(), digest_size=HASH_BYTES).digest()


class HashTable:
    """The hashes of the texts of `count` rows, ordered by their first halves and then by row.

    `firsts` and `seconds` are the two halves and `rows` the rows that they are of, uint64 `[count]` each.
    """

    def __init__(self, table: NDArray[np.uint64]):
        self._table = table
        self.firsts, self.seconds, self.rows = table

    @classmethod
    def of(cls, hashes: bytes | bytearray) -> Self:
        """Sort the hashes of the rows, given one after the other."""
        halves = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        order = np.argsort(halves[:, 0], kind="stable")
        return cls(np.stack([halves[order, 0], halves[order, 1], order.astype(np.uint64)]))

    @classmethod
    def open(cls, folder: Path, name: str, count: int) -> Self:
        """Map the file that `save` wrote into memory.

        Raises IndexCorrupt.
        """
        return cls(open_array(folder / name, np.uint64, (3, count)))

    def save(self, folder: Path, name: str) -> None:
        """Write the table into a file in the folder of an index's version."""
        save_array(folder / name, self._table)

    def first_rows(self) -> NDArray[np.int64]:
        """Return for each row the first row that has the same text, int64 `[count]`."""
        is_first = np.ones(len(self.rows), bool)
        is_first[1:] = (self.firsts[1:] != self.firsts[:-1]) | (self.seconds[1:] != self.seconds[:-1])
        positions = np.maximum.accumulate(np.where(is_first, np.arange(len(self.rows)), 0))
        found = np.empty(len(self.rows), np.int64)
        found[self.rows] = self.rows[positions]
        return found

    def find_in(self, other: "HashTable") -> NDArray[np.int64]:
        """Return for each row a row of the other table with the same text, or -1; int64 `[count]`."""
        positions = np.searchsorted(other.firsts, self.firsts)
        positions[positions == len(other.rows)] = 0
        is_equal = (other.firsts[positions] == self.firsts) & (other.seconds[positions] == self.seconds)
        found = np.empty(len(self.rows), np.int64)
        found[self.rows] = np.where(is_equal, other.rows[positions].astype(np.int64), -1)
        return found

    def rows_of(self, hashes: bytes) -> NDArray[np.int64]:
        """Return all rows with one of these hashes, which are given one after the other, in ascending order."""
        halves = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        starts, ends = (np.searchsorted(self.firsts, halves[:, 0], side) for side in ("left", "right"))
        counts = ends - starts
        wanted = np.repeat(np.arange(len(halves)), counts)
        positions = np.arange(len(wanted)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        is_equal = self.seconds[positions] == halves[wanted, 1]
        return np.unique(self.rows[positions[is_equal]].astype(np.int64))
