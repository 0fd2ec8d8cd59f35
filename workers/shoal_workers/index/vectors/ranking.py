"""The documents of one list of hits in their order, found only as far as they are asked for."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Most documents that a list is made of: pages and groups come to an end there.
MAX_RANKED = 10_000

#: Times as many documents that are found the next time.
GROWTH = 4


class Ranked(NamedTuple):
    """The rows of some documents, intp `[found]`, and their scores, float32, best first.

    The rows of documents that were added since the build follow those of the version.
    """

    rows: NDArray[np.intp]
    scores: NDArray[np.float32]


class Place(NamedTuple):
    """A document in a ranking: its row and its score, and that of the first stage if the reranker gave it another."""

    row: int
    score: float
    first_score: float | None = None


class Ranking:
    """The ranking of one list. `find` returns the best documents, as many as asked, or all if there are fewer.

    `first` documents are found the first time.
    """

    def __init__(self, find: Callable[[int], Ranked], first: int):
        self._find = find
        self._first = first
        self._found: Ranked | None = None
        self._is_all = False

    def top(self, num: int) -> Ranked:
        """Return the `num` best documents, or all if there are fewer."""
        if self._found is None or (len(self._found.rows) < num and not self._is_all):
            self._found = self._find(num)
            self._is_all = len(self._found.rows) < num
        return Ranked(self._found.rows[:num], self._found.scores[:num])

    def __iter__(self) -> Iterator[Place]:
        """Return an iterator over the documents, at most `MAX_RANKED`."""
        num, done = min(self._first, MAX_RANKED), 0
        while True:
            rows, scores = self.top(num)
            yield from map(Place, rows[done:].tolist(), scores[done:].tolist())
            done = len(rows)
            if done < num or num == MAX_RANKED:
                return
            num = min(GROWTH * num, MAX_RANKED)
