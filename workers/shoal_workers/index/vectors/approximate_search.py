"""Approximate search: of the rows in the cells near a query, those whose bits are near are searched exactly.

How near is told by the query's own scores: of two vectors with a score, so many bits differ as their angle says, more
or less. A query that is far from all documents then has more candidates than one that is near to some.
"""

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.vectors.inverted_file import InvertedFile, Reading, binary, expected_distance
from shoal_workers.index.vectors.quantisation import QuantisationBasis
from shoal_workers.index.vectors.ranking import MAX_RANKED
from shoal_workers.index.vectors.search import ONE_THREAD, ExactSearch, SearchThreads, TopK

#: Least rows that are searched exactly: a ranking is never longer than half of them.
LEAST_CANDIDATES = 2 * MAX_RANKED

#: About so many rows with the nearest bits are scored first. The score of this hit among them tells how many bits of a
#: candidate may differ from the query's.
NUM_PROBED, PROBED_HIT = 1_000, 10

#: Rows from which on an approximate search is quicker than an exact one (docs/experiments.md).
LEAST_ROWS = 300_000


class ApproximateSearch:
    """A search of the rows of cells whose centroids score at most `margin` less than the nearest one. Thread-safe.

    Of these rows, those are searched exactly of whose bits at most `bit_margin` more differ than are expected of the
    10th hit, and at least `LEAST_CANDIDATES`. They depend on the query and on the rows that may be found, and not on
    how many are asked for: a longer ranking begins with a shorter one.
    """

    def __init__(
        self,
        exact_search: ExactSearch,
        basis: QuantisationBasis,
        file: InvertedFile,
        margin: float,
        bit_margin: float,
        threads: SearchThreads = ONE_THREAD,
        least_rows: int = LEAST_ROWS,
    ):
        self._exact_search = exact_search
        self._basis = basis
        self._file = file
        self._margin, self._bit_margin = margin, bit_margin
        self._threads = threads
        self._least_rows = least_rows

    def is_quicker(self, num_eligible: int) -> bool:
        """Return True if it is quicker than an exact search of `num_eligible` rows."""
        # Codes of a part are copied to be searched exactly, and an approximate search reads more cells for it.
        return len(self._file.rows) >= self._least_rows and 2 * num_eligible >= self._least_rows

    def top_k(self, queries: NDArray[np.float32], k: int, eligible: NDArray[np.bool_]) -> TopK:
        """Find `eligible` rows, `[count]`, of high score for each of `[queries, dimension]`, best first.

        At least `k` rows must be eligible, and `k` is at most `MAX_RANKED`. Scores are exact; a row that is not among
        the candidates is not found.
        """
        found = [self._exact_search.top_k_among(query, k, self.candidates(query, eligible)) for query in queries]
        return TopK(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def candidates(self, query: NDArray[np.float32], eligible: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the rows that are searched exactly for a query, `[dimension]`, in ascending order."""
        bits = binary(self._basis.encode_queries(query[None]).codes)[:, 0]
        wanted = None if eligible.all() else eligible
        cells = self._file.near(query, self._margin, LEAST_CANDIDATES, wanted)
        reading = self._file.read(cells, bits, wanted, self._threads)
        rows = reading.nearest(LEAST_CANDIDATES, self._farthest(query, reading))
        return rows if len(rows) >= MAX_RANKED else np.flatnonzero(eligible)

    def _farthest(self, query: NDArray[np.float32], reading: Reading) -> float:
        """Return how many bits of a candidate may differ from those of the query, by the scores of the nearest rows."""
        probed = self._exact_search.top_k_among(query, PROBED_HIT, reading.nearest(NUM_PROBED))
        score = float(probed.scores.min(initial=1))
        return expected_distance(score, self._basis) + self._bit_margin
