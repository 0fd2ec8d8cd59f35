"""The queries of a search: the vector of each list of hits, which is made of texts, vectors and documents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

#: Weight of the texts that hits must not be like, against 1 for the query.
NEGATIVE_WEIGHT = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """The question of one list of hits: a vector of length 1, float32 `[dimension]`, or of zeros, and its texts.

    Documents whose ids are `excluded_ids` are no hits of it.
    """

    vector: NDArray[np.float32]
    texts: tuple[str, ...] = ()
    excluded_ids: tuple[str, ...] = ()


def fused(queries: Sequence[Query]) -> Query:
    """Return one query for all of them together: a hit is near to their mean."""
    return Query(
        normalised(np.mean([query.vector for query in queries], axis=0)),
        tuple(text for query in queries for text in query.texts),
        tuple(excluded for query in queries for excluded in query.excluded_ids),
    )


def away_from(query: Query, negative: NDArray[np.float32]) -> Query:
    """Return the query, turned away from the mean of `negative`, `[vectors, dimension]`."""
    return replace(query, vector=normalised(query.vector - NEGATIVE_WEIGHT * negative.mean(axis=0)))


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vector with length 1; one of zeros stays as it is."""
    exact = vector.astype(np.float64)
    return (exact / max(float(np.linalg.norm(exact)), 1e-12)).astype(np.float32)
