"""The best of many scores."""

import numpy as np
from numpy.typing import NDArray


def top_k(scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Columns of the `k` highest scores of each row of `[queries, documents]`, best first; ties by column."""
    k = min(k, scores.shape[1])
    if k == 0:
        return np.empty((len(scores), 0), dtype=np.intp)
    return np.stack([_top_of_row(row, k) for row in scores]) if len(scores) else np.empty((0, k), dtype=np.intp)


def _top_of_row(row: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    threshold = np.partition(row, len(row) - k)[len(row) - k]
    candidates = np.flatnonzero(row >= threshold)
    order = np.lexsort((candidates, -row[candidates]))
    return candidates[order[:k]]
