"""Every route of the OpenAPI document answers any input with a described response or an error, and never with 500."""

import json
import re
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from api_process import ApiProcess
from api_stub import MakeApp, StubWorker, examples
from flask.testing import FlaskClient
from fuzzing import ODD, changed, fuzz, mutated, packed
from hypothesis import strategies as st
from long_job_callers import Rq
from queues import Queue
from test_fuzz_files import JSON_CLAIMS, JSON_VALUES
from werkzeug.test import TestResponse

from shoal_api.app import PROTOCOL_APIS
from shoal_api.schema.error_statuses import STATUS, ErrorBody

pytest_plugins = ["api_fixtures", "long_job_fixtures"]

pytestmark = pytest.mark.wide

KNOWN = (ErrorBody, *(api.errors for api in PROTOCOL_APIS.values()))
WORDS = st.text(max_size=12) | st.sampled_from(
    ["nan", "inf", "1e999", "-1", "0", "0-0", "1-1", "a" * 5_000, "..", "../../etc", "a{b}", "\0", "9" * 30, "٣", " "]
)
#: Header values that HTTP allows, and values that matter here.
HEADERS = {
    "Idempotency-Key": ["a", "x" * 300, "", "é".encode().decode("latin-1"), '"a"'],
    "Content-Type": ["application/json", "text/plain; charset=klingon", "multipart/form-data", "", "x" * 999],
    "Content-Encoding": ["gzip", "br"],
    "Accept": ["text/html", "*/*;q=x", "application/msgpack", "application/*;q=0.5, a/b", "*", ";;,=", "é" * 99],
    "Authorization": ["Bearer x", "Basic ???", "Bearer"],
    "X-Api-Key": ["x", ""],
    "Origin": ["http://evil.example", "null"],
    "Content-Length": ["0", "5", "-1", "x", "9" * 30, "33554433"],
    "X-Forwarded-For": ["1.2.3.4", "::::"],
    "Range": ["bytes=0-"],
    "If-None-Match": ["*"],
}
SOME_HEADERS = st.dictionaries(st.sampled_from(sorted(HEADERS)), st.integers(0, 9), max_size=3).map(
    lambda chosen: {name: HEADERS[name][n % len(HEADERS[name])] for name, n in chosen.items()}
)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])


@pytest.fixture
def quick(make_app: MakeApp, stub: StubWorker, rq: Rq) -> FlaskClient:
    """Return a client of an application that does not wait long."""
    stub.announce(model="sentence-transformers/all-MiniLM-L6-v2")  # the examples name this model
    return make_app(request_timeout_s=2.0).test_client()


def routes(api: FlaskClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the path, method and description of every operation."""
    paths = api.get("/openapi.json").get_json()["paths"]
    return [(path, method, about) for path, methods in paths.items() for method, about in methods.items()]


def check(response: TestResponse, about: dict[str, Any] | None = None) -> None:
    """Check that the response is a described one, or an error of the documented shape that is no defect."""
    status = response.status_code
    assert status in (503, 504) or status < 500, response.get_data()[:300]
    if about is not None and status < 400:
        assert str(status) in about["responses"]
    if status >= 400 and response.request.method != "HEAD":
        code, message = _told(response.get_json())
        words = (str(code), "invalid_request")  # an error without a code may stand for either
        dialects = [d for d in KNOWN if response.get_json() in [d.error_body(word, message, status) for word in words]]
        assert dialects
        assert code in (None, "invalid_request") or {**STATUS, **dialects[0].statuses}.get(code) == status
        assert 0 < len(message) < 1_000


def _told(body: dict[str, Any]) -> tuple[str | None, str]:
    """Return the code, if there is one, and the message of an error in any dialect."""
    error: Any = next(body[name] for name in ("error", "message", "detail") if name in body)
    return (None, error) if isinstance(error, str) else (error["code"], error["message"])


@st.composite
def bodies(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """Draw a body: a good one with odd values, a damaged one, or any bytes."""
    text = json.dumps(draw(changed(good, JSON_VALUES) if good else JSON_VALUES)).encode()
    return draw(st.just(text) | mutated(st.just(text), JSON_CLAIMS) | st.binary(max_size=30))


@fuzz(80, data=st.data())
def test_described_route(quick: FlaskClient, data: st.DataObject) -> None:
    path, method, about = data.draw(st.sampled_from(routes(quick)))
    names = [parameter["name"] for parameter in about.get("parameters", []) if parameter["in"] == "query"]
    query = data.draw(st.lists(st.tuples(st.sampled_from([*names, "x"]), WORDS), max_size=2))
    check(
        quick.open(
            re.sub(r"{\w+}", quote(data.draw(WORDS | st.just("a")), safe=""), path),
            method=method.upper(),
            query_string=query,
            headers=data.draw(SOME_HEADERS),
            data=data.draw(bodies(dict(examples(quick)).get(path, {})))
            if method == "post" or "requestBody" in about
            else None,
        ),
        about,
    )


@fuzz(
    30, method=METHODS, path=st.text(max_size=20) | st.sampled_from(["/embed", "/v1/jobs", "/docs/../x", "//", "/%00"])
)
def test_any_path(quick: FlaskClient, method: str, path: str) -> None:
    check(quick.open("/" + quote(path, safe="/%"), method=method))


LETTER = st.sampled_from([b"reason", b"lane", b"deliveries", b"traceback", b"worker", b"x"])


@fuzz(
    25,
    job=st.binary() | ODD.map(packed),
    fields=st.dictionaries(LETTER, st.binary() | st.sampled_from([b"9" * 40, b"9" * 9_000])),
)
def test_odd_dead_letters(quick: FlaskClient, queue: Queue, job: bytes, fields: dict[bytes, bytes]) -> None:
    entry = queue.redis.xadd(queue.keys.dead, {b"job": job, **fields}).decode()
    check(quick.get("/v1/dead"))
    for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", "")):
        check(quick.open(f"/v1/dead/{entry}{path}", method=method))
    queue.redis.delete(queue.keys.dead)


# The server itself


BODY = b'{"inputs": ["storm", "rain"], "normalize": true, "dimensions": 2}'
HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
STREAMS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b":", b"\0", b"%ff", b"-1"),
    *(b"HTTP/9", b"PRI * HTTP/2", b"A" * 9_000, b"ffffffffffffffff\r\n"),
)


@fuzz(
    30,
    data=mutated(st.sampled_from([REQUEST, CHUNKED, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]), STREAMS)
    | st.binary(),
)
def test_raw_stream(shared_api: ApiProcess, data: bytes) -> None:
    answer = b""
    with suppress(OSError), shared_api.send(data) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65_536)
    status = answer[9:12]
    assert status == b"" or status < b"500" or status in (b"503", b"504")
    assert shared_api.ask("GET", "/health").status == 200
    assert "Traceback" not in shared_api.process.output
