"""The terms of documents that were added to an index since its version was built."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.lexical.lexical_index import DocumentTerms, LexicalIndex, QueryTerms


class LiveTerms:
    """The postings of added documents, which are weighed with the statistics of the version. Never changed."""

    def __init__(self, lexical: LexicalIndex, documents: Sequence[DocumentTerms] = ()):
        self._lexical = lexical
        self._documents = documents
        sizes = [len(document.terms) for document in documents]
        terms = np.concatenate([np.empty(0, np.uint64), *(document.terms for document in documents)])
        order = np.argsort(terms, kind="stable")
        self._terms = terms[order]
        self._rows = np.repeat(np.arange(len(documents)), sizes)[order]
        self._impacts = np.concatenate([np.empty(0, np.uint8), *(document.impacts for document in documents)])[order]

    def after(self, added: Sequence[str], kept: Sequence[int]) -> Self:
        """Return the terms after more documents with these texts.

        Of the documents and the added ones after them, those at the places `kept` stay, in this order.
        """
        documents = [*self._documents, *map(self._lexical.document_terms, added)]
        return type(self)(self._lexical, [documents[place] for place in kept])

    def scores(self, query: QueryTerms) -> NDArray[np.float32]:
        """Return the BM25 scores of the documents, float32 `[added]`."""
        found = np.zeros(len(self._documents), np.float32)
        starts, ends = (np.searchsorted(self._terms, query.terms, side) for side in ("left", "right"))
        for start, end, weight in zip(starts.tolist(), ends.tolist(), query.weights.tolist(), strict=True):
            found[self._rows[start:end]] += self._impacts[start:end] * np.float32(weight)
        return found

    def impacts_in(self, place: int, terms: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return the impacts of terms in an added document, uint8 `[terms]`; 0 for those that it does not have."""
        document = self._documents[place]
        places = np.searchsorted(document.terms, terms)
        found = np.zeros(len(terms), np.uint8)
        has_it = places < len(document.terms)
        has_it[has_it] = document.terms[places[has_it]] == terms[has_it]
        found[has_it] = document.impacts[places[has_it]]
        return found
