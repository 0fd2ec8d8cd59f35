"""The pages of a list of hits: where one begins, and the cursor with which it ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import dropwhile, islice

from shoal.errors import InvalidRequest
from shoal.jobs import Job
from shoal_workers.index.search.cursor import Cursor
from shoal_workers.index.search.grouping import Lead
from shoal_workers.index.search.ranking import Place


class Pages:
    """The pages of a job's list in one `version` of an index, which has `count` rows.

    `added_ids` are the ids of the documents that were added since.
    """

    def __init__(self, job: Job, version: str, count: int, added_ids: Sequence[str]):
        self._job = job
        self._version = version
        self._count = count
        self._added_ids = added_ids

    @cached_property
    def before(self) -> Cursor | None:
        """The end of the page before; None if no cursor is asked for. Raises InvalidRequest."""
        if (text := self._job.search.cursor) is None:
            return None
        if not text:
            return Cursor(self._digest, self._version, 0, 0.0, 0, "", time.time())
        cursor = Cursor.unpack(text)
        if cursor.digest != self._digest or cursor.version != self._version:
            raise InvalidRequest("cursor is of another search: ask the same as for the page before, or begin anew")
        return cursor

    def rest(self, leads: Callable[[], Iterator[Lead]]) -> Iterator[Lead]:
        """Return an iterator over the groups after those of the pages before; `leads` returns one over all.

        Scores may differ in their last digits from those of the page before, so its last group is looked for first.
        """
        before, groups = self.before, leads()
        if before is None or not before.num_shown or any(self._is_last(before, lead.place) for lead in groups):
            return groups
        if self._job.search.sort is not None:  # the last document was deleted since
            return islice(leads(), before.num_shown, None)
        last = (-before.score, before.row)
        return dropwhile(lambda lead: (-lead.place.score, lead.place.row) <= last, leads())

    def end(self, last: Place, num_shown: int) -> str:
        """Return the cursor after a page whose last group is led by this document."""
        now = self.before.now if self.before else 0.0
        return Cursor(
            self._digest, self._version, num_shown, last.score, last.row, self._added_id(last.row), now
        ).pack()

    @cached_property
    def _digest(self) -> str:
        """The digest of the search, the same for all of its pages."""
        options = replace(self._job.search, cursor="", fields=None, snippet=None, explain=False)
        asked = replace(self._job, id="-", deadline=None, reply_to=None, k=1, search=options)
        return blake2b(asked.pack(), digest_size=8).hexdigest()

    def _is_last(self, cursor: Cursor, place: Place) -> bool:
        return self._added_id(place.row) == cursor.id if cursor.id else place.row == cursor.row

    def _added_id(self, row: int) -> str:
        """Return the id of a document that was added since the build; an empty one for those of the version."""
        return self._added_ids[row - self._count] if row >= self._count else ""
