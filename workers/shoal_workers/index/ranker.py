"""The ranking of the documents that may be in a list of hits: by score, or by fields."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.operations.search_fields import parse_sort
from shoal.operations.search_options import SearchOptions
from shoal_workers.index.scoring import Scoring
from shoal_workers.index.search.field_order import FieldOrder
from shoal_workers.index.search.fields import Selection
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.search.pages import Pages
from shoal_workers.index.search.query import Query
from shoal_workers.index.vectors.approximate_search import ApproximateSearch
from shoal_workers.index.vectors.fused_search import Prior
from shoal_workers.index.vectors.ranking import Ranked
from shoal_workers.index.vectors.search import ExactSearch, merged
from shoal_workers.index.vectors.shared_products import SharedProducts

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

_NO_SCORES: NDArray[np.float32] = np.empty(0, np.float32)


class Ranker:
    """Ranks the documents of one job's lists, in a version with the changes of one moment.

    `shared` has the products for the texts of several jobs. It `is_approximate` once a ranking may lack documents.
    """

    def __init__(
        self,
        index: "Index",
        live: LiveDocuments,
        options: SearchOptions,
        pages: Pages,
        scoring: Scoring,
        shared: SharedProducts | None,
    ):
        self.is_approximate = False
        self._index = index
        self._live = live
        self._options = options
        self._pages = pages
        self._scoring = scoring
        self._shared = shared

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
        if prior := self._scoring.prior(query):
            return self._fused(query, prior, selection, num)
        vector = query.vector[None]
        found = self._search_of(selection).top_k(vector, num, eligible=selection.rows)
        if self._live.ids:
            added = self._live.top_k(vector, num, selection.added)
            found = merged(found, added, self._index.manifest.count, num)
        return Ranked(found.rows[0], found.scores[0])

    def _search_of(self, selection: Selection) -> ExactSearch | ApproximateSearch:
        """Return the search for the rows of a selection: the approximate one, where that is quicker and wanted."""
        approximate = None if self._options.exact else self._index.approximate_search
        if approximate is None or not approximate.is_quicker(int(np.count_nonzero(selection.rows))):
            return self._index.exact_search
        self.is_approximate = True
        return approximate

    def _fused(self, query: Query, prior: Prior, selection: Selection, num: int) -> Ranked:
        index, weight = self._index, prior.weight
        found = index.exact_search.top_fused(query.vector, num, weight, prior.of_version, selection.rows, self._shared)
        if self._live.ids:
            added = self._live.top_fused(query.vector, num, weight, prior.of_added, selection.added)
            found = merged(found, added, index.manifest.count, num)
        return Ranked(found.rows[0], found.scores[0])

    def _may_reach(self, query: Query, selection: Selection) -> Selection:
        """Return the documents of a selection that may reach the least score: all that do, and some more."""
        if (least := self._options.min_score) is None:
            return selection
        weight, of_version, _ = self._scoring.prior(query) or Prior(
            1.0, np.zeros_like(selection.rows, np.float32), _NO_SCORES
        )
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
