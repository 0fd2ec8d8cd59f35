"""Measures of a ranking, as trec_eval computes them: nDCG, recall, reciprocal rank and average precision.

`gains` has the gain of each hit of a query, best first; `judged` has those of all documents that were judged for it.
At least one of these is above 0, which means relevant.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate


def ndcg(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return the discounted cumulative gain of the first `k` hits, divided by the best that there can be."""
    return _discounted(gains[:k]) / _discounted(sorted(judged, reverse=True)[:k])


def recall(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return the part of the relevant documents that is among the first `k` hits."""
    return _num_relevant(gains[:k]) / _num_relevant(judged)


def reciprocal_rank(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return 1 divided by the rank of the first relevant hit; 0 if none of the first `k` hits is."""
    return next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain > 0), 0.0)


def average_precision(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return the mean over the relevant documents of the precision at the rank of each, 0 for one that is not found."""
    nums = accumulate(gain > 0 for gain in gains[:k])
    found = [num / rank for (rank, gain), num in zip(enumerate(gains[:k], 1), nums, strict=True) if gain > 0]
    return sum(found) / _num_relevant(judged)


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of the first `k` hits, as `nDCG@10`."""

    name: str
    k: int

    def __str__(self) -> str:
        return f"{self.name}@{self.k}"

    def of(self, gains: Sequence[int], judged: Sequence[int]) -> float:
        """Return its value for one query, from 0 to 1."""
        return _FUNCTIONS[self.name](gains, judged, self.k)


_FUNCTIONS: dict[str, Callable[[Sequence[int], Sequence[int], int], float]] = {
    "nDCG": ndcg,
    "recall": recall,
    "MRR": reciprocal_rank,
    "MAP": average_precision,
}


def measures(k: int, depth: int) -> tuple[Measure, ...]:
    """Return the measures of the first `k` hits, nDCG first, and those of the first `depth`."""
    return Measure("nDCG", k), Measure("recall", depth), Measure("MRR", k), Measure("MAP", depth)


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains) if gain > 0)


def _num_relevant(gains: Sequence[int]) -> int:
    return sum(gain > 0 for gain in gains)
