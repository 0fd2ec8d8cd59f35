"""The ranking of a list of hits: the documents that may be in it, and the fusion of their scores."""

from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.operations.search_fields import parse_boosts, parse_sort
from shoal.operations.search_filter import parse_filter
from shoal.operations.search_options import SearchOptions
from shoal_workers.index.query import Query, QueryWords
from shoal_workers.index.search.boosts import boosts_of
from shoal_workers.index.search.field_order import FieldOrder
from shoal_workers.index.search.filtering import matching
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.vectors.exact_search import TopK, merged
from shoal_workers.index.vectors.upper_bounds import SharedProducts

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

#: Weight of the cosine in a hybrid score if the search names none. docs/search.md has the measurements.
ALPHA = 0.7

#: Largest number of queries of a job whose BM25 scores are kept. The scores of a query are a number for each document.
MAX_KEPT_WORDS = 32


class Prior(NamedTuple):
    """The part of the scores that is known before vectors are compared.

    A score is `weight` times the cosine plus the document's number in `known`, float32 `[count + added]`.
    """

    weight: float
    known: NDArray[np.float32]


class Ranker:
    """Ranks documents for the lists of hits of one job, in a version with the changes up to one moment.

    `now` is the time of the search, in Unix seconds. `shared` has the products of codes for the texts of several jobs.
    """

    def __init__(
        self,
        index: "Index",
        live: LiveDocuments,
        options: SearchOptions,
        now: float,
        shared: SharedProducts | None,
    ):
        self._index = index
        self._live = live
        self._options = options
        self._now = now
        self._shared = shared
        #: Returns the `QueryWords` of a query. Raises IndexMismatch for learned words without a sparse vector.
        self.words = lru_cache(MAX_KEPT_WORDS)(lambda query: QueryWords.of(query, index.lexical, live))
        self._last: tuple[Query | None, Prior | None] = (None, None)

    # Select

    @cached_property
    def eligible(self) -> NDArray[np.bool_]:
        """A mask of the documents that match the filter and are not hidden: bool `[count + added]`."""
        if self._options.filter is None:
            found = np.ones(self._index.manifest.count + len(self._live.ids), bool)
        else:
            found = matching(parse_filter(self._options.filter), self._index.fields_at(self._live))
        found[self._live.hidden_rows] = False
        return found

    def selection(self, query: Query) -> NDArray[np.bool_]:
        """Return a mask of the documents that may be in a query's list of hits, bool `[count + added]`."""
        found = self.eligible
        if query.excluded_ids:
            found = found.copy()
            found[self._index.documents.rows_of(query.excluded_ids)] = False
            is_other = np.array([added_id not in query.excluded_ids for added_id in self._live.ids], bool)
            found[self._index.manifest.count :] &= is_other
        if self._options.mode == "lexical":
            found = found & (self.words(query).scores > 0)
        return found

    # Scores

    @cached_property
    def boosts(self) -> NDArray[np.float32]:
        """The sum of the boosts of each document, float32 `[count + added]`."""
        return boosts_of(parse_boosts(self._options.boost), self._index.fields_at(self._live), self._now)

    def _prior(self, query: Query) -> Prior | None:
        """Return the part of the scores that comes from words and boosts; None if the scores are cosines alone."""
        if self._last[0] is query:
            return self._last[1]
        prior = None
        if self._options.mode == "lexical":
            prior = Prior(0.0, self.words(query).scores)
        elif self._options.mode == "hybrid" and query.texts:
            alpha, bm25 = self._options.alpha, self.words(query).scores
            alpha = ALPHA if alpha is None else alpha
            prior, found = Prior(1.0, np.zeros_like(bm25)), self.selection(query)
            # The maximum of a whole array is many times faster than a maximum under a mask.
            if best := float(bm25.max(initial=0) if found.all() else bm25.max(initial=0, where=found)):
                prior = Prior(alpha, np.float32((1 - alpha) / np.float32(best)) * bm25)
        if self._options.boost is not None:
            prior = Prior(prior.weight, prior.known + self.boosts) if prior else Prior(1.0, self.boosts)
        self._last = query, prior
        return prior

    # Ranking

    def find(self, query: Query, selected: NDArray[np.bool_]) -> Callable[[int], TopK]:
        """Return a function that finds the given number of best documents, by score or by the fields to sort by."""
        if self._options.sort is None:
            return partial(self._best, query, selected)
        ordered = self._may_reach(query, selected)
        return lambda num: self._order.top(ordered, num, partial(self._reaching, query))

    @cached_property
    def _order(self) -> FieldOrder:
        """The order of all documents by the fields that the search sorts by."""
        return FieldOrder(parse_sort(self._options.sort), self._index.fields_at(self._live))

    def _best(self, query: Query, selected: NDArray[np.bool_], num: int) -> TopK:
        """Return the documents with the highest scores, best first; if scores are equal, the lower row comes first."""
        search, live, vector, count = self._index.exact_search, self._live, query.vector, self._index.manifest.count
        of_version, of_added = selected[:count], selected[count:]
        if prior := self._prior(query):
            weight, known = prior
            found = search.top_with_prior(vector, num, weight, known[:count], of_version, self._shared)
            if live.ids:
                found = merged(found, live.top_with_prior(vector, num, weight, known[count:], of_added), count, num)
        else:
            found = search.top_k(vector[None], num, eligible=of_version)
            if live.ids:
                found = merged(found, live.top_k(vector[None], num, of_added), count, num)
        return TopK(found.rows[0], found.scores[0])

    def _may_reach(self, query: Query, selected: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask that has every selected document whose score reaches `min_score`, and may have more."""
        if (least := self._options.min_score) is None:
            return selected
        found, of_version = selected.copy(), slice(self._index.manifest.count)
        weight, known = self._prior(query) or Prior(1.0, np.zeros_like(selected, np.float32))
        found[of_version] = self._index.exact_search.may_reach(
            least, query.vector, weight, known[of_version], selected[of_version]
        )
        return found

    def _reaching(self, query: Query, selected: NDArray[np.bool_], num: int) -> TopK:
        """Return the best documents that reach `min_score`."""
        rows, scores = self._best(query, selected, num)
        if (least := self._options.min_score) is None:
            return TopK(rows, scores)
        reaches = scores >= np.float64(least)  # `min_score` is compared as it is, and not rounded to float32
        return TopK(rows[reaches], scores[reaches])
