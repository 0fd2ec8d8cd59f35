"""Diversity: hits that differ from each other are chosen from a longer list."""

import numpy as np
from numpy.typing import NDArray

#: A diverse list of k hits is chosen from `CANDIDATE_FACTOR` * k hits, but from at least `MIN_CANDIDATES` and at most
#: `MAX_CANDIDATES`.
CANDIDATE_FACTOR, MIN_CANDIDATES, MAX_CANDIDATES = 4, 50, 1_000


def num_candidates(k: int) -> int:
    """Return the number of hits from which `k` diverse ones are chosen."""
    return max(k, min(MAX_CANDIDATES, max(MIN_CANDIDATES, CANDIDATE_FACTOR * k)))


def most_diverse(
    scores: NDArray[np.float32], vectors: NDArray[np.float32], k: int, diversity: float
) -> NDArray[np.intp]:
    """Return the positions of `k` hits, or of all if there are fewer, in the order in which they are chosen.

    `scores`, `[hits]`, are in descending order, and `vectors`, `[hits, dimension]`, have length 1. The best hit is
    chosen first, and each time after it the hit with the highest
    `(1 - diversity) * relevance - diversity * similarity`. Relevance is the score divided by the best score, if that is
    positive. Similarity is the highest cosine with a hit that was chosen. If values are equal, the hit with the higher
    score is chosen. This is maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998).
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
