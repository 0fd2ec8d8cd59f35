"""Cursors: the place after which the next page of a list of hits begins, as clients keep it."""

import binascii
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, fields
from typing import Self

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, ShoalError
from shoal_workers.index.vectors.ranking import MAX_RANKED

#: Least BM25 score above 0 that a cursor has: a search divides by it.
_LEAST_BM25 = 1e-12


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page: `num_shown` hits or groups are on it and the pages before.

    All pages are of one `version` of the `index`, and of the search with this `digest`. The last hit, or the first one
    of the last group, is in `row` and has the `score`; `added` is the digest of one that was added since the build.
    `now` is the time of the first page, in Unix seconds, by which documents are recent on all of them, and `best_bm25`
    the best BM25 score then, of which those of a hybrid search are parts on all of them. Cursors of earlier releases
    have no `index`.
    """

    digest: str
    version: str
    num_shown: int
    score: float
    row: int
    added: str
    now: float = 0.0
    best_bm25: float = 0.0
    index: str = ""

    def pack(self) -> str:
        """Return the cursor in letters, digits, `-` and `_`."""
        return urlsafe_b64encode(wire.pack(asdict(self))).decode().rstrip("=")

    @classmethod
    def unpack(cls, text: str) -> Self:
        """Return the cursor; raise InvalidRequest for a text that is not a cursor."""
        try:
            values = wire.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)), max_values=100)
            cursor = cls(**values)
            if any(type(getattr(cursor, item.name)) is not item.type for item in fields(cls)):
                raise TypeError("a value of another type")
            if not cursor._is_possible:
                raise ValueError("a number that no search answers")
        except (binascii.Error, ValueError, TypeError, ShoalError) as error:
            raise InvalidRequest(
                f"cursor is {excerpt(text)}, which no search has answered: take it from cursors, or begin with an "
                "empty one"
            ) from error
        return cursor

    def version_in(self, index: str) -> str:
        """Return the version that its pages are of; raise InvalidRequest if that is one of another index."""
        if self.index not in ("", index):
            raise InvalidRequest(
                f"cursor is of the index {excerpt(self.index)}, and index is {excerpt(index)}: name that index, or "
                "begin with an empty cursor"
            )
        return self.version

    @property
    def _is_possible(self) -> bool:
        """True if a search may have answered such numbers."""
        is_finite = all(map(math.isfinite, (self.score, self.now, self.best_bm25)))
        has_bm25 = self.best_bm25 == 0 or self.best_bm25 >= _LEAST_BM25
        return is_finite and has_bm25 and 0 <= self.num_shown <= MAX_RANKED and self.row >= 0
