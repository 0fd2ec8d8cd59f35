"""The queries of a job that searches: a vector for each list of hits, made of texts, given vectors and documents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal_workers.index.search.live_documents import LiveDocuments

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

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


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vector with length 1; one of zeros stays as it is."""
    exact = vector.astype(np.float64)
    return (exact / max(float(np.linalg.norm(exact)), 1e-12)).astype(np.float32)


def queries_of(job: Search, vectors: NDArray[np.float32], index: "Index", live: LiveDocuments) -> list[Query]:
    """Return a query for each list of hits of a job; `vectors` are those of its texts, float32 `[texts, dimension]`.

    Raises InvalidRequest for a vector or an id that does not fit the index.
    """
    search, num_positive = job.search, len(job.texts) - job.search.num_negative
    queries = [Query(vector, (text,)) for vector, text in zip(vectors[:num_positive], job.texts, strict=False)]
    queries += [_query_of_vector(n, vector, index) for n, vector in enumerate(search.vectors or ())]
    queries += [_query_like(n, document_id, index, live) for n, document_id in enumerate(search.like or ())]
    if search.fuse:
        queries = [fused(queries)]
    if search.num_negative:
        away = NEGATIVE_WEIGHT * vectors[num_positive:].mean(axis=0)
        queries = [replace(query, vector=normalised(query.vector - away)) for query in queries]
    return queries


def _query_of_vector(number: int, values: list[float], index: "Index") -> Query:
    if len(values) != (dimension := index.manifest.dimension):
        raise InvalidRequest(
            f"vectors[{number}] has {len(values):,} numbers: the vectors of this index have {dimension:,}"
        )
    vector = np.array(values, np.float64)
    return Query(normalised(vector / np.abs(vector).max()))  # the square of a small number may be 0


def _query_like(number: int, document_id: str, index: "Index", live: LiveDocuments) -> Query:
    """Return the query for documents that are like those with an id, those that were added included."""
    rows = np.setdiff1d(index.rows_of([document_id]), live.hidden_rows)
    added = [place for place, added_id in enumerate(live.ids) if added_id == document_id]
    vectors = np.concatenate([index.vectors[rows], live.vectors[added]])
    if not len(vectors):
        raise InvalidRequest(f"like[{number}] is {excerpt(document_id)}: the index has no document with this id")
    return Query(normalised(vectors.mean(axis=0)), excluded_ids=(document_id,))
