"""The scores of the documents that may be in a list of hits, and their ranking: by score, or by fields."""

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from shoal.operations.search_fields import parse_boosts, parse_sort
from shoal.operations.search_options import SearchOptions
from shoal_workers.index.query import ALPHA, Query, QueryWords
from shoal_workers.index.search.boosts import Boosts, boosts_of
from shoal_workers.index.search.field_order import FieldOrder
from shoal_workers.index.search.fields import Selection
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.search.pages import Pages
from shoal_workers.index.search.ranking import Ranked
from shoal_workers.index.vectors.search import Prior, merged
from shoal_workers.index.vectors.upper_bounds import SharedProducts

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

#: Most queries whose words are kept while a job is searched for: each has a number for each document.
MAX_KEPT_WORDS = 32


class Ranker:
    """Ranks the documents of one job's lists, in a version with the changes of one moment.

    `selection` returns the documents that may be in the list of a query, and `shared` has the products for the texts of
    several jobs.
    """

    def __init__(
        self,
        index: "Index",
        live: LiveDocuments,
        options: SearchOptions,
        pages: Pages,
        selection: Callable[[Query], Selection],
        shared: SharedProducts | None,
    ):
        self._index = index
        self._live = live
        self._options = options
        self._pages = pages
        self._selection = selection
        self._shared = shared
        self._words: dict[Query, QueryWords] = {}
        self._last: tuple[Query | None, Prior | None] = (None, None)

    # Scores

    def words(self, query: Query) -> QueryWords:
        """Return the words of the texts of a query; raise IndexMismatch if the index knows no words."""
        if query not in self._words:
            if len(self._words) == MAX_KEPT_WORDS:
                del self._words[next(iter(self._words))]
            self._words[query] = QueryWords.of(query.texts, self._index.lexical, self._live)
        return self._words[query]

    @cached_property
    def boosts(self) -> Boosts:
        """The numbers that boosts add to the scores."""
        before, fields = self._pages.before, self._index.fields_at(self._live)
        return boosts_of(parse_boosts(self._options.boost), fields, before.now if before else time.time())

    def best_bm25(self, query: Query) -> float:
        """Return the BM25 score that hybrid scores divide by; 0 where there is none.

        It is the best one of the list; later pages keep the one of the first page, else the order could change.
        """
        before = self._pages.before
        if before and before.num_shown:
            return before.best_bm25
        if self._options.mode != "hybrid" or not query.texts:
            return 0.0
        return self.words(query).best(*self._selection(query))

    def _prior(self, query: Query) -> Prior | None:
        """Return the part of the scores that words and boosts have; None where cosines are the scores.

        The prior of the last query is kept.
        """
        if self._last[0] is query:
            return self._last[1]
        prior = None
        if self._options.mode == "lexical":
            words = self.words(query)
            prior = Prior(0.0, words.of_version, words.of_added)
        elif self._options.mode == "hybrid" and query.texts:
            alpha = ALPHA if self._options.alpha is None else self._options.alpha
            prior = self.words(query).hybrid_prior(alpha, self.best_bm25(query))
        if self._options.boost is not None:
            rows, added = self.boosts
            if prior:
                rows, added = prior.of_version + rows, prior.of_added + added
            prior = Prior(prior.weight if prior else 1.0, rows, added)
        self._last = query, prior
        return prior

    # Ranking

    def find(self, query: Query, selection: Selection) -> Callable[[int], Ranked]:
        """Return the function that finds the best documents: by score, or by fields where the search sorts by these."""
        if self._options.sort is None:
            return partial(self._best, query, selection)
        ordered = self._with_last(self._may_reach(query, selection))
        return lambda num: Ranked(*self._order.top(ordered, num, partial(self._reaching, query)))

    @cached_property
    def _order(self) -> FieldOrder:
        """The order of all documents by the fields that the search sorts by."""
        return FieldOrder(parse_sort(self._options.sort), self._index.fields_at(self._live))

    def _best(self, query: Query, selection: Selection, num: int) -> Ranked:
        """Return the documents of highest score, best first; of equal scores, the lower row comes first."""
        index, live, vector, rows = self._index, self._live, query.vector, selection.rows
        if prior := self._prior(query):
            found = index.exact_search.top_fused(vector, num, prior.weight, prior.of_version, rows, self._shared)
        else:
            found = index.exact_search.top_k(vector[None], num, eligible=rows)
        if live.ids:
            if prior:
                added = live.top_fused(vector, num, prior.weight, prior.of_added, selection.added)
            else:
                added = live.top_k(vector[None], num, selection.added)
            found = merged(found, added, index.manifest.count, num)
        return Ranked(found.rows[0], found.scores[0])

    def _may_reach(self, query: Query, selection: Selection) -> Selection:
        """Return the documents of a selection that may reach the least score: all that do, and some more."""
        if (least := self._options.min_score) is None:
            return selection
        weight, of_version, _ = self._prior(query) or (1.0, np.zeros_like(selection.rows, np.float32), None)
        rows = self._index.exact_search.may_reach(least, query.vector, weight, of_version, selection.rows)
        return Selection(rows, selection.added)

    def _reaching(self, query: Query, selection: Selection, num: int) -> Ranked:
        """Return the documents of highest score that reach the least score, and the last one of the page before."""
        rows, scores = self._best(query, selection, num)
        if (least := self._options.min_score) is None:
            return Ranked(rows, scores)
        reaches = scores >= np.float64(least)  # compared as it is, and not rounded to float32
        if (before := self._pages.before) and before.num_shown and not before.added:
            reaches |= rows == before.row
        return Ranked(rows[reaches], scores[reaches])

    def _with_last(self, selection: Selection) -> Selection:
        """Return the selection with the last document of the page before, after which this page begins.

        It may have been deleted since.
        """
        before = self._pages.before
        if before is None or not before.num_shown or before.added or before.row >= len(selection.rows):
            return selection
        rows = selection.rows.copy()
        rows[before.row] = True
        return Selection(rows, selection.added)
