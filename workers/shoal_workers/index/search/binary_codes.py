"""Vectors as one bit for each of their codes: its sign. Few bits of near vectors differ.

Of two vectors, the share of the bits that differ estimates the angle between them, as Charikar, "Similarity Estimation
Techniques from Rounding Algorithms", STOC 2002, says; the directions of codes are turned at random for that.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.array_file import open_array, write_header
from shoal_workers.index.files.manifest import BINARY

#: Bits of a word.
WORD = 64

#: Rows whose bits are compared at a time: with fewer, two threads wait for each other.
BLOCK = 2**18

#: Rows of which the distances to a query tell how far away the nearest ones are.
NUM_SAMPLED = 2**15


def binary(codes: NDArray[np.int8]) -> NDArray[np.uint64]:
    """Return the bits of codes, int8 `[rows, width]`: uint64 `[width / 64, rows]`."""
    return np.ascontiguousarray(np.packbits(codes > 0, axis=1).view("<u8").T)


@dataclass(frozen=True, slots=True, eq=False)
class BinaryCodes:
    """The bits of an index, uint64 `[words, count]`, and those of some of its rows, every `step`-th one."""

    words: NDArray[np.uint64]
    sample: NDArray[np.uint64]
    step: int

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.words.shape[1])

    @classmethod
    def of(cls, words: NDArray[np.uint64]) -> Self:
        """Take a sample of the bits."""
        step = math.ceil(words.shape[1] / NUM_SAMPLED)
        return cls(words, np.ascontiguousarray(words[:, ::step]), step)

    @classmethod
    def open(cls, folder: Path, count: int, width: int) -> Self:
        """Map the file that `write` wrote into memory.

        Raises IndexCorrupt.
        """
        return cls.of(open_array(folder / BINARY, np.uint64, (width // WORD, count)))

    @staticmethod
    def write(folder: Path, codes: NDArray[np.int8], report: Callable[[float], object]) -> None:
        """Write the bits of codes, `[count, width]`, into the folder of a version.

        `report` is called with the part of them that is written.
        """
        count, width = codes.shape
        with (folder / BINARY).open("wb") as file:
            write_header(file, np.uint64, (width // WORD, count))
            for first in range(0, width, WORD):
                for start in range(0, count, BLOCK):
                    report((first + WORD * start / count) / width)
                    file.write(binary(codes[start : start + BLOCK, first : first + WORD]).tobytes())

    def distances(self, query: NDArray[np.uint64], start: int = 0) -> NDArray[np.uint16]:
        """Return how many bits of a query, `[words]`, differ from those of the `BLOCK` rows from `start` on.

        They lie in memory of this thread, which its next call overwrites.
        """
        return hamming(self.words[:, start : start + BLOCK], query)

    def all_distances(self, query: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """Return how many bits of a query, `[words]`, differ from those of each row: uint16 `[count]`."""
        starts = range(0, self.count, BLOCK)
        return np.concatenate([self.distances(query, start).copy() for start in starts])

    def nearest(self, query: NDArray[np.uint64], share: float, eligible: NDArray[np.bool_] | None = None) -> int:
        """Return a distance from a query, `[words]`, within which about a `share` of all rows lie.

        With `eligible`, `[count]`, it is one within which as many of these lie.
        """
        distances = hamming(self.sample, query)
        number = math.ceil(share * len(distances))
        if eligible is not None:
            distances = distances[eligible[:: self.step]]
        return int(np.partition(distances, number - 1)[number - 1]) if number < len(distances) else WORD * len(query)


class _Scratch(threading.local):
    """Memory for the distances of a block, one for each thread: new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self.differing = np.empty(BLOCK, np.uint64)
        self.counts = np.empty(BLOCK, np.uint8)
        self.sums = np.empty(BLOCK, np.uint16)


_scratch = _Scratch()


def hamming(words: NDArray[np.uint64], query: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Return how many bits of `[words, rows]`, at most `BLOCK` rows, differ from those of a query: uint16 `[rows]`.

    They lie in memory of this thread, which its next call overwrites.
    """
    num_rows = words.shape[1]
    differing, counts, sums = _scratch.differing[:num_rows], _scratch.counts[:num_rows], _scratch.sums[:num_rows]
    sums[:] = 0
    for word, of_query in zip(words, query, strict=True):
        np.bitwise_xor(word, of_query, out=differing)
        np.bitwise_count(differing, out=counts)
        sums += counts
    return sums
