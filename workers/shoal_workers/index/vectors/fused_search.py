"""Exact search by a weighted cosine plus a number that is known of each document beforehand, such as its BM25 score.

A cosine is at most its upper bound, so the score of a document is at most the weighted bound plus that number: rows
whose sum does not reach the `k`-th best score found so far are never scored.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.vectors.quantisation import QuantisedQueries
from shoal_workers.index.vectors.upper_bounds import GROUP

#: Rounding in float32 that is allowed for in a sum, as a part of its terms.
_ERROR = 4e-6

#: Most vectors scored at a time: copies of so many stay in the processor's cache.
_MAX_SCORED = 2**8


class Prior(NamedTuple):
    """The part of scores that is known before vectors are read: a score is `weight` times the cosine plus this part.

    `of_version` is float32 `[count]`, and `of_added`, float32 `[added]`, is of those that were added since the build.
    """

    weight: float
    of_version: NDArray[np.float32]
    of_added: NDArray[np.float32]


class FusedCandidates:
    """The rows whose scores can reach a threshold: none is higher than `upper`, float32 `[rows]`, plus `slack`."""

    def __init__(self, upper: NDArray[np.float32], slack: float = 0.0):
        self._upper = upper
        self._slack = slack

    @classmethod
    def of(
        cls, products: NDArray[np.int32], quantised: QuantisedQueries, weight: float, prior: NDArray[np.float32]
    ) -> Self:
        """Return those of rows whose codes have these products with the one query of `quantised`, and this prior."""
        unit = weight * float(quantised.units[0])
        upper = np.multiply(products, np.float32(unit), dtype=np.float32)
        slack = weight * float(quantised.slacks[0])
        slack += _ERROR * (_largest(upper) + _largest(prior) + slack)
        upper += prior
        return cls(upper, slack)

    def best(self, k: int) -> NDArray[np.intp]:
        """Return the places of at least `k` rows with the highest bounds, but of few more."""
        highest = self._upper
        if GROUP * 2 * k <= len(highest):
            # Each group has a row that reaches its highest bound.
            whole = len(highest) - len(highest) % GROUP
            highest = highest[:whole].reshape(GROUP, -1).max(axis=0)
        place = len(highest) - k
        return self._at_least(float(np.partition(highest, place)[place]))

    def reaching(self, score: float) -> NDArray[np.intp]:
        """Return the places of all rows that may have at least this score."""
        return self._at_least(score - self._slack)

    def _at_least(self, threshold: float) -> NDArray[np.intp]:
        # A threshold is rounded to the next lower number, so that no row that reaches it is lost.
        return np.flatnonzero(self._upper >= np.nextafter(np.float32(threshold), np.float32(-np.inf)))


def _largest(numbers: NDArray[np.float32]) -> float:
    """Return the largest absolute value, without memory for all of them."""
    return max(float(numbers.max()), -float(numbers.min()))


def order_of(scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return the places of the `k` highest scores, best first; of equal ones, the lower place comes first."""
    return np.argsort(-scores, kind="stable")[:k]


def scores_of(
    vectors: NDArray[np.float32],
    rows: NDArray[np.intp],
    query: NDArray[np.float32],
    weight: float,
    prior: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the scores of some rows; `prior` is theirs, float32 `[rows]`."""
    if not weight:  # no vector counts
        return prior
    parts = [rows[start : start + _MAX_SCORED] for start in range(0, len(rows), _MAX_SCORED)]
    cosines = np.concatenate([np.empty(0, np.float32), *(np.vecdot(vectors[part], query) for part in parts)])
    return np.float32(weight) * cosines + prior
