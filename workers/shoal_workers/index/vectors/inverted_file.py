"""An inverted file: the rows of an index in cells of nearby vectors, so that a search looks into the cells near it.

Inverted files are those of Jégou, Douze and Schmid, "Product Quantization for Nearest Neighbor Search", PAMI 2011. In
place of a fixed number of cells, a search reads those whose centroids score nearly as high as the nearest one: few for
a query like the documents, and many for one that is far from all of them.

Each row has one bit for each of its codes: its sign. Of two vectors, the share of the bits that differ estimates the
angle between them, as Charikar, "Similarity Estimation Techniques from Rounding Algorithms", STOC 2002, says; the
directions of codes are turned at random for that.
"""

import math
import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.manifest import CELL_BITS, CELL_ROWS, CELL_STARTS, CENTROIDS
from shoal_workers.index.vectors.quantisation import QuantisationBasis
from shoal_workers.index.vectors.search import SearchThreads

#: Bits of a word.
WORD = 64

#: Margins are counted from the cell with which the nearest cells first hold this many eligible rows.
NUM_NEAREST = 1_000

#: One row in this many is sampled, to estimate how many rows of a cell are eligible and how far away the rows that are
#: read lie.
STEP = 16


#: Rows that a thread reads at a time, about: with fewer, two threads wait for each other.
BLOCK = 2**17

#: The distance of a row that is not eligible.
FAR = int(np.iinfo(np.uint16).max)


def binary(codes: NDArray[np.int8]) -> NDArray[np.uint64]:
    """Return the bits of codes, int8 `[rows, width]`: uint64 `[width / 64, rows]`."""
    return np.ascontiguousarray(np.packbits(codes > 0, axis=1).view("<u8").T)


def expected_distance(score: float, basis: QuantisationBasis) -> float:
    """Return how many bits of two vectors of length one with this score differ, about."""
    num_bits: int = basis.directions.shape[1]
    return num_bits * math.acos(min(1, max(-1, score))) / math.pi


class _Scratch(threading.local):
    """Memory for the distances of a block, one for each thread: new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._differing = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.uint8)

    def of(self, num_rows: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return memory for `num_rows` rows."""
        if len(self._counts) < num_rows:
            self._differing, self._counts = np.empty(num_rows, np.uint64), np.empty(num_rows, np.uint8)
        return self._differing[:num_rows], self._counts[:num_rows]


_scratch = _Scratch()


def hamming(
    words: NDArray[np.uint64], query: NDArray[np.uint64], spans: NDArray[np.int64], out: NDArray[np.uint16]
) -> None:
    """Write into `out`, `[rows]`, how many bits of some rows of `[words, count]` differ from those of a query.

    The rows are those of the spans, `[spans, 2]`, from the first to before the second. The query is `[words]`.
    """
    differing, counts = _scratch.of(len(out))
    ends = np.cumsum(spans[:, 1] - spans[:, 0]).tolist()
    places = [differing[start:end] for start, end in pairwise([0, *ends])]
    out[:] = 0
    for word, of_query in zip(words, query, strict=True):
        for (start, end), place in zip(spans.tolist(), places, strict=True):
            np.bitwise_xor(word[start:end], of_query, out=place)
        np.bitwise_count(differing, out=counts)
        out += counts


