"""Responses: JSON bodies, and the headers that all have."""

import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from flask import Response
from numpy.typing import NDArray
from werkzeug.datastructures import Headers

from shoal.jobs import Job
from shoal.replies import TIMINGS, Reply
from shoal_api.request import json_request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Headers of every response: browsers must not guess its type, nor send its address along with links.
SAFETY = (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))

#: The policy that no other site may show the response as part of its own page.
NO_FRAMES = "frame-ancestors 'none'"


#: Largest body that the server takes in one piece. A larger one stays with its thread until the client has read it.
MAX_WHOLE_BYTES = 2**20

#: Size of the pieces of a larger body: the server has a few of them at a time.
PIECE_BYTES = 2**16


class _Pieces:
    """A body in pieces, each made when the connection has room for it; the server calls `close` after the last.

    Its thread has no turn any more: a client that reads slowly must not keep that from others.
    """

    def __init__(self, pieces: Iterable[bytes], close: Callable[[], None]):
        self._pieces = pieces
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


class WholeResponse(Response):
    """A response whose body is complete in memory, so werkzeug computes nothing and the server iterates over nothing.

    With this a request takes a third less of the API's processor time, and a client that is slow to read the response
    holds no thread, unless it has more than `MAX_WHOLE_BYTES`.
    """

    #: Headers that restrict browsers and caches. The page at /docs has others.
    safety: tuple[tuple[str, str], ...] = (
        *SAFETY,
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", f"default-src 'none'; {NO_FRAMES}"),
    )

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Send the headers, which have the length, and return the body: a list, if the server may take it in one piece.

        What `call_on_close` was given is called once a large body is sent or its connection has ended; else at once.
        """
        start_response(self.status, [*self.headers.to_wsgi_list(), *self.safety])
        has_body = environ["REQUEST_METHOD"] != "HEAD" and self.status_code != 304
        body = self.get_data()
        if has_body and len(body) > MAX_WHOLE_BYTES:
            return _Pieces(_cut(body), self.close)
        self.close()
        return [body] if has_body else []

    @property
    def keeps_thread(self) -> bool:
        """True if the response stays with its thread until the client has read it."""
        return (self.content_length or 0) > MAX_WHOLE_BYTES


class StreamedResponse(WholeResponse):
    """A response whose body is made piece by piece, while the client reads it."""

    def __init__(self, pieces: Iterable[bytes], headers: Mapping[str, str]):
        super().__init__(headers=Headers(headers))
        self._pieces = pieces

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Send the headers and return the pieces; what `call_on_close` was given is called after the last one."""
        start_response(self.status, [*self.headers.to_wsgi_list(), *self.safety])
        if environ["REQUEST_METHOD"] == "HEAD":
            self.close()
            return []
        return _Pieces(self._pieces, self.close)

    @property
    def keeps_thread(self) -> bool:
        """True: each piece is made by the thread of the request."""
        return True


def _cut(body: bytes) -> Iterator[bytes]:
    return (body[n : n + PIECE_BYTES] for n in range(0, len(body), PIECE_BYTES))


def rendered(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the value as a JSON response."""
    return sent(json_line(value), "application/json", status, headers)


def json_line(value: Any) -> bytes:
    """Return a line of JSON; float32 arrays become the shortest digits that read back the same."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def is_json(value: Any) -> bool:
    """Return True if the value reads back the same from the JSON that `rendered` makes of it; NaN becomes null."""
    try:
        return bool(orjson.loads(orjson.dumps(value)) == value)
    except TypeError:
        return False


def sent(data: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with these bytes, which are of the media type."""
    described = {"Content-Type": media_type, "Content-Length": str(len(data)), **(headers or {})}
    return WholeResponse([data], status, Headers(described))


def base64_rows(rows: NDArray[Any]) -> list[str]:
    """Return each row as base64 of its numbers: little-endian 32-bit floats, or bytes."""
    return [b64encode(row).decode() for row in (rows.astype("<f4", copy=False) if rows.dtype == np.float32 else rows)]


def with_tei_headers(response: Response, reply: Reply, job: Job) -> Response:
    """Add what the job took, as Text Embeddings Inference tells it: times in whole ms."""
    total_ms = str(int((time.perf_counter() - json_request().started_s) * 1000))
    timings = {name: str(int(seconds * 1000)) for name, seconds in reply.timings.items()}
    num_chars = len(job.texts) * sum(map(len, job.queries.values())) + sum(map(len, job.texts))
    response.headers.extend(
        {
            "X-Compute-Type": "cpu",
            "X-Compute-Time": total_ms,
            "X-Compute-Characters": str(num_chars),
            "X-Compute-Tokens": str(sum(reply.tokens)),
            "X-Total-Time": total_ms,
            "X-Tokenization-Time": timings.get("tokenize_s", "0"),
            "X-Queue-Time": timings.get("queue_s", "0"),
            "X-Inference-Time": timings.get("encode_s", "0"),
        }
    )
    return response


def result_fields(reply: Reply) -> dict[str, Any]:
    """Return the fields of the result of a job beside its vectors, hits or scores."""
    return {
        "id": reply.id,
        "status": reply.status,
        "tokens": reply.tokens,
        "truncated": reply.truncated,
        "characters": reply.characters,
        "timings": reply.timings,
        "cached": reply.cached,
        "model": reply.model,
    }


def search_fields(reply: Reply) -> dict[str, Any]:
    """Return the fields of the answer to a search: its hits, and what else it asks for."""
    asked: dict[str, Any] = {"cursors": reply.cursors, "totals": reply.totals, "facets": reply.facets}
    asked["map_places"] = reply.map_places
    found: dict[str, Any] = {"results": reply.hits, "index_version": reply.index_version}
    if reply.approximate:
        found["approximate"] = True
    return found | {name: value for name, value in asked.items() if value is not None}


def cost_headers(reply: Reply) -> dict[str, str]:
    """Return `Server-Timing` in milliseconds, and the numbers of tokens, of truncated texts and of cached ones."""
    timings = reply.timings
    return {
        "Server-Timing": ", ".join([f"{name[:-2]};dur={timings.get(name, 0.0) * 1000:.3f}" for name in TIMINGS]),
        "X-Tokens": str(sum(reply.tokens)),
        "X-Truncated": str(sum(reply.truncated)),
        "X-Cached": str(reply.cached),
    }
