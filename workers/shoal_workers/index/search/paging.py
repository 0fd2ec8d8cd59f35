"""The ranked documents of a list of hits, and its pages: a page skips as many hits as the earlier pages have shown."""

import binascii
import json
import math
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import NamedTuple, Self

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, ShoalError
from shoal.operations import Search
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


@dataclass(frozen=True, slots=True)
class Cursor:
    """The start of a page: `num_shown` hits or groups are on the earlier pages.

    All pages belong to the search with this `digest`. `now` is the time of the first page, in Unix seconds: on all
    pages, boosts of recent documents are relative to it.
    """

    digest: str
    num_shown: int
    now: float

    @classmethod
    def of(cls, job: Search) -> Self | None:
        """Return the start of the page that a job asks for; None if the job asks for no cursor.

        Raises InvalidRequest for a cursor of another search, and for a text that is not a cursor.
        """
        if (text := job.search.cursor) is None:
            return None
        if not text:
            return cls(_digest_of(job), 0, time.time())
        cursor = cls.unpack(text)
        if cursor.digest != _digest_of(job):
            raise InvalidRequest(
                "cursor belongs to another search or index: repeat the search of the previous page, or begin anew"
            )
        return cursor

    def pack(self) -> str:
        """Return the cursor as a text of letters, digits, `-` and `_`."""
        return urlsafe_b64encode(wire.pack(asdict(self))).decode().rstrip("=")

    @classmethod
    def unpack(cls, text: str) -> Self:
        """Return the cursor that a text encodes. Raises InvalidRequest for a text that is not a cursor."""
        try:
            values = wire.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)), max_values=100)
            cursor = cls(**values)
            if [type(value) for value in values.values()] != [str, int, float]:
                raise TypeError("a value of another type")
            if not (math.isfinite(cursor.now) and 0 <= cursor.num_shown <= MAX_RANKED):
                raise ValueError("a number that no search returns")
        except (binascii.Error, ValueError, TypeError, ShoalError) as error:
            raise InvalidRequest(
                f"cursor is {excerpt(text)}, which no search has returned: take it from cursors, or begin with an "
                "empty one"
            ) from error
        return cursor


def _digest_of(job: Search) -> str:
    """Return the digest of a search, which is the same on all of its pages."""
    options = replace(job.search, cursor="", fields=None, snippet=None, explain=False, facets=None, facets_top_n=None)
    asked = json.dumps(replace(job, k=1, search=options).body(), sort_keys=True)
    return blake2b(asked.encode(), digest_size=8).hexdigest()
