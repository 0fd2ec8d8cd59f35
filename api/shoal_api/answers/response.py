"""Responses: JSON bodies, and the headers that all responses have."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO
from wsgiref.types import StartResponse, WSGIEnvironment

import orjson
from flask import Response
from werkzeug.datastructures import Headers

from shoal.contract.jobs import Job
from shoal.contract.replies import FINGERPRINT_HEADER, TIMINGS, Reply
from shoal.contract.vectors import SparseVector
from shoal_api.request import PIECE_BYTES, json_request

#: Headers of every response: browsers must not guess its media type, nor send its URL when a user follows a link.
SAFETY = (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))

#: A content security policy: no other site may show the response as part of its own page.
NO_FRAMES = "frame-ancestors 'none'"

#: Size above which a response is large. A large response counts toward its client's share until the client has read it.
LARGE_BYTES = 2**20


class WholeResponse(Response):
    """A response whose body is complete in memory. Functions given to `call_on_close` run after it is sent."""

    #: Headers that restrict browsers and caches. Pages for browsers have different headers.
    safety: tuple[tuple[str, str], ...] = (
        *SAFETY,
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", f"default-src 'none'; {NO_FRAMES}"),
    )

    def head(self) -> list[tuple[str, str]]:
        """Return all headers, `safety` included."""
        return [*self.headers.to_wsgi_list(), *self.safety]

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        """Return all headers for a WSGI server."""
        headers = super().get_wsgi_headers(environ)
        headers.extend(self.safety)
        return headers

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Start the response, and return its body for a WSGI server. A small response is closed before it is sent."""
        body = super().__call__(environ, start_response)
        if environ["REQUEST_METHOD"] == "HEAD" or (self.content_length or 0) <= LARGE_BYTES:
            self.close()
        return body


class FileResponse(WholeResponse):
    """A response whose body is an open file. Closing the response closes the file."""

    def __init__(self, file: BinaryIO, headers: Mapping[str, str]):
        pieces = iter(lambda: file.read(PIECE_BYTES), b"")
        super().__init__(pieces, headers=Headers(headers))
        self.file = file
        self.call_on_close(file.close)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    """Return the value as a line of JSON. Float32 numbers get the fewest digits that read back as the same number."""
    line = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    return bytes_response(line, media_type, status, headers)


def sparse_json(vector: SparseVector) -> orjson.Fragment:
    """Return a sparse vector as JSON bytes, which need less memory than a list of maps."""
    maps = [{"index": index, "value": value} for index, value in zip(*vector, strict=True)]
    return orjson.Fragment(orjson.dumps(maps, option=orjson.OPT_SERIALIZE_NUMPY))


def bytes_response(
    data: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with these bytes and this media type."""
    response = WholeResponse([data], status, Headers())
    # werkzeug would check each name and value in ten calls, but these headers are known to be right
    described = {"Content-Type": media_type, "Content-Length": str(len(data)), **(headers or {})}
    response.headers._list = list(described.items())
    return response


def with_tei_headers(response: Response, reply: Reply, job: Job) -> Response:
    """Add the headers by which Text Embeddings Inference reports a job's cost. Times are in whole milliseconds."""
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
    """Return the fields of a job's result, except its vectors, hits and scores."""
    return {
        "id": reply.id,
        "status": reply.status,
        "tokens": reply.tokens,
        "truncated": reply.truncated,
        "characters": reply.characters,
        "timings": reply.timings,
        "cached": reply.cached,
        "model": reply.model,
        "fingerprint": reply.fingerprint,
    }


def search_fields(reply: Reply) -> dict[str, Any]:
    """Return the fields of a search's answer: hits, index version, and, if asked for, cursors, totals and facets."""
    asked: dict[str, Any] = {"cursors": reply.cursors, "totals": reply.totals, "facets": reply.facets}
    found: dict[str, Any] = {"results": reply.hits, "index_version": reply.index_version}
    return found | {name: value for name, value in asked.items() if value is not None}


def cost_headers(reply: Reply) -> dict[str, str]:
    """Return headers with the timings in ms, the numbers of tokens, truncated and cached texts, and the fingerprint."""
    timings = reply.timings
    return {
        "Server-Timing": ", ".join([f"{name[:-2]};dur={timings.get(name, 0.0) * 1000:.3f}" for name in TIMINGS]),
        "X-Tokens": str(sum(reply.tokens)),
        "X-Truncated": str(sum(reply.truncated)),
        "X-Cached": str(reply.cached),
        FINGERPRINT_HEADER: reply.fingerprint,
    }
