"""Upper bounds of the scores of many vectors for some queries, and the rows whose bounds reach a threshold.

One pass over the codes for several queries takes little longer than for one query, because each code is read once.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numkong
import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.vectors.quantisation import QuantisedVectors

#: Number of rows in a group. Only groups whose highest bound reaches a threshold are searched for rows.
GROUP = 32

#: Largest number of bounds that one thread computes at a time: they stay in its cache until the highest bound of each
#: group is found.
MAX_BLOCK = 2**17

#: No rows, for a search that leaves none out.
NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)

#: A bound that is lower than any product of codes, for a row that must not be found.
LOWEST = int(np.iinfo(np.int32).min)

Map = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]

#: Largest number of queries in one pass over the codes: the products of a row with all these queries fill a cache line.
MAX_QUERIES = 16

#: Largest number of products in memory at a time: they take 16 MiB.
MAX_PRODUCTS = 2**22


class Candidates(NamedTuple):
    """Pairs of a row and the number of its query, ordered by query, then by row."""

    rows: NDArray[np.intp]
    queries: NDArray[np.intp]


class Buffer:
    """Memory for a matrix that searches use in turn, because new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._memory: Any = numkong.empty(0, dtype="int32")

    def matrix(self, num_rows: int, num_columns: int) -> Any:
        """Return an int32 matrix in this memory, which still contains the numbers of its last use."""
        size = num_rows * num_columns
        if self._memory.size < size:
            self._memory = numkong.empty(size, dtype="int32")
        return self._memory[:size].reshape(num_rows, num_columns)


class UpperBounds:
    """The products of an index's codes, int8 `[count, width]`, with codes of queries, int8 `[queries, width]`.

    The products are in `buffer`, which must not be used for anything else as long as they are needed. Rows are divided
    into blocks, and a group is every n-th row of a block, so that the highest bounds of all its groups are found by
    comparing contiguous memory. `run` maps a function over the blocks, as `map` does or on several threads. The bounds
    of `hidden_rows`, int64 `[hidden]` in ascending order, are the lowest, so that these rows are never candidates. If
    `rows`, int64 `[rows]`, are given, only these rows are searched.
    """

    def __init__(
        self,
        codes: NDArray[np.int8],
        queries: NDArray[np.int8],
        buffer: Buffer,
        run: Map = map,
        hidden_rows: NDArray[np.int64] = NO_ROWS,
        rows: NDArray[np.int64] | None = None,
    ):
        count = len(codes) if rows is None else len(rows)
        most_groups = max(1, MAX_BLOCK // (GROUP * len(queries)))
        num_blocks = math.ceil(count / (GROUP * most_groups))
        self._num_groups = math.ceil(count / (GROUP * num_blocks))
        self._block = GROUP * self._num_groups
        self._codes = codes
        self._rows = rows
        self._hidden_rows = hidden_rows
        self._queries = numkong.dots_pack(queries, dtype="int8")
        self._matrix = buffer.matrix(num_blocks * self._block, len(queries))
        self._bounds = np.asarray(self._matrix)
        self._bounds[count:] = LOWEST
        self._highest = np.empty((num_blocks * self._num_groups, len(queries)), np.int32)
        for _ in (map if num_blocks == 1 else run)(self._compute, range(num_blocks)):
            pass

    def _compute(self, block: int) -> None:
        start, end = block * self._block, (block + 1) * self._block
        part = self._codes[start:end] if self._rows is None else self._codes.take(self._rows[start:end], axis=0)
        if num_codes := len(part):
            numkong.dots_packed(part, self._queries, out=self._matrix[start : start + num_codes, :])
        first, last = np.searchsorted(self._hidden_rows, (start, end))
        self._bounds[self._hidden_rows[first:last]] = LOWEST
        highest = self._highest[block * self._num_groups : (block + 1) * self._num_groups]
        self._bounds[start:end].reshape(GROUP, *highest.shape).max(axis=0, out=highest)

    def products(self, count: int, query: int = 0) -> NDArray[np.int32]:
        """Return the products of all `count` rows with the query of the given number; they stay in `buffer`."""
        return self._bounds[:count, query]

    def reached_by_k(self, k: int) -> NDArray[np.int32]:
        """Return a threshold for each query. At least `k` rows reach it, and few more.

        `k` is at most the number of rows that are not hidden.
        """
        # Each group has a row that reaches its highest bound. Up to half of the groups may lie after the last row, and
        # all rows of a group may be hidden.
        if 2 * k <= len(self._highest) and (reached := _reached_by(self._highest, k)).min() > LOWEST:
            return reached
        return _reached_by(self._bounds, k)

    def candidates(self, thresholds: NDArray[np.int32]) -> Candidates:
        """Return, for each query, the rows whose bounds reach the query's threshold."""
        groups, queries = np.divmod(np.flatnonzero(self._highest >= thresholds), len(thresholds))
        blocks, offsets = np.divmod(groups, self._num_groups)
        rows = blocks * self._block + offsets + self._num_groups * np.arange(GROUP)[:, None]
        members, columns = np.nonzero(self._bounds[rows, queries] >= thresholds[queries])
        rows, queries = rows[members, columns], queries[columns]
        if self._rows is not None:
            rows = self._rows[rows]
        order = np.lexsort((rows, queries))
        return Candidates(rows[order], queries[order])


def _reached_by(bounds: NDArray[np.int32], k: int) -> NDArray[np.int32]:
    """Return the `k`-th highest bound of each column."""
    position = len(bounds) - k
    return np.asarray(np.partition(bounds, position, axis=0)[position])


class Products(NamedTuple):
    """The products of all codes with a query, int32 `[count]`, and the query's unit and slack."""

    products: NDArray[np.int32]
    unit: float
    slack: float


class SharedProducts:
    """Computes the products for `queries`, float32 `[queries, dimension]`, a few queries at a time. Not thread-safe.

    The last products that were computed are in `buffer`, which must not be used for anything else as long as this
    object is in use.
    """

    def __init__(self, quantised: QuantisedVectors, queries: NDArray[np.float32], buffer: Buffer, run: Map):
        self._quantised = quantised
        self._queries = queries
        self._buffer = buffer
        self._run = run
        self._places = {query.tobytes(): place for place, query in enumerate(queries)}
        self._at_once = max(1, min(MAX_QUERIES, MAX_PRODUCTS // len(quantised.codes)))
        self._start = -1

    def of(self, query: NDArray[np.float32]) -> Products | None:
        """Return the products for one of the queries, valid until the next call; None for any other query."""
        if (place := self._places.get(query.tobytes())) is None:
            return None
        if (start := place - place % self._at_once) != self._start:
            self._start = start
            self._codes = self._quantised.basis.encode_queries(self._queries[start : start + self._at_once])
            self._bounds = UpperBounds(self._quantised.codes, self._codes.codes, self._buffer, self._run)
        number, codes = place - start, self._codes
        products = self._bounds.products(len(self._quantised.codes), number)
        return Products(products, float(codes.units[number]), float(codes.slacks[number]))
