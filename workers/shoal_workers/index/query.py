"""The queries of a job that searches: each has the vector for one list of hits, and texts whose words are looked up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.contract.vectors import SparseVector
from shoal.errors import IndexMismatch, InvalidRequest
from shoal.operations import Search
from shoal_workers.index.lexical.lexical_index import MAX_QUERY_CHARS, LexicalIndex, QueryTerms
from shoal_workers.index.search.live_documents import LiveDocuments

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

#: Weight of the negative texts, from which hits should differ. The query has the weight 1.
NEGATIVE_WEIGHT = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """The query of one list of hits: a float32 vector `[dimension]` of length 1 or of zeros, and the query's texts.

    `sparse` are the sparse vectors of the texts, if the model made them. Documents with an id in `excluded_ids` are not
    found.
    """

    vector: NDArray[np.float32]
    texts: tuple[str, ...] = ()
    sparse: tuple[SparseVector, ...] = ()
    excluded_ids: tuple[str, ...] = ()


def queries_of(
    job: Search,
    vectors: NDArray[np.float32],
    sparse: Sequence[SparseVector],
    index: "Index",
    live: LiveDocuments,
) -> list[Query]:
    """Return a query for each list of hits of a job.

    `vectors` are its texts' vectors, float32 `[texts, dimension]`, and `sparse` their sparse vectors, if there are any.
    Raises InvalidRequest for a vector or an id that does not fit the index.
    """
    search, num_positive = job.search, len(job.texts) - job.search.num_negative
    queries = [
        Query(vector, (text,), tuple(sparse[number : number + 1]))
        for number, (vector, text) in enumerate(zip(vectors[:num_positive], job.texts, strict=False))
    ]
    for number, values in enumerate(search.vectors or ()):
        if len(values) != (dimension := index.manifest.dimension):
            raise InvalidRequest(
                f"vectors[{number}] has {len(values):,} numbers: the vectors of this index have {dimension:,}"
            )
        vector = np.array(values, np.float64)
        # The vector is scaled first, because squares of small numbers may be 0.
        queries.append(Query(normalised(vector / np.abs(vector).max())))
    for number, document_id in enumerate(search.like or ()):
        rows = np.setdiff1d(index.documents.rows_of([document_id]), live.hidden_rows)
        added = [place for place, added_id in enumerate(live.ids) if added_id == document_id]
        alike = np.concatenate([index.vectors[rows], live.vectors[added]])
        if not len(alike):
            raise InvalidRequest(f"like[{number}] is {excerpt(document_id)}: the index has no document with this id")
        queries.append(Query(normalised(alike.mean(axis=0)), excluded_ids=(document_id,)))
    if search.fuse:  # one list of hits, for the mean of the queries
        texts = tuple(text for query in queries for text in query.texts)
        weights = tuple(vector for query in queries for vector in query.sparse)
        excluded_ids = tuple(excluded for query in queries for excluded in query.excluded_ids)
        mean = np.mean([query.vector for query in queries], axis=0)
        queries = [Query(normalised(mean), texts, weights, excluded_ids)]
    if search.num_negative:
        away = NEGATIVE_WEIGHT * vectors[num_positive:].mean(axis=0)
        queries = [replace(query, vector=normalised(query.vector - away)) for query in queries]
    return queries


def normalised(vector: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return the vector scaled to length 1; a vector of zeros stays as it is."""
    exact = vector.astype(np.float64)
    return (exact / max(float(np.linalg.norm(exact)), 1e-12)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class QueryWords:
    """The terms of a query, and the BM25 scores of the documents, float32 `[count + added]`."""

    texts: tuple[str, ...]
    lexical: LexicalIndex
    live: LexicalIndex | None
    terms: QueryTerms
    scores: NDArray[np.float32]

    @classmethod
    def of(cls, query: Query, lexical: LexicalIndex, live: LiveDocuments) -> Self:
        """Look up the words of a query in the lexical index of a version. Raises IndexMismatch and IndexCorrupt."""
        if lexical.is_learned and len(query.sparse) < len(query.texts):
            raise IndexMismatch(
                "the words of this index have learned weights, and this worker's model makes no sparse vectors: serve "
                "the model that the index was built with, or search with mode dense"
            )
        terms = lexical.weigh_learned(query.sparse) if lexical.is_learned else lexical.weigh(query.texts)
        return cls(query.texts, lexical, live.terms, terms, lexical.scores(terms, live.terms))

    def explain(self, row: int) -> dict[str, Any]:
        """Return the BM25 score of a document, and the share of each word of the query in that score."""
        if self.live is None or row < self.lexical.count:
            impacts = self.lexical.impacts_in(row, self.terms.terms)
        else:
            impacts = self.live.impacts_in(row - self.lexical.count, self.terms.terms)
        found = np.flatnonzero(impacts)
        parts = (self.terms.weights[found] * impacts[found]).tolist()
        words = [self._words.get(term) for term in self.terms.terms[found].tolist()]
        by_word = {word: part for word, part in zip(words, parts, strict=True) if word}
        return {"bm25": float(self.scores[row]), "words": by_word}

    @cached_property
    def weights(self) -> dict[int, float]:
        """The weights of the query's words in snippets, keyed by term: all 1 if the index has learned words.

        A character of a script without spaces has a weight only if it stands alone in the query.
        """
        places = (self.lexical.analyzer.places(text[:MAX_QUERY_CHARS]) for text in self.texts)
        shown = {term: 1.0 for found in places for *_, term in found}
        if self.lexical.is_learned:
            return shown
        weights = zip(self.terms.terms.tolist(), self.terms.weights.tolist(), strict=True)
        return {term: weight for term, weight in weights if term in shown}

    @cached_property
    def _words(self) -> dict[int, str]:
        """A word of the query for each term, as the query spells it."""
        found: dict[int, str] = {}
        for text in self.texts:
            found |= self.lexical.analyzer.words(text[:MAX_QUERY_CHARS])
        return found
