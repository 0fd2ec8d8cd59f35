"""The answers of an API over HTTP: their values, errors and replies, and the limits that the API announces."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import MAX_REQUEST_TEXTS, Job
from shoal.contract.replies import CHUNK_COLUMNS, OUTPUT_FIELDS, Reply
from shoal.errors import BY_CODE, InvalidText, MalformedJob, ShoalError, TooLarge, Unavailable
from shoal.operations import MAX_VALUES

#: Largest number of commas and opening brackets in a JSON answer, texts included. It bounds the number of values.
MAX_JSON_MARKS = 2**22

#: Largest number of characters that are read of an error's message.
MAX_MESSAGE_CHARS = 1_000

#: Largest size of the texts in one request, in bytes, unless the API allows less. Longer lists are split.
MAX_REQUEST_BYTES = 4 * 2**20

#: Bytes that a request reserves for everything except its texts, and for the header of each text.
_BYTES_OF_OPTIONS, _BYTES_OF_A_HEAD = 4_096, 5

#: The fields of an answer that have other names in `Reply`.
_NAMES = {"embeddings": "vectors", "results": "hits"} | OUTPUT_FIELDS

#: The media types that a client reads.
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
        """The media type of the body; empty if the answer does not name it."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def retry_after_s(self) -> int:
        """The seconds to wait before another attempt; 0 if the answer does not say."""
        seconds = self.headers.get("Retry-After", "")
        return int(seconds) if re.fullmatch("[0-9]{1,9}", seconds) else 0

    def values(self) -> dict[str, Any]:
        """Return the map in the body. Raise MalformedJob if it is damaged, Unavailable if it is not from Shoal."""
        if self.media_type not in (MSGPACK, JSON):
            raise self._foreign()
        try:
            if self.media_type == MSGPACK:
                values = wire.unpack(self.data, MAX_VALUES)
            elif sum(map(self.data.count, (b",", b"[", b"{"))) > MAX_JSON_MARKS:
                raise TooLarge(f"it has more than {MAX_JSON_MARKS:,} commas and brackets")
            else:
                values = json.loads(self.data)
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

    def error(self) -> ShoalError | None:
        """Return the error in the answer; None if the answer is a success."""
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
        error.retry_after_s = self.retry_after_s
        return error

    def _foreign(self) -> Unavailable:
        found = self.media_type[:MAX_MESSAGE_CHARS] or "without a media type"
        if 300 <= self.status < 400:
            found = f"a redirect to {excerpt(self.headers.get('Location', ''))}"
        return Unavailable(
            f"{self.source} answered {self.status} ({found}), unlike Shoal: check the URL and any proxy in between"
        )


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one request: the number of texts, and their total size in bytes."""

    max_texts: int
    max_bytes: int

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Self:
        """Return the limits in `info`, an API's description of itself; raise MalformedJob if they are missing."""
        try:
            limits, dimension = info["limits"], int(info["dimension"] or 1)  # null while no worker is ready
            max_vectors = int(limits["max_response_mb"]) * 2**20 // (4 * max(1, dimension))
            max_texts = min(MAX_REQUEST_TEXTS, int(limits["max_backlog_texts"]), max_vectors)
            max_bytes = min(MAX_REQUEST_BYTES, int(limits["max_request_bytes"]) - _BYTES_OF_OPTIONS)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MalformedJob(f"/info has no limits that can be read ({error!s:.200}): check the URL") from error
        return cls(max(1, max_texts), max_bytes)

    def split(self, job: Job) -> list[Job]:
        """Split the job into jobs that each fit into one request."""
        max_texts = min(self.max_texts, job.texts_per_request)
        sizes = (len(text.encode(errors="surrogatepass")) + _BYTES_OF_A_HEAD for text in job.texts)
        return list(job.cut(max_texts, self.max_bytes, sizes))


def reply_of(job_id: str, values: Mapping[str, Any]) -> Reply:
    """Return the reply to a job from the values of an answer; raise MalformedJob if they contradict each other."""
    if "error" in values:
        raise MalformedJob(f"the answer has an error with a status of success: {values['error']!s:.200}")
    named = {"id": job_id} | {_NAMES.get(name, name): value for name, value in values.items()}
    counts: list[int] | None = None
    try:
        if "offsets" in named:
            counts = np.diff(np.frombuffer(named["offsets"]["data"], "<i8")).tolist()
        if "chunks" in named:
            rows = np.frombuffer(named["chunks"]["data"], "<i8").reshape(sum(counts or ()), len(CHUNK_COLUMNS))
            left = iter(rows.tolist())
            chunks = [[dict(zip(CHUNK_COLUMNS, next(left), strict=True)) for _ in range(n)] for n in counts or ()]
            tokens = [sum(chunk["tokens"] for chunk in part) for part in chunks]
            named |= {"output": "chunks", "chunks": chunks, "tokens": tokens}
        elif counts is not None:
            named |= {"output": "tokens", "tokens": counts}
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise MalformedJob(f"the offsets or the chunks of the answer cannot be read ({error})") from error
    reply = Reply.join([Reply.from_map(named)])
    num_vectors = len(reply.tokens) if counts is None else sum(counts)
    if reply.vectors is not None and reply.tokens and len(reply.vectors) != num_vectors:
        raise MalformedJob(f"the answer has {len(reply.vectors):,} vectors, and {num_vectors:,} are expected")
    return reply
