"""Exact search for the k best vectors: upper bounds of scores rule most vectors out, and only the others are scored.

A score is the cosine, or a weighted cosine plus a number that is known for each document, such as its BM25 score.
"""

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.upper_bounds import (
    GROUP,
    NO_ROWS,
    Buffer,
    Candidates,
    Products,
    SharedProducts,
    UpperBounds,
)

#: Largest number of upper bounds in memory at a time: they take 16 MiB.
MAX_BOUNDS = 2**22

#: Largest share of rows whose codes are copied, so that only the bounds of these rows are computed. If more rows are
#: eligible, the bounds of all rows are computed, because reading all codes in order is faster.
MAX_COPIED_SHARE = 1 / 8

#: Largest number of vectors that are scored at a time: their copies stay in the processor's cache.
MAX_SCORED = 2**8

#: Bound of the rounding error of a float32 sum, relative to the terms of the sum.
_SUM_ERROR = 4e-6


class SearchThreads:
    """Threads for the searches in all indexes of a process; the number of threads may change. Thread-safe.

    They sleep between searches. BLAS's threads would spin, and take processors from the next forward pass.
    """

    def __init__(self, number: int = 1):
        self.resize(number)

    def resize(self, number: int) -> None:
        """Divide the next searches among `number` threads. Running searches keep their threads."""
        self._map: Any = ThreadPoolExecutor(number, "search").map if number > 1 else map

    def map(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Call the function for each item, as `map` does."""
        return self._map(function, *arguments)  # type: ignore[no-any-return]


#: Searches in the calling thread alone.
ONE_THREAD = SearchThreads()


class TopK(NamedTuple):
    """The rows with the highest scores, intp, and these scores, float32, best first: `[queries, k]`, or `[k]` for one.

    The rows of documents that were added since the build follow the rows of the version.
    """

    rows: NDArray[np.intp]
    scores: NDArray[np.float32]


class ExactSearch:
    """An exact search in `vectors`, float32 `[count, dimension]`, that uses their quantised copy. Thread-safe.

    The score is the inner product in float32. Large searches are divided among `threads`. Every search raises
    IndexError if the quantised copy belongs to other vectors.
    """

    def __init__(self, vectors: NDArray[np.float32], quantised: QuantisedVectors, threads: SearchThreads = ONE_THREAD):
        self._vectors = vectors
        self._quantised = quantised
        self._spare_buffers: list[Buffer] = []
        self._threads = threads

    def warm_up(self) -> None:
        """Read a byte of each page of the codes into memory."""
        np.add.reduce(self._quantised.codes.reshape(-1)[:: mmap.PAGESIZE], dtype=np.int64)

    def top_k(
        self,
        queries: NDArray[np.float32],
        k: int,
        hidden_rows: NDArray[np.int64] = NO_ROWS,
        eligible: NDArray[np.bool_] | None = None,
    ) -> TopK:
        """Find the `k` best-scoring rows for each query in `[queries, dimension]`, or all rows if there are fewer.

        `hidden_rows`, `[hidden]` in ascending order, are left out. If `eligible`, `[count]`, is given, only eligible
        rows are searched, and `hidden_rows` is ignored. If scores are equal, the lower row comes first.
        """
        rows, count = None, len(self._vectors)
        if eligible is not None:
            hidden_rows = NO_ROWS
            if (num_eligible := int(np.count_nonzero(eligible))) <= MAX_COPIED_SHARE * count:
                rows, count = np.flatnonzero(eligible), num_eligible
            elif num_eligible < count:
                hidden_rows = np.flatnonzero(~eligible)
        k = min(k, count - len(hidden_rows))
        return in_parts(queries, k, count, lambda part: self._top_k(part, k, hidden_rows, rows))

    def _top_k(
        self, queries: NDArray[np.float32], k: int, hidden_rows: NDArray[np.int64], rows: NDArray[np.int64] | None
    ) -> TopK:
        quantised = self._quantised.basis.encode_queries(queries)
        with self._buffer() as buffer:
            bounds = UpperBounds(self._quantised.codes, quantised.codes, buffer, self._threads.map, hidden_rows, rows)
            first = best_of(self._vectors, bounds.candidates(bounds.reached_by_k(k)), queries, k)
            # A row that scores at least the current k-th score has an upper bound of at least that score.
            candidates = bounds.candidates(quantised.thresholds(first.scores[:, -1]))
        return best_of(self._vectors, candidates, queries, k)

    @contextmanager
    def shared(self, queries: NDArray[np.float32]) -> Iterator[SharedProducts]:
        """Yield products for these queries, `[queries, dimension]`, which `top_with_prior` may use query by query."""
        with self._buffer() as buffer:
            yield SharedProducts(self._quantised, queries, buffer, self._threads.map)

    def top_with_prior(
        self,
        query: NDArray[np.float32],
        k: int,
        weight: float,
        prior: NDArray[np.float32],
        eligible: NDArray[np.bool_],
        shared: SharedProducts | None = None,
    ) -> TopK:
        """Find the `k` best-scoring eligible rows for one query. If scores are equal, the lower row comes first.

        A score is `weight` times the cosine plus `prior`; `prior` and `eligible` are `[count]`.
        """
        rows = np.arange(len(eligible)) if eligible.all() else np.flatnonzero(eligible)
        k = min(k, len(rows))
        if not k:
            return TopK(np.empty((1, 0), np.intp), np.empty((1, 0), np.float32))
        prior = prior if len(rows) == len(prior) else prior[rows]
        upper, slack = self._bounds_with_prior(query, weight, prior, rows, shared)

        def score(places: NDArray[np.intp]) -> NDArray[np.float32]:
            return scores_with_prior(self._vectors, rows[places], query, weight, prior[places])

        highest = upper
        if GROUP * 2 * k <= len(upper):
            # Each group has a row that reaches its highest bound, so at least k rows reach the k-th highest of these
            # bounds.
            highest = upper[: len(upper) - len(upper) % GROUP].reshape(GROUP, -1).max(axis=0)
        reached_by_k = float(np.partition(highest, len(highest) - k)[len(highest) - k])
        least = np.sort(score(_at_least(upper, reached_by_k)))[-k]
        places = _at_least(upper, float(least) - slack)
        if len(places) < k:
            raise IndexError(f"{len(places)} of {k} rows reach the score of the {k}th")
        return best_by_score(rows[places], score(places), k)

    def may_reach(
        self,
        score: float,
        query: NDArray[np.float32],
        weight: float,
        prior: NDArray[np.float32],
        eligible: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return a mask of the eligible rows that may reach `score` in `top_with_prior`. No vector is read.

        The mask has every row that reaches the score, and may have more.
        """
        rows = np.flatnonzero(eligible)
        found = np.zeros(len(eligible), bool)
        if len(rows):
            upper, slack = self._bounds_with_prior(query, weight, prior[rows], rows)
            found[rows[_at_least(upper, score - slack)]] = True
        return found

    def _bounds_with_prior(
        self,
        query: NDArray[np.float32],
        weight: float,
        prior: NDArray[np.float32],
        rows: NDArray[np.intp],
        shared: SharedProducts | None = None,
    ) -> tuple[NDArray[np.float32], float]:
        """Return a number for each row, float32 `[rows]`, and a slack: a score is at most the number plus the slack.

        `rows` are in ascending order, and `prior` has a number for each of them.
        """
        if not weight:  # the score is the prior alone
            return prior, 0.0
        count = len(self._vectors)
        is_few = len(rows) <= MAX_COPIED_SHARE * count
        if shared and not is_few and (found := shared.of(query)):
            return _bounds_of_sums(found, rows, weight, prior)
        quantised = self._quantised.basis.encode_queries(query[None])
        with self._buffer() as buffer:
            bounds = UpperBounds(
                self._quantised.codes, quantised.codes, buffer, self._threads.map, rows=rows if is_few else None
            )
            numbers = bounds.products(len(rows) if is_few else count)
            products = Products(numbers, float(quantised.units[0]), float(quantised.slacks[0]))
            return _bounds_of_sums(products, rows, weight, prior)

    @contextmanager
    def _buffer(self) -> Iterator[Buffer]:
        """Yield a buffer that no other search uses at the same time."""
        try:
            buffer = self._spare_buffers.pop()
        except IndexError:  # this is the first search, or other threads use all buffers
            buffer = Buffer()
        yield buffer
        self._spare_buffers.append(buffer)


def _bounds_of_sums(
    found: Products, rows: NDArray[np.intp], weight: float, prior: NDArray[np.float32]
) -> tuple[NDArray[np.float32], float]:
    products = found.products if len(rows) == len(found.products) else found.products[rows]
    upper = np.multiply(products, np.float32(weight * found.unit), dtype=np.float32)
    slack = weight * found.slack
    # The largest absolute value in each array, computed without an array of all absolute values.
    largest = [max(float(numbers.max()), -float(numbers.min())) for numbers in (upper, prior)]
    slack += _SUM_ERROR * (sum(largest) + slack)
    upper += prior
    return upper, slack


def _at_least(upper: NDArray[np.float32], threshold: float) -> NDArray[np.intp]:
    # A threshold is rounded to the next lower number, so that no row that reaches it is lost.
    return np.flatnonzero(upper >= np.nextafter(np.float32(threshold), np.float32(-np.inf)))


def in_parts(queries: NDArray[np.float32], k: int, count: int, top_k: Callable[[NDArray[np.float32]], TopK]) -> TopK:
    """Return the results of `top_k`, called for a few queries at a time, so that their bounds fit into `MAX_BOUNDS`."""
    if not k or not len(queries):
        return TopK(np.empty((len(queries), k), np.intp), np.empty((len(queries), k), np.float32))
    at_once = max(1, MAX_BOUNDS // count)
    found = [top_k(queries[start : start + at_once]) for start in range(0, len(queries), at_once)]
    return TopK(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def best_by_score(rows: NDArray[np.intp], scores: NDArray[np.float32], k: int) -> TopK:
    """Return the `k` rows with the highest scores for one query; if scores are equal, the lower row comes first."""
    best = np.argsort(-scores, kind="stable")[:k]
    return TopK(rows[best][None], scores[best][None])


def scores_with_prior(
    vectors: NDArray[np.float32],
    rows: NDArray[np.intp],
    query: NDArray[np.float32],
    weight: float,
    prior: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the scores of some rows: `weight` times the cosine plus `prior`, float32 `[rows]`."""
    if not weight:  # the scores are the prior alone
        return prior
    parts = [rows[start : start + MAX_SCORED] for start in range(0, len(rows), MAX_SCORED)]
    cosines = np.concatenate([np.empty(0, np.float32), *(np.vecdot(vectors[part], query) for part in parts)])
    return np.float32(weight) * cosines + prior


def best_of(vectors: NDArray[np.float32], candidates: Candidates, queries: NDArray[np.float32], k: int) -> TopK:
    """Return the `k` candidates with the highest scores for each query. Each query must have at least `k` candidates.

    If scores are equal, the lower row comes first.
    """
    rows, owners = candidates
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), MAX_SCORED):
        part = slice(start, start + MAX_SCORED)
        np.vecdot(vectors[rows[part]], queries[owners[part]], out=scores[part])
    order = np.lexsort((rows, -scores, owners))
    starts = np.searchsorted(owners, np.arange(len(queries)))
    best = order[starts[:, None] + np.arange(k)]
    return TopK(rows[best], scores[best])


def merged(found: TopK, added: TopK, count: int, k: int) -> TopK:
    """Return the best `k` among the rows `found` in a version and the `added` documents that were found.

    `count`, the number of rows in the version, is added to the row numbers of the added documents.
    """
    rows = np.concatenate([found.rows, added.rows + count], axis=1)
    scores = np.concatenate([found.scores, added.scores], axis=1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))
