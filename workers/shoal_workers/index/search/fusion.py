"""Fusion of vectors and words: the weight of a document's cosine, and the number that its words add to the score."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Weight of the cosine in a hybrid score if the search names none. docs/search.md has the measurements.
ALPHA = 0.7


class Prior(NamedTuple):
    """The part of the scores that is known before vectors are compared.

    A score is `weight` times the cosine plus the document's number in `known`, float32 `[count + added]`.
    """

    weight: float
    known: NDArray[np.float32]


def fuse(bm25: NDArray[np.float32], alpha: float, best: float) -> Prior:
    """Return the prior of the score `alpha` * cosine + (1 - `alpha`) * `bm25` / `best`.

    If no document has a word of the query, `best` is 0, and the score is the cosine.
    """
    if not best:
        return Prior(1.0, np.zeros_like(bm25))
    return Prior(alpha, np.float32((1 - alpha) / np.float32(best)) * bm25)
