"""The answers of an API over HTTP: their values, or their errors."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import BY_CODE, InvalidText, MalformedJob, ShoalError, TooLarge, Unavailable
from shoal.operations import MAX_VALUES

#: Most commas and opening brackets in an answer that is JSON. Each value has one, so such an answer takes as little
#: memory as one of `MAX_ANSWER_BYTES` in msgpack. Those of texts count too: hits with 200 MB of texts have fewer.
MAX_JSON_MARKS = 2**22

#: Most characters of an error's message that are read.
MAX_MESSAGE_CHARS = 1_000

#: The media types that are read.
MSGPACK, JSON = "application/msgpack", "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server at the URL `source`: its status, headers and body."""

    source: str
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def media_type(self) -> str:
        """The media type of the body; empty if the answer does not tell it."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def retry_after_s(self) -> int:
        """The seconds to wait before another attempt; 0 if the answer does not tell them."""
        seconds = self.headers.get("Retry-After", "")
        return int(seconds) if re.fullmatch("[0-9]{1,9}", seconds) else 0

    def values(self) -> dict[str, Any]:
        """Return the map that the body is.

        Raises MalformedJob if it is none, and Unavailable for an answer of another program.
        """
        if self.media_type not in (MSGPACK, JSON):
            raise self._foreign()
        try:
            values = self._from_json() if self.media_type == JSON else wire.unpack(self.data, MAX_VALUES)
        except (ValueError, RecursionError, InvalidText, MalformedJob, TooLarge) as error:
            raise MalformedJob(f"the answer of {self.source} cannot be read: {str(error)[:200]}") from error
        if not isinstance(values, dict):
            raise MalformedJob(f"the answer of {self.source} is no object with named fields: check Shoal's version")
        return values

    def text(self, name: str) -> str:
        """Return a field of the body; raise MalformedJob unless it is a string."""
        value = self.values().get(name)
        if not isinstance(value, str):
            raise MalformedJob(f"the answer of {self.source} has no {name}: check Shoal's version")
        return value

    def _from_json(self) -> Any:
        """Return the value that the body is; raise TooLarge for one that may have too many values."""
        if sum(map(self.data.count, (b",", b"[", b"{"))) > MAX_JSON_MARKS:
            raise TooLarge(f"it has more than {MAX_JSON_MARKS:,} commas and brackets")
        return json.loads(self.data)

    def error(self) -> ShoalError | None:
        """Return the error that the answer tells; None if it tells none."""
        if self.status in (200, 202):
            return None
        try:
            about = self.values()["error"]
            code, message = (str(about[name])[:MAX_MESSAGE_CHARS] for name in ("code", "message"))
        except (ShoalError, KeyError, TypeError):
            return self._foreign()
        if code not in BY_CODE:
            return Unavailable(f"{self.source} answered {self.status} ({message}): check the URL and Shoal's version")
        error = BY_CODE[code](message)
        if hasattr(error, "retry_after_s"):
            error.retry_after_s = self.retry_after_s
        return error

    def _foreign(self) -> Unavailable:
        found = self.media_type[:MAX_MESSAGE_CHARS] or "without a media type"
        if 300 <= self.status < 400:
            found = f"a redirect to {excerpt(self.headers.get('Location', ''))}"
        return Unavailable(
            f"{self.source} answered {self.status} ({found}), as no Shoal does: check the URL, and any proxy on the way"
        )
