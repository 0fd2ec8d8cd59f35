"""Answers as JSON."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from flask import Response
from werkzeug.datastructures import Headers

from shoal.replies import TIMINGS, Reply

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Headers of every answer: its type is what it says, and no link tells where it was.
SAFETY = (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))

#: So that no other site shows a page of ours as part of its own.
NO_FRAMES = "frame-ancestors 'none'"


class WholeResponse(Response):
    """A response that is all there, so that nothing is left for werkzeug to find out or for the server to iterate over.

    With this a request takes a third less of the API's processor time, and a caller who is slow to take the answer
    holds no thread.
    """

    #: Headers that tell browsers and caches to be careful. A page has others.
    safety: tuple[tuple[str, str], ...] = (
        *SAFETY,
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", f"default-src 'none'; {NO_FRAMES}"),
    )

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """The headers as they are, the length among them, and the body as a list, which Granian sends in one piece."""
        start_response(self.status, [*self.headers.to_wsgi_list(), *self.safety])
        has_body = environ["REQUEST_METHOD"] != "HEAD" and self.status_code != 304
        return [self.get_data()] if has_body else []


def rendered(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The value as a JSON response; float32 arrays become the shortest digits that read back the same."""
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    described = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    return WholeResponse([data], status, Headers(described))


def cost_headers(reply: Reply) -> dict[str, str]:
    """What a reply cost: `Server-Timing` in milliseconds, all tokens, and how many texts were truncated and cached."""
    timings = reply.timings
    return {
        "Server-Timing": ", ".join([f"{name[:-2]};dur={timings.get(name, 0.0) * 1000:.3f}" for name in TIMINGS]),
        "X-Tokens": str(sum(reply.tokens)),
        "X-Truncated": str(sum(reply.truncated)),
        "X-Cached": str(reply.cached),
    }
