"""The vectors nearest to a query, exactly: a sketch tells which may be among them, and only those are scored."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.quantised import Sketch
from shoal_workers.index.upper_bounds import Found, Memory, UpperBounds

#: Most bounds held at a time, to limit memory: 16 MiB.
MAX_BOUNDS = 2**22

#: Most vectors scored at a time: copies of so many stay in the processor's cache.
MAX_SCORED = 2**8

#: Rows of the best vectors of each query, and their scores, best first.
Best = tuple[NDArray[np.intp], NDArray[np.float32]]


class ExactSearch:
    """Searches `vectors` `[count, dimension]` with their sketch. Thread-safe.

    The score is the dot product in float32, and equal vectors have equal scores. Threads of its own, which sleep in
    between, share large searches. BLAS's would go on spinning and take the processors from the next forward pass.
    """

    def __init__(self, vectors: NDArray[np.float32], sketch: Sketch, threads: int = 1):
        self._vectors = vectors
        self._sketch = sketch
        self._spare: list[Memory] = []
        self._each: Any = ThreadPoolExecutor(threads).map if threads > 1 else map

    def find(self, queries: NDArray[np.float32], k: int) -> Best:
        """The `k` best for each of `[queries, dimension]`, all if there are fewer; of equal scores, the lower row."""
        count = len(self._vectors)
        k = min(k, count)
        at_once = max(1, MAX_BOUNDS // count)
        found = [self._find(queries[start : start + at_once], k) for start in range(0, len(queries), at_once)]
        if not found:
            return np.empty((0, k), np.intp), np.empty((0, k), np.float32)
        rows, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, scores

    def _find(self, queries: NDArray[np.float32], k: int) -> Best:
        projection = self._sketch.project(queries)
        memory = self._take_memory()
        bounds = UpperBounds(self._sketch.codes, projection.codes, memory, self._each)
        _, scores = self._best(bounds.at_least(bounds.reached_by(k)), queries, k)
        # What is as good as the worst of these has a bound that allows for its score.
        found = bounds.at_least(projection.bounds_of(scores[:, -1]))
        self._spare.append(memory)
        return self._best(found, queries, k)

    def _take_memory(self) -> Memory:
        try:
            return self._spare.pop()
        except IndexError:  # this thread is the first, or others have them
            return Memory()

    def _best(self, found: Found, queries: NDArray[np.float32], k: int) -> Best:
        rows, owners = found
        scores = self._scores(rows, queries, owners)
        order = np.lexsort((rows, -scores, owners))
        starts = np.searchsorted(owners, np.arange(len(queries)))
        best = order[starts[:, None] + np.arange(k)]
        return rows[best], scores[best]

    def _scores(
        self, rows: NDArray[np.intp], queries: NDArray[np.float32], owners: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        scores = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), MAX_SCORED):
            part = slice(start, start + MAX_SCORED)
            np.vecdot(self._vectors[rows[part]], queries[owners[part]], out=scores[part])
        return scores
