"""The words of a query: the BM25 scores of all documents, and what a search makes of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.lexical.lexical_index import MAX_QUERY_CHARS, LexicalIndex, LiveTerms, QueryTerms
from shoal_workers.index.lexical.snippet import snippet
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.vectors.fused_search import Prior

#: Part of the cosine in a hybrid score where none is asked for: docs/search.md has the measurements.
ALPHA = 0.7


@dataclass(frozen=True, eq=False)
class QueryWords:
    """The terms of a query, and the BM25 scores of the documents of a version, float32 `[count]`, and of added ones."""

    texts: tuple[str, ...]
    lexical: LexicalIndex
    terms: QueryTerms
    of_version: NDArray[np.float32]
    of_added: NDArray[np.float32]
    live_terms: LiveTerms | None = None

    @classmethod
    def of(cls, texts: tuple[str, ...], lexical: LexicalIndex, live: LiveDocuments) -> Self:
        """Look up the words of texts. Raises IndexCorrupt."""
        terms = lexical.weigh(texts)
        of_added = live.terms.scores(terms) if live.terms and live.ids else np.zeros(len(live.ids), np.float32)
        return cls(texts, lexical, terms, lexical.scores(terms), of_added, live.terms)

    def best(self, eligible: NDArray[np.bool_], added: NDArray[np.bool_]) -> float:
        """Return the best BM25 score of the eligible documents of the version and the added ones; 0 without words."""
        return max(_highest(self.of_version, eligible), _highest(self.of_added, added))

    def hybrid_prior(self, alpha: float, best: float) -> Prior:
        """Return the prior of the score `alpha` * cosine + (1 - `alpha`) * BM25 / `best`.

        Where no document has a word of the query, `best` is 0, and the score is the cosine.
        """
        if not best:
            return Prior(1.0, np.zeros_like(self.of_version), np.zeros_like(self.of_added))
        factor = np.float32((1 - alpha) / np.float32(best))
        return Prior(alpha, factor * self.of_version, factor * self.of_added)

    def explain(self, row: int) -> dict[str, Any]:
        """Return the BM25 score of a document, and the part of it that each word of the query has."""
        place = row - self.lexical.count
        if place < 0 or self.live_terms is None:
            score, impacts = self.of_version[row], self.lexical.impacts_in(row, self.terms.terms)
        else:
            score, impacts = self.of_added[place], self.live_terms.impacts_in(place, self.terms.terms)
        found = np.flatnonzero(impacts)
        parts = (self.terms.weights[found] * impacts[found]).tolist()
        words = [self.words.get(term) for term in self.terms.terms[found].tolist()]
        return {"bm25": float(score), "words": {word: part for word, part in zip(words, parts, strict=True) if word}}

    def snippet(self, text: str, max_chars: int, num_read: int) -> dict[str, Any]:
        """Return the best passage of a text, which is looked for in its first `num_read` characters."""
        return snippet(text, self.lexical.analyzer, self.weights, max_chars, num_read)

    @cached_property
    def weights(self) -> dict[int, float]:
        """The weights of the terms."""
        return dict(zip(self.terms.terms.tolist(), self.terms.weights.tolist(), strict=True))

    @cached_property
    def words(self) -> dict[int, str]:
        """The words of the terms, as the query has them."""
        found: dict[int, str] = {}
        for text in reversed(self.texts):
            found |= self.lexical.analyzer.words(text[:MAX_QUERY_CHARS])
        return found


def _highest(scores: NDArray[np.float32], eligible: NDArray[np.bool_]) -> float:
    """Return the highest of the eligible scores; 0 if there are none."""
    if eligible.all():  # a maximum of all is many times as quick
        return float(scores.max(initial=0))
    return float(scores.max(initial=0, where=eligible))
