"""Cursors: the place after which the next page of a list of hits begins, as clients keep it."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, fields
from typing import Self

from shoal import wire
from shoal.errors import InvalidRequest, ShoalError
from shoal.excerpt import excerpt


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page: `num_shown` hits or groups are on it and the pages before.

    All pages are of one `version` of the index, and of the search with this `digest`. The last hit, or the first one of
    the last group, is in `row` and has the `score`; `id` tells one that was added since the build. `now` is the time of
    the first page, in Unix seconds, by which documents are recent on all of them.
    """

    digest: str
    version: str
    num_shown: int
    score: float
    row: int
    id: str
    now: float = 0.0

    def pack(self) -> str:
        """Return the cursor in letters, digits, `-` and `_`."""
        return urlsafe_b64encode(wire.pack(asdict(self))).decode().rstrip("=")

    @classmethod
    def unpack(cls, text: str) -> Self:
        """Return the cursor; raise InvalidRequest for a text that is none."""
        try:
            values = wire.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)), max_values=100)
            cursor = cls(**values)
            if any(type(getattr(cursor, item.name)) is not item.type for item in fields(cls)):
                raise TypeError("a value of another type")
        except (binascii.Error, ValueError, TypeError, ShoalError) as error:
            raise InvalidRequest(
                f"cursor is {excerpt(text)}, which no search has answered: take it from cursors, or begin with an "
                "empty one"
            ) from error
        return cursor
