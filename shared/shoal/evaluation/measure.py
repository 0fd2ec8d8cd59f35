"""Measures of a ranking, as trec_eval computes them: nDCG, recall, reciprocal rank and average precision.

`gains` has the gain of each hit of a query, best first; `judged` has those of all documents that were judged for it.
At least one of these is above 0, which means relevant.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

#: A function that returns the value of a measure for one query, from 0 to 1.
Measure = Callable[[Sequence[int], Sequence[int]], float]


def ndcg(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return the discounted cumulative gain of the first `k` hits, divided by the best that there can be."""
    found, best = (
        sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranking[:k], 1) if gain > 0)
        for ranking in (gains, sorted(judged, reverse=True))
    )
    return found / best


def recall(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return the part of the relevant documents that is among the first `k` hits."""
    return len(_relevant_ranks(gains, k)) / len(_relevant_ranks(judged))


def reciprocal_rank(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return 1 divided by the rank of the first relevant hit; 0 if none of the first `k` hits is."""
    return next((1 / rank for rank in _relevant_ranks(gains, k)), 0.0)


def average_precision(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    """Return the mean over the relevant documents of the precision at the rank of each, 0 for one that is not found."""
    found = sum(number / rank for number, rank in enumerate(_relevant_ranks(gains, k), 1))
    return found / len(_relevant_ranks(judged))


def measures(k: int, depth: int) -> dict[str, Measure]:
    """Return the measures of the first `k` hits, nDCG first, and those of the first `depth`, by their names."""
    return {
        f"nDCG@{k}": partial(ndcg, k=k),
        f"recall@{depth}": partial(recall, k=depth),
        f"MRR@{k}": partial(reciprocal_rank, k=k),
        f"MAP@{depth}": partial(average_precision, k=depth),
    }


def _relevant_ranks(gains: Sequence[int], k: int | None = None) -> list[int]:
    return [rank for rank, gain in enumerate(gains[:k], 1) if gain > 0]
