"""The ranked documents of one list of hits, best first. They are found only when they are needed."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shoal_workers.index.vectors.exact_search import TopK

#: Largest number of documents in a list. The pages and groups of the list end there.
MAX_RANKED = 10_000

#: Factor by which the number of documents grows from one search to the next if more documents are needed.
GROWTH = 4


class Place(NamedTuple):
    """A document in a ranking: its row, its score, and the score before reranking if the document was reranked."""

    row: int
    score: float
    first_score: float | None = None


class Places:
    """The ranked documents of one list. `find` returns the given number of best documents, or all if there are fewer.

    The first call of `find` asks for `first` documents.
    """

    def __init__(self, find: Callable[[int], TopK], first: int):
        self._find = find
        self._first = first
        self._found: TopK | None = None
        self._is_all = False

    def __iter__(self) -> Iterator[Place]:
        """Return an iterator over the documents, at most `MAX_RANKED`, best first."""
        num, done = min(self._first, MAX_RANKED), 0
        while True:
            if self._found is None or (len(self._found.rows) < num and not self._is_all):
                self._found = self._find(num)
                self._is_all = len(self._found.rows) < num
            rows, scores = (numbers[done:num].tolist() for numbers in self._found)
            yield from map(Place, rows, scores)
            done += len(rows)
            if done < num or num == MAX_RANKED:
                return
            num = min(GROWTH * num, MAX_RANKED)
