"""Approximate search: the rows whose bits are nearest to those of a query are searched, exactly."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.search.binary_codes import BLOCK, WORD, BinaryCodes, binary
from shoal_workers.index.search.quantisation import QuantisationBasis
from shoal_workers.index.search.ranking import MAX_RANKED
from shoal_workers.index.search.search import ExactSearch, TopK
from shoal_workers.index.search.search_threads import ONE_THREAD, SearchThreads
from shoal_workers.index.search.upper_bounds import NO_ROWS

#: Least rows that are searched exactly: a ranking is never longer than half of them.
LEAST_CANDIDATES = 2 * MAX_RANKED

#: Least rows of an index that has bits: of fewer, most would be candidates. Exact search is the quicker one up to some
#: hundred thousand (docs/large-indexes.md).
LEAST_ROWS = 25_000

#: Rows whose bits are compared in the time in which the codes of a row are copied.
COMPARED_PER_COPIED = 20


class ApproximateSearch:
    """A search of the `num_candidates` rows whose bits are nearest. Thread-safe.

    These rows depend on the query and on the rows that may be found, and not on how many are asked for: a longer
    ranking begins with a shorter one. Their number is estimated, and so a little more or less.
    """

    def __init__(
        self,
        exact_search: ExactSearch,
        basis: QuantisationBasis,
        codes: BinaryCodes,
        num_candidates: int,
        threads: SearchThreads = ONE_THREAD,
    ):
        self._exact_search = exact_search
        self._basis = basis
        self._codes = codes
        self._count = codes.count
        self._num_candidates = num_candidates
        self._threads = threads

    def is_quicker(self, num_eligible: int) -> bool:
        """Return True if it is quicker than an exact search of so many rows."""
        return num_eligible > self._num_candidates + self._count / COMPARED_PER_COPIED

    def top_k(
        self,
        queries: NDArray[np.float32],
        k: int,
        hidden_rows: NDArray[np.int64] = NO_ROWS,
        eligible: NDArray[np.bool_] | None = None,
    ) -> TopK:
        """Find rows of high score for each of `[queries, dimension]`, as `ExactSearch.top_k` does.

        At least `k` rows must be eligible, and `k` is at most `MAX_RANKED`. Scores are exact; a row whose bits are not
        among the nearest is not found.
        """
        bits = binary(self._basis.encode_queries(queries).codes).T
        found = [
            self._exact_search.top_k_among(query, k, self.candidates(of_query, hidden_rows, eligible))
            for query, of_query in zip(queries, bits, strict=True)
        ]
        return TopK(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def candidates(
        self, query: NDArray[np.uint64], hidden_rows: NDArray[np.int64], eligible: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Return the rows whose bits are nearest to those of a query, `[words]`, in ascending order."""
        farthest = self._codes.nearest(query, self._num_candidates / self._count, eligible)
        while True:
            rows = np.concatenate([*self._within(farthest, query, hidden_rows, eligible)])
            if len(rows) >= MAX_RANKED or farthest >= WORD * len(query):
                return rows
            farthest += len(query)

    def _within(
        self,
        farthest: int,
        query: NDArray[np.uint64],
        hidden_rows: NDArray[np.int64],
        eligible: NDArray[np.bool_] | None,
    ) -> Iterator[NDArray[np.int64]]:
        """Return an iterator over the rows within a distance from a query, block by block."""

        def of_block(start: int) -> NDArray[np.int64]:
            is_near = self._codes.distances(query, start) <= farthest
            first, last = np.searchsorted(hidden_rows, (start, start + BLOCK))
            is_near[hidden_rows[first:last] - start] = False
            if eligible is not None:
                is_near &= eligible[start : start + BLOCK]
            return np.flatnonzero(is_near) + start

        return self._threads.map(of_block, range(0, self._count, BLOCK))
