"""The pages of a list of hits: the start of a page, and the cursor at its end."""

import binascii
import json
import math
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import dropwhile, islice
from typing import Self

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, ShoalError
from shoal.operations import Search
from shoal_workers.index.search.groups import Lead
from shoal_workers.index.search.places import MAX_RANKED, Place

#: Least BM25 score above 0 that a cursor may contain. A search divides by this score.
_LEAST_BM25 = 1e-12


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page: `num_shown` hits or groups are on this page and the earlier pages.

    All pages belong to the search with this `digest`, and this page to a `version` of the index. The last hit, or the
    first hit of the last group, is in `row` and has the `score`; `added` is its digest if it was added since the build.
    `now` is the time of the first page, in Unix seconds: on all pages, boosts of recent documents are relative to it.
    `best_bm25` is the best BM25 score on the first page: on all pages, hybrid scores are divided by it.
    """

    digest: str
    version: str
    num_shown: int
    score: float
    row: int
    added: str
    now: float = 0.0
    best_bm25: float = 0.0

    def pack(self) -> str:
        """Return the cursor as a text of letters, digits, `-` and `_`."""
        return urlsafe_b64encode(wire.pack(asdict(self))).decode().rstrip("=")

    @classmethod
    def unpack(cls, text: str) -> Self:
        """Return the cursor that a text encodes. Raises InvalidRequest for a text that is not a cursor."""
        try:
            values = wire.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)), max_values=100)
            cursor = cls(**values)
            if any(type(getattr(cursor, item.name)) is not item.type for item in fields(cls)):
                raise TypeError("a value of another type")
            is_finite = all(map(math.isfinite, (cursor.score, cursor.now, cursor.best_bm25)))
            has_bm25 = cursor.best_bm25 == 0 or cursor.best_bm25 >= _LEAST_BM25
            if not (is_finite and has_bm25 and 0 <= cursor.num_shown <= MAX_RANKED and cursor.row >= 0):
                raise ValueError("a number that no search returns")
        except (binascii.Error, ValueError, TypeError, ShoalError) as error:
            raise InvalidRequest(
                f"cursor is {excerpt(text)}, which no search has returned: take it from cursors, or begin with an "
                "empty one"
            ) from error
        return cursor


class Pages:
    """The pages of a job's list in one `version` of an index with `count` rows.

    `added` are the packed documents that were added since the build.
    """

    def __init__(self, job: Search, version: str, count: int, added: Sequence[bytes]):
        self._job = job
        self._version = version
        self._count = count
        self._added = added

    @cached_property
    def before(self) -> Cursor | None:
        """The end of the previous page, or the start of the first page; None if the job asks for no cursor.

        Raises InvalidRequest for a cursor of another search.
        """
        if (text := self._job.search.cursor) is None:
            return None
        if not text:
            return Cursor(self._digest, self._version, 0, 0.0, 0, "", time.time())
        cursor = Cursor.unpack(text)
        if cursor.digest != self._digest:
            raise InvalidRequest(
                "cursor belongs to another search or index: repeat the search of the previous page, or begin anew"
            )
        return cursor

    @property
    def last_row(self) -> int | None:
        """The row of the last hit of the previous page; None if that is in another version or is an added document."""
        before = self.before
        if before is None or not before.num_shown or before.added:
            return None
        return before.row if before.version == self._version and before.row < self._count else None

    def rest(self, leads: Callable[[], Iterator[Lead]]) -> Iterator[Lead]:
        """Return an iterator over the groups that come after the earlier pages; `leads` returns one over all groups.

        Scores may differ in their last digits from page to page, so the group that was shown last is looked for first.
        If the previous page was from another version, documents have other rows, so the first `num_shown` are skipped.
        """
        before, groups = self.before, leads()
        if before is None or not before.num_shown:
            return groups
        if before.version != self._version:
            return islice(groups, before.num_shown, None)
        if any(self._is_last(before, lead.place) for lead in groups):
            return groups
        if self._job.search.sort is not None:  # the last document was added and then deleted
            return islice(leads(), before.num_shown - 1, None)
        last = (-before.score, before.row)
        return dropwhile(lambda lead: (-lead.place.score, lead.place.row) <= last, leads())

    def end(self, last: Place, num_shown: int, best_bm25: float) -> str:
        """Return the cursor at the end of a page; `last` is the best document of its last group."""
        now, added = self.before.now if self.before else 0.0, self._digest_of_added(last.row)
        return Cursor(self._digest, self._version, num_shown, last.score, last.row, added, now, best_bm25).pack()

    @cached_property
    def _digest(self) -> str:
        """The digest of the search, which is the same on all of its pages."""
        options = replace(
            self._job.search, cursor="", fields=None, snippet=None, explain=False, facets=None, facets_top_n=None
        )
        asked = json.dumps(replace(self._job, k=1, search=options).body(), sort_keys=True)
        return blake2b(asked.encode(), digest_size=8).hexdigest()

    def _is_last(self, cursor: Cursor, place: Place) -> bool:
        # An added document is known by its digest, because its row may change, and its id may get another text.
        return self._digest_of_added(place.row) == cursor.added if cursor.added else place.row == cursor.row

    def _digest_of_added(self, row: int) -> str:
        """Return the digest of a document that was added since the build; an empty text for other documents."""
        return blake2b(self._added[row - self._count], digest_size=8).hexdigest() if row >= self._count else ""
