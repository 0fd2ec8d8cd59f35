"""Exact search for many queries in one pass over an index, whatever its size. It is for builds, which wait for no one.

Searches one after the other would read all codes of a large index for each query.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.search import MAX_BOUNDS, TopK, best_of
from shoal_workers.index.vectors.upper_bounds import Buffer, Candidates, UpperBounds


def batch_top_k(
    vectors: NDArray[np.float32],
    quantised: QuantisedVectors,
    queries: NDArray[np.float32],
    k: int,
    report: Callable[[float], object] = lambda _: None,
    max_bounds: int = MAX_BOUNDS,
) -> TopK:
    """Find the `k` of `vectors`, `[count, dimension]`, of highest score for each query, as `ExactSearch.top_k` does.

    `report` is called with the part of the vectors that is read. At most `max_bounds` upper bounds are held at a time,
    and at least `k` for each query. Raises IndexError if the quantised copy is not of these vectors.
    """
    count, k = len(vectors), min(k, len(vectors))
    if not len(queries):
        return TopK(np.empty((0, k), np.intp), np.empty((0, k), np.float32))
    codes, encoded, buffer = quantised.codes, quantised.basis.encode_queries(queries), Buffer()
    num_rows = max(k, max_bounds // len(queries))
    pairs = np.empty(0, np.intp)
    for start in range(0, count, num_rows):
        report(start / count)
        bounds = UpperBounds(codes[start : start + num_rows], encoded.codes, buffer)
        if not start:
            found = best_of(vectors, bounds.candidates(bounds.reached_by_k(k)), queries, k)
        # A row that scores at least the current k-th score has an upper bound of at least that score.
        candidates = bounds.candidates(encoded.thresholds(found.scores[:, -1]))
        added = candidates.queries * count + candidates.rows + start
        owners, rows = np.divmod(np.union1d(pairs, added), count)
        found = best_of(vectors, Candidates(rows, owners), queries, k)
        pairs = (np.arange(len(queries))[:, None] * count + found.rows).ravel()
    return found