class Reading(NamedTuple):
    """Rows of some cells, int32 `[read]`, and how many of their bits differ from a query's, uint16 `[read]`.

    The distance of those that are not eligible is `FAR`.
    """

    rows: NDArray[np.int32]
    distances: NDArray[np.uint16]

    def nearest(self, least: int, farthest: float = 0) -> NDArray[np.int64]:
        """Return the eligible rows of at most the distance `farthest`, and about `least` or all, in ascending order.

        They are those of the least distances, which a part of the rows tells.
        """
        sampled = self.distances[::STEP]
        place = math.ceil(least / STEP)
        if place < np.count_nonzero(sampled != FAR):
            farthest = max(farthest, int(np.partition(sampled, place)[place]))
        else:
            farthest = FAR - 1
        return np.sort(self.rows[np.flatnonzero(self.distances <= farthest)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """The cells of an index.

    `centroids`, float32 `[cells, dimension]`, are the directions of the cells. Cell `n` has the `rows`, int32
    `[count]`, from `starts[n]` to `starts[n + 1]`, in ascending order; `words`, uint64 `[words, count]`, are the bits
    of these rows.
    """

    centroids: NDArray[np.float32]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    words: NDArray[np.uint64]

    @classmethod
    def open(cls, folder: Path, count: int, dimension: int, width: int, num_cells: int) -> Self:
        """Map the files that a build wrote into memory; `width` is that of the codes.

        Raises IndexCorrupt.
        """
        starts = open_array(folder / CELL_STARTS, np.int64, (num_cells + 1,))
        if starts[0] != 0 or starts[-1] != count or (starts[1:] <= starts[:-1]).any():
            raise IndexCorrupt(f"{folder / CELL_STARTS} does not say where cells begin: build the index again")
        return cls(
            open_array(folder / CENTROIDS, np.float32, (num_cells, dimension)),
            starts,
            open_array(folder / CELL_ROWS, np.int32, (count,)),
            open_array(folder / CELL_BITS, np.uint64, (width // WORD, count)),
        )

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows in each cell."""
        return np.diff(self.starts)

    @cached_property
    def _sample(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Every `STEP`-th row of the cells, and the cell of each."""
        places = np.arange(0, len(self.rows), STEP)
        return self.rows[places], np.searchsorted(self.starts, places, side="right") - 1

    def near(
        self, query: NDArray[np.float32], margin: float, least: int, eligible: NDArray[np.bool_] | None
    ) -> NDArray[np.intp]:
        """Return the cells whose centroids score at most `margin` less than the nearest one, in ascending order.

        There are more if these have fewer than about `least` rows that are `eligible`, `[count]`. Where that is given,
        the nearest cell is the last of those that have `NUM_NEAREST` eligible rows.
        """
        counts = self.sizes if eligible is None else self._num_eligible(eligible)
        scores = self.centroids @ query
        order = np.argsort(-scores)
        ends = np.cumsum(counts[order])
        nearest = order[min(int(np.searchsorted(ends, NUM_NEAREST)), len(order) - 1)]
        num_near = np.count_nonzero(scores >= scores[nearest] - margin)
        return np.sort(order[: max(num_near, int(np.searchsorted(ends, least)) + 1)])

    def _num_eligible(self, eligible: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return about how many rows of each cell are eligible."""
        rows, cells = self._sample
        return STEP * np.bincount(cells[eligible[rows]], minlength=len(self.sizes))

    def read(
        self,
        cells: NDArray[np.intp],
        query: NDArray[np.uint64],
        eligible: NDArray[np.bool_] | None,
        threads: SearchThreads,
    ) -> Reading:
        """Return the rows of some cells, in ascending order, and their distances from a query's bits, `[words]`."""
        sizes = self.sizes[cells]
        ends = np.cumsum(sizes)
        found = Reading(np.empty(ends[-1], np.int32), np.empty(ends[-1], np.uint16))
        firsts = np.unique(np.searchsorted(ends, np.arange(0, ends[-1], BLOCK), side="right"))

        def read(first: int, last: int) -> None:
            spans = np.stack([self.starts[cells[first:last]], self.starts[cells[first:last] + 1]], axis=1)
            part = slice(ends[first] - sizes[first], ends[last - 1])
            np.concatenate([self.rows[start:end] for start, end in spans.tolist()], out=found.rows[part])
            hamming(self.words, query, spans, found.distances[part])
            if eligible is not None:
                found.distances[part][~eligible.take(found.rows[part])] = FAR

        for _ in threads.map(read, firsts.tolist(), [*firsts[1:].tolist(), len(cells)]):
            pass
        return found
