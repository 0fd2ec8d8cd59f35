"""The hits of a search: the documents that were found, as they are answered."""

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.operations import Search
from shoal.operations.search_options import SNIPPET_CHARS
from shoal_workers.index.query import Query
from shoal_workers.index.ranker import Ranker
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.vectors.ranking import Place

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

#: Least and most characters of a document in which a passage for its snippet is looked for, and most of all together.
LEAST_READ, MOST_READ, MOST_READ_TOGETHER = 1_024, 2**16, 2**22


class Hits:
    """The hits of one job, made of the documents of a version and of those that were added since."""

    def __init__(self, index: "Index", live: LiveDocuments, job: Search, ranker: Ranker):
        self._index = index
        self._live = live
        self._options = job.search
        self._ranker = ranker
        #: In how many characters of each hit a passage is looked for.
        self._num_read = MOST_READ_TOGETHER // (job.k * job.search.group_size * job.num_lists)
        self._num_read = max(LEAST_READ, min(MOST_READ, self._num_read))

    def hit(self, query: Query, place: Place) -> dict[str, Any]:
        """Return what is answered of a document in the list of a query. Raises IndexCorrupt."""
        document = self._index.document_of(place.row, self._live)
        text = document["text"]
        hit = {"id": document.pop("id"), "score": place.score}
        names = document if self._options.fields is None else self._options.fields
        hit |= {name: document[name] for name in names if name in document}
        if self._options.snippet is not None and query.texts:
            max_chars = self._options.snippet.get("max_chars", SNIPPET_CHARS)
            hit["snippet"] = self._ranker.words(query).snippet(text, max_chars, self._num_read)
        if self._options.map_place:
            hit["map_place"] = self._index.map.place(place.row, self._live)
        if self._options.explain:
            hit["explain"] = self._explain(query, place)
        return hit

    def _explain(self, query: Query, place: Place) -> dict[str, Any]:
        """Return the parts of a score."""
        row = place.row - self._index.manifest.count
        vector = self._live.vectors[row] if row >= 0 else self._index.vectors[place.row]
        explained: dict[str, Any] = {"mode": self._options.mode, "cosine": float(np.vecdot(vector, query.vector))}
        if self._options.mode != "dense" and query.texts:
            explained |= self._ranker.words(query).explain(place.row)
        if self._options.boost is not None:
            boosts = self._ranker.boosts
            explained["boost"] = float(boosts.rows[place.row] if row < 0 else boosts.added[row])
        if place.first_score is not None:
            explained["rerank"] = place.score
        return explained
