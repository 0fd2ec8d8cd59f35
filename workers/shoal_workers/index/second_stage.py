"""The second stage of a search: what was found is scored by the reranker, and the best of it is answered."""

from collections.abc import Iterator, Sequence

from shoal.contract.options import Options
from shoal_workers.index.ranked_search import RankedSearch, SearchAnswer
from shoal_workers.index.vectors.ranking import Place

#: The options with which pairs are read: those of the job are about its queries.
PAIR_OPTIONS = Options()


class SecondStage:
    """The documents that a search has found, and `pairs` of a query and a text of them to be scored, list by list.

    It is made as `RankedSearch.find` finds, and raises the same.
    """

    def __init__(self, ranked: RankedSearch):
        self._ranked = ranked
        self._lists = ranked.find()
        self.pairs = [
            ranked.pair(found.query, place) for found in self._lists for group in found.groups for place in group
        ]

    def answer(self, scores: Sequence[float]) -> SearchAnswer:
        """Return the answer to the search, by the scores of all pairs."""
        following = iter(scores)
        lists = [
            found._replace(groups=[_rescored(group, following) for group in found.groups]) for found in self._lists
        ]
        for found in lists:
            found.groups.sort(key=lambda group: -group[0].score)
        return self._ranked.answer(lists)


def _rescored(group: Sequence[Place], scores: Iterator[float]) -> list[Place]:
    """Return the documents of a group in the order of their next scores."""
    places = [Place(place.row, next(scores), place.score) for place in group]
    return sorted(places, key=lambda place: -place.score)
