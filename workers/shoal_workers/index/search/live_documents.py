"""Documents that were added to an index since its version was built, and rows of the version that changes hide."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change import MAX_LENGTH, Change
from shoal.contract import wire
from shoal.contract.vectors import SparseVector
from shoal_workers.index.lexical.lexical_index import LexicalIndex
from shoal_workers.index.vectors.exact_search import TopK, best_by_score, best_of, in_parts, scores_with_prior
from shoal_workers.index.vectors.quantisation import SCORE_ERROR
from shoal_workers.index.vectors.upper_bounds import NO_ROWS, Candidates


@dataclass(frozen=True, slots=True, eq=False)
class LiveDocuments:
    """The changes of an index since its version was built. Immutable: searches use one object while the next is made.

    It has the changes up to `position` in the log, which concern the ids in `changed`. `hidden_rows` are the rows of
    the version with one of these ids, int64 `[hidden]` in ascending order. Added documents are in the order of their
    last change: their `ids`, their `vectors`, float32 `[added, dimension]`, and the documents `packed` in bytes,
    because as objects they would take many times the memory that the change took in Redis. `terms` are the terms of
    their texts, if the version has a lexical index.
    """

    position: str
    vectors: NDArray[np.float32]
    ids: tuple[str, ...]
    packed: tuple[bytes, ...]
    hidden_rows: NDArray[np.int64]
    changed: frozenset[str]
    terms: LexicalIndex | None

    @classmethod
    def none(cls, position: str, dimension: int, lexical: LexicalIndex | None) -> Self:
        """Return the object for a version that was built with all changes up to `position`, before any later change."""
        terms = lexical.emptied() if lexical else None
        return cls(position, np.empty((0, dimension), np.float32), (), (), NO_ROWS, frozenset(), terms)

    def after(
        self, changes: Iterable[Change], position: str, rows_of: Callable[[Collection[str]], NDArray[np.int64]]
    ) -> Self:
        """Return the object after more changes up to `position`. No change may be given twice.

        `rows_of` returns the rows of the version that have one of the given ids.
        """
        packed, vectors, texts, sparse = [*self.packed], [self.vectors], list[str](), list[SparseVector | None]()
        places = {document_id: place for place, document_id in enumerate(self.ids)}
        changed: set[str] = set()
        for change in changes:
            for deleted in change.deleted:
                places.pop(deleted, None)
            for document in change.documents:
                places.pop(document.id, None)  # removed first, so that it comes last
                places[document.id] = len(packed)
                texts.append(document.text)
                packed.append(wire.pack({"id": document.id, "text": document.text, **document.fields}))
            if change.documents:
                vectors.append(change.vectors)
                sparse.extend(change.sparse or [None] * len(change.documents))
            changed.update(change.deleted, (document.id for document in change.documents))
        kept = list(places.values())
        return type(self)(
            position,
            np.concatenate(vectors)[kept],
            tuple(places),
            tuple(packed[place] for place in kept),
            np.union1d(self.hidden_rows, rows_of(changed - self.changed)),
            self.changed | changed,
            self.terms.after(texts, kept, sparse) if self.terms else None,
        )

    def document(self, place: int) -> dict[str, Any]:
        """Return an added document: its `id`, `text` and other fields."""
        return wire.unpack(self.packed[place])

    def top_with_prior(
        self, query: NDArray[np.float32], k: int, weight: float, prior: NDArray[np.float32], eligible: NDArray[np.bool_]
    ) -> TopK:
        """Find the `k` eligible documents with the highest scores for one query.

        A score is `weight` times the cosine plus `prior`; `prior` and `eligible` are `[added]`. A row is a document's
        position among the added documents. If scores are equal, the document that was added first comes first.
        """
        rows = np.flatnonzero(eligible)
        return best_by_score(rows, scores_with_prior(self.vectors, rows, query, weight, prior[rows]), k)

    def top_k(self, queries: NDArray[np.float32], k: int, eligible: NDArray[np.bool_] | None = None) -> TopK:
        """Find the `k` best-scoring added documents for each of the queries, or all documents if there are fewer.

        `queries` is `[queries, dimension]`. A row is a document's position among the added documents. If scores are
        equal, the document that was added first comes first. If `eligible`, `[added]`, is given, only eligible
        documents are searched.
        """
        rows = np.arange(len(self.ids)) if eligible is None else np.flatnonzero(eligible)
        vectors = self.vectors if len(rows) == len(self.ids) else self.vectors[rows]
        k = min(k, len(rows))
        places, scores = in_parts(queries, k, len(rows), lambda part: _top_k(vectors, part, k))
        return TopK(rows[places], scores)


def _top_k(vectors: NDArray[np.float32], queries: NDArray[np.float32], k: int) -> TopK:
    # A product of matrices is many times faster than exact scores one by one, and differs from them by rounding only.
    products = queries @ vectors.T
    position = len(vectors) - k
    least = np.partition(products, position, axis=1)[:, position]
    margins = 2 * SCORE_ERROR * MAX_LENGTH * np.linalg.norm(queries, axis=1)
    owners, rows = np.nonzero(products >= (least - margins)[:, None])
    return best_of(vectors, Candidates(rows, owners), queries, k)
