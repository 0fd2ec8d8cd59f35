"""The scores of one search: what words and boosts add to the cosines of documents."""

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.operations.search_fields import parse_boosts
from shoal.operations.search_options import SearchOptions
from shoal_workers.index.search.boosts import Boosts, boosts_of
from shoal_workers.index.search.fields import Selection
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.search.pages import Pages
from shoal_workers.index.search.query import Query
from shoal_workers.index.search.query_words import ALPHA, QueryWords
from shoal_workers.index.vectors.fused_search import Prior

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

#: Most queries whose words are kept while a job is searched for: each has a number for each document.
MAX_KEPT_WORDS = 32


class Scoring:
    """The parts of the scores of one job's lists, in a version with the changes of one moment.

    `selection` returns the documents that may be in the list of a query.
    """

    def __init__(
        self,
        index: "Index",
        live: LiveDocuments,
        options: SearchOptions,
        pages: Pages,
        selection: Callable[[Query], Selection],
    ):
        self._index = index
        self._live = live
        self._options = options
        self._pages = pages
        self._selection = selection
        self._words: dict[Query, QueryWords] = {}
        self._last: tuple[Query | None, Prior | None] = (None, None)

    def prior(self, query: Query) -> Prior | None:
        """Return the part of the scores that words and boosts have; None where cosines are the scores.

        That of the query that was asked for last is kept.
        """
        if self._last[0] is not query:
            self._last = query, self._with_boosts(self._prior_of_words(query))
        return self._last[1]

    @cached_property
    def boosts(self) -> Boosts:
        """The numbers that boosts add to the scores."""
        before, fields = self._pages.before, self._index.fields_at(self._live)
        return boosts_of(parse_boosts(self._options.boost), fields, before.now if before else time.time())

    def best_bm25(self, query: Query) -> float:
        """Return the BM25 score of which those of a hybrid search are parts; 0 where it has none.

        It is the best one of the list, on later pages that of the first one: else the order could change.
        """
        before = self._pages.before
        if before and before.num_shown:
            return before.best_bm25
        if self._options.mode != "hybrid" or not query.texts:
            return 0.0
        return self.words(query).best(*self._selection(query))

    def words(self, query: Query) -> QueryWords:
        """Return the words of the texts of a query; raise IndexMismatch if the index knows no words."""
        if query not in self._words:
            if len(self._words) == MAX_KEPT_WORDS:
                del self._words[next(iter(self._words))]
            self._words[query] = QueryWords.of(query.texts, self._index.lexical, self._live)
        return self._words[query]

    def _with_boosts(self, prior: Prior | None) -> Prior | None:
        if self._options.boost is None:
            return prior
        if prior is None:
            return Prior(1.0, *self.boosts)
        return Prior(prior.weight, prior.of_version + self.boosts.rows, prior.of_added + self.boosts.added)

    def _prior_of_words(self, query: Query) -> Prior | None:
        """Return the part of the scores that the words of a query have; None where cosines are the scores."""
        if self._options.mode == "dense" or (self._options.mode == "hybrid" and not query.texts):
            return None
        if self._options.mode == "lexical":
            return self.words(query).lexical_prior()
        alpha = ALPHA if self._options.alpha is None else self._options.alpha
        return self.words(query).hybrid_prior(alpha, self.best_bm25(query))
