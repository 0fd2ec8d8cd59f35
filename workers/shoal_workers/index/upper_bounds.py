"""Upper bounds of many scores, and which of them are high enough."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

#: UpperBounds in a group, of which the highest is kept: only groups whose highest is high enough are looked into.
GROUP = 32

#: UpperBounds computed at a time by one thread: they stay in its cache until their groups' highest are found.
MAX_BLOCK = 2**17

#: Rows and, for each, the number of its query; ordered by query, then by row.
Found = tuple[NDArray[np.intp], NDArray[np.intp]]

Map = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]


class Memory:
    """Room for a table, kept from one search to the next: new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._room: Any = numkong.empty(0, dtype="int32")

    def table(self, num_rows: int, num_columns: int) -> Any:
        """A table in it, with whatever was there before."""
        size = num_rows * num_columns
        if self._room.size < size:
            self._room = numkong.empty(size, dtype="int32")
        return self._room[:size].reshape(num_rows, num_columns)


class UpperBounds:
    """The products of all codes of a sketch with those of some queries, in `memory` that nothing else uses meanwhile.

    Rows are cut into blocks. A group is every so many rows of a block, so that the highest of all groups of a block are
    found by comparing whole runs of memory.
    """

    def __init__(self, codes: NDArray[np.int8], queries: NDArray[np.int8], memory: Memory, each: Map = map):
        num_blocks, self._num_groups = _shape(len(codes), len(queries))
        self._block = GROUP * self._num_groups
        self._codes = codes
        self._queries = numkong.dots_pack(queries, dtype="int8")
        self._table = memory.table(num_blocks * self._block, len(queries))
        self._bounds = np.asarray(self._table)
        self._bounds[len(codes) :] = np.iinfo(np.int32).min
        self._highest = np.empty((num_blocks * self._num_groups, len(queries)), np.int32)
        for _ in (map if num_blocks == 1 else each)(self._compute, range(num_blocks)):
            pass

    def _compute(self, block: int) -> None:
        start, end = block * self._block, (block + 1) * self._block
        if codes := len(part := self._codes[start:end]):
            numkong.dots_packed(part, self._queries, out=self._table[start : start + codes, :])
        highest = self._highest[block * self._num_groups : (block + 1) * self._num_groups]
        self._bounds[start:end].reshape(GROUP, *highest.shape).max(axis=0, out=highest)

    def reached_by(self, k: int) -> NDArray[np.int32]:
        """A bound for each query that at least `k` rows reach, but few more; `k` is at most the number of rows."""
        # Up to half of the groups may lie behind the last row.
        candidates = self._highest if 2 * k <= len(self._highest) else self._bounds
        place = len(candidates) - k
        return np.asarray(np.partition(candidates, place, axis=0)[place])

    def at_least(self, least: NDArray[np.int32]) -> Found:
        """The rows whose bound is `least` of their query or more."""
        groups, queries = np.divmod(np.flatnonzero(self._highest >= least), len(least))
        blocks, places = np.divmod(groups, self._num_groups)
        rows = blocks * self._block + places + self._num_groups * np.arange(GROUP)[:, None]
        queries = np.broadcast_to(queries, rows.shape)
        high = self._bounds[rows, queries] >= least[queries]
        rows, queries = rows[high], queries[high]
        order = np.lexsort((rows, queries))
        return rows[order], queries[order]


def _shape(count: int, num_queries: int) -> tuple[int, int]:
    """How many blocks, and how many groups in each."""
    most = max(1, MAX_BLOCK // (GROUP * num_queries))
    num_blocks = math.ceil(count / (GROUP * most))
    return num_blocks, math.ceil(count / (GROUP * num_blocks))
