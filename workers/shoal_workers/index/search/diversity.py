"""Diversity: hits are chosen one by one, for their score and for being unlike those before: maximal marginal relevance.

The method is that of Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and
Producing Summaries", SIGIR 1998.
"""

import numpy as np
from numpy.typing import NDArray

#: Hits from which those of a diverse list are chosen: so many for each that is asked for, but at least the second
#: number, and at most the third.
POOL_FACTOR, MIN_POOL, MAX_POOL = 4, 50, 1_000


def pool_size(k: int) -> int:
    """Return the number of hits from which `k` diverse ones are chosen."""
    return max(k, min(MAX_POOL, max(MIN_POOL, POOL_FACTOR * k)))


def most_diverse(
    scores: NDArray[np.float32], vectors: NDArray[np.float32], k: int, diversity: float
) -> NDArray[np.intp]:
    """Return the places of `k` hits, or of all if there are fewer, in the order in which they are chosen.

    Hits are given by their `scores`, `[hits]`, the best first, and their `vectors`, `[hits, dimension]`, of length one.
    The best is chosen first. The next is always the one with the highest `(1 - diversity) * relevance - diversity *
    similarity`, where its relevance is its score divided by the best score, if that is positive, and its similarity is
    its highest cosine with a hit that was chosen; of equal ones, the one of higher score.
    """
    if not len(scores):
        return np.empty(0, np.intp)
    relevance = scores / scores[0] if scores[0] > 0 else scores
    similarities = vectors @ vectors.T
    values = (1 - diversity) * relevance
    chosen = [0]
    nearest = similarities[0]
    for _ in range(min(k, len(scores)) - 1):
        values[chosen[-1]] = -np.inf
        chosen.append(int(np.argmax(values - diversity * nearest)))
        nearest = np.maximum(nearest, similarities[chosen[-1]])
    return np.array(chosen, np.intp)
