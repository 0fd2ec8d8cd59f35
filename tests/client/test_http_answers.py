"""The client over HTTP with made-up servers: repeated attempts, wrong answers, and slow answers."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, free_port
from http_servers import Canned, CannedServer

from shoal import HttpClient
from shoal.client.http import session
from shoal.client.http.answer import RequestLimits
from shoal.contract import wire
from shoal.contract.traceparent import continued
from shoal.errors import MalformedJob, NotReady, Overloaded, ShoalError, Timeout, TooLarge, Unavailable, UnknownJob
from shoal.operations import Embed

pytest_plugins = ["api_fixtures", "http_fixtures"]

#: A key that no message may contain.
KEY = "a-secret-key"

MSGPACK = {"Content-Type": "application/msgpack"}
JSON = {"Content-Type": "application/json"}


def vectors_map(rows: Any) -> dict[str, Any]:
    """Return the map of an array in an answer."""
    array = np.asarray(rows, "<f4")
    return {"dtype": "float32", "shape": list(array.shape), "data": array.tobytes()}


def in_msgpack(**values: Any) -> Canned:
    """Return an answer with these values as msgpack."""
    return Canned(200, wire.pack(values), MSGPACK)


def in_json(**values: Any) -> Canned:
    """Return an answer with these values as JSON."""
    return Canned(200, json.dumps(values).encode(), JSON)


def error_body(code: str, message: str = "words") -> bytes:
    """Return the body of an error."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


GOOD = in_msgpack(embeddings=vectors_map([[1, 2]]))


@pytest.fixture
def http(canned: CannedServer) -> Iterator[HttpClient]:
    """A client of the server with made-up answers."""
    with HttpClient(canned.url, KEY, timeout_s=PATIENCE_S) as client:
        yield client


class TestAttempts:
    def test_after_a_passing_failure_it_tries_again(self, http: HttpClient, canned: CannedServer) -> None:
        for first in (
            Canned(0),
            Canned(200, b"short", MSGPACK | {"Content-Length": "100"}),
            Canned(503, b"<html>", {"Content-Type": "text/html"}),
            Canned(503, error_body("unavailable"), JSON | {"Retry-After": "0"}),
            Canned(429, error_body("rate_limited"), JSON | {"Retry-After": "²"}),
        ):
            canned.requests.clear()
            canned.answers = [first, first, GOOD]
            assert np.asarray(http.embed("a")).tolist() == [1, 2]
            assert len(canned.requests) == 3

    def test_all_attempts_of_a_submit_have_the_same_key(self, http: HttpClient, canned: CannedServer) -> None:
        canned.answers = [Canned(0), Canned(503), Canned(202, b'{"id": "a1"}', JSON)]
        assert [http.submit("embed", "a").id for _ in range(2)] == ["a1", "a1"]
        keys = [headers["Idempotency-Key"] for _, headers in canned.requests]
        assert keys[0] == keys[1] == keys[2] != keys[3]

    def test_a_pause_is_at_least_as_long_as_the_answer_asks(self, http: HttpClient, canned: CannedServer) -> None:
        canned.answers = [Canned(503, b"", {"Retry-After": "7"})] * 2 + [Canned(503)] * 6 + [GOOD]
        pauses: list[float] = []
        http._wait(Embed(["a"]), http.until(), pauses.append)
        least = [7, 7, 0.4, 0.8, 1.6, 2, 2, 2]
        assert all(low <= pause <= 1.25 * low for low, pause in zip(least, pauses, strict=True))
        assert pauses != least  # otherwise clients that were refused together would return together
        canned.answers = [Canned(429, error_body("overloaded"), JSON | {"Retry-After": "999999999"})]
        before = len(canned.requests)
        with pytest.raises(Overloaded, match="words") as found:
            http.embed("a")
        # A pause that would exceed the time limit is not begun.
        assert (found.value.retry_after_s, len(canned.requests)) == (999_999_999, before + 1)

    def test_after_other_errors_it_does_not_try_again(self, http: HttpClient, canned: CannedServer) -> None:
        for number, status in enumerate((400, 500, 504), 1):
            canned.answers = [Canned(status, error_body("unknown_job"), JSON)]
            with pytest.raises(UnknownJob, match="words"):
                http.embed("a")
            assert len(canned.requests) == number


def test_after_a_request_that_was_too_large_the_limits_are_read_again(http: HttpClient, canned: CannedServer) -> None:
    canned.answers = [Canned(413, error_body("too_large"), JSON)]
    http._limits = RequestLimits(256, 2**20)
    for _ in range(2):
        with pytest.raises(TooLarge):
            http.embed(["a", "b"])
    assert [path for path, _ in canned.requests] == ["/embed", "/info"]


def test_a_request_belongs_to_the_trace_of_its_caller(http: HttpClient, canned: CannedServer) -> None:
    canned.answers, caller = [GOOD], f"00-{'4b' * 16}-{'0a' * 8}-01"
    with continued(caller):
        http.embed("a")
    assert canned.requests[0][1]["Traceparent"] == caller


def test_an_answer_over_the_limit_is_not_read(
    http: HttpClient, canned: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_ANSWER_BYTES", 100)
    body = b"65\r\n" + b"a" * 101 + b"\r\n0\r\n\r\n"
    canned.answers = [Canned(200, body, MSGPACK | {"Transfer-Encoding": "chunked"})]
    with pytest.raises(Unavailable, match="answers with over 100 bytes, the limit of a client"):
        http.embed("a")


def offsets(*numbers: int) -> dict[str, Any]:
    """Return the map of an array of offsets in an answer."""
    return {"dtype": "int64", "shape": [len(numbers)], "data": np.array(numbers, "<i8").tobytes()}


def two(rows: Any = ((1,), (2,)), **values: Any) -> Canned:
    """Return an answer with these vectors, by default two."""
    return in_msgpack(embeddings=vectors_map(rows), **values)


#: Requests, each by the name of the result that it asks for.
ASK: dict[str, Callable[[HttpClient], object]] = {
    "vectors": lambda http: http.embed(["a", "b"]),
    "token vectors": lambda http: http.embed(["a", "b"], output="tokens"),
    "chunks": lambda http: http.embed(["a", "b"], output="chunks", chunk_tokens=9),
    "sparse": lambda http: http.embed(["a", "b"], output="sparse"),
    "hits": lambda http: http.search("a"),
    "scores": lambda http: http.rerank("a", ["b", "c"]),
    "id": lambda http: http.submit("embed", "a"),
}

#: Wrong answers to each request.
WRONG = {
    "vectors": [
        Canned(200, b"[[1, 2]]", JSON),
        Canned(200, b"\xc1", MSGPACK),
        Canned(200, b"\x81\xa1\xff\x01", MSGPACK),
        Canned(200, b"\x81\xa1a\xdd\xff\xff\xff\xff" + b"\x90" * 2**20, MSGPACK),
        Canned(200, b"[" * 100_000, JSON),
        in_msgpack(),
        in_msgpack(embeddings=[[1, 2]]),
        in_msgpack(embeddings=vectors_map([[1], [2]]) | {"shape": [2, 2]}),
        *map(two, ([[1]], [[1], [2], [3]])),
    ],
    "token vectors": [
        two(),
        *(two(offsets=offsets(*numbers)) for numbers in ((0, 2), (0, 1, 3), (0, 3, 2))),
        two(offsets=offsets(0, 1, 2) | {"data": b"123"}),
        two(offsets="0,1,2"),
    ],
    "chunks": [
        two(offsets=offsets(0, 1, 2)),
        *(two(offsets=offsets(0, 1, 2), chunks=chunks) for chunks in ("0,1,2", offsets(0, 1, 2))),
        two([[1], [2], [3]], offsets=offsets(0, 5, 3), chunks=offsets(*[0] * 9)),
        two([[1]], offsets=offsets(0, 1, 1), chunks=offsets(0, 1)),
        two([[1]], offsets=offsets(0, 1), chunks=offsets(0, 1, 2)),
        two(chunks=offsets(0, 1, 2)),
    ],
    "sparse": [in_msgpack(), in_msgpack(sparse={"lengths": [1], "indices": b"\1\0\0\0", "values": b"\0\0\0?"})],
    "hits": [in_json(results=results) for results in list[Any](("words", [1], [[1]], [[], []], None))],
    "scores": [in_json(scores=scores) for scores in ([1], [1, 2, 3], ["a", "b"], "ab", None)],
    "id": [Canned(202, body, JSON) for body in (b"{}", b'{"id": 5}', b"[]")],
}


class TestHostile:
    @pytest.mark.parametrize("what", WRONG)
    def test_a_wrong_answer_is_refused(self, http: HttpClient, canned: CannedServer, what: str) -> None:
        http._limits = RequestLimits(256, 2**20)
        for answer in WRONG[what]:
            canned.answers = [answer]
            with pytest.raises(MalformedJob):
                ASK[what](http)

    def test_parts_and_counts_that_do_not_fit_together_are_refused(
        self, http: HttpClient, canned: CannedServer
    ) -> None:
        canned.answers = [GOOD, in_msgpack(embeddings=vectors_map([[1]]))]
        http._limits = RequestLimits(1, 2**20)
        with pytest.raises(NotReady, match="parts of the reply are of different models"):
            http.embed(["a", "b"])
        canned.answers = [in_msgpack(embeddings=vectors_map([[1], [2]]), tokens=[1, 2, 3])]
        with pytest.raises(MalformedJob, match="and 3 are"):
            http.job("a1").result()
        http._limits = None
        wrong = {"limits": {"max_backlog_texts": "x"}, "dimension": None}
        for info in ({}, {"limits": 5, "dimension": 4}, wrong):
            canned.answers = [in_json(**info)]
            with pytest.raises(MalformedJob, match="/info has no limits"):
                http.embed(["a", "b"])

    def test_json_with_too_many_values_is_not_read_and_a_long_message_is_cut(
        self, http: HttpClient, canned: CannedServer
    ) -> None:
        canned.answers = [Canned(200, b'{"results": [[' + b"{}," * 2**21 + b"{}]]}", JSON)]
        with pytest.raises(MalformedJob, match="4,194,304 c"):
            http.search("a")
        answers = [Canned(404, error_body(code, "long " * 10_000), JSON) for code in ("unknown_job", "c" * 10_000)]
        for answer in [*answers, in_msgpack(error={"code": "internal", "message": "long " * 10_000})]:
            canned.answers = [answer]
            with pytest.raises(ShoalError, match="long") as found:
                http.embed("a")
            assert len(found.value.message) < 1_200

    def test_the_error_describes_an_answer_of_another_program(self, http: HttpClient, canned: CannedServer) -> None:
        for answer, words in (
            (Canned(502, b"<html>Bad Gateway", {"Content-Type": "text/html; charset=utf-8"}), r"502 \(text/html\)"),
            (Canned(200, b"<html>Log in", {"Content-Type": "text/html"}), r"200 \(text/html\), unlike Shoal"),
            (Canned(200, b"words"), r"200 \(without a media type\)"),
            (Canned(500, b"[]", JSON), r"500 \(application/json\)"),
            (Canned(500, b'{"error": "words"}', JSON), r"500 \(application/json\)"),
            (Canned(404, error_body("not_found"), JSON), r"404 \(words\): check the URL and Shoal's version"),
            (Canned(307, b"", {"Location": f"{canned.url}/elsewhere"}), "a redirect to"),
        ):
            canned.answers = [answer]
            canned.requests.clear()
            with pytest.raises(Unavailable, match=words) as found:
                http.embed("a")
            assert canned.url in found.value.message
            assert KEY not in repr(found.getrepr(chain=True)) + repr(http)
            sent = [(path, headers["Authorization"]) for path, headers in canned.requests]
            assert sent == [("/embed", f"Bearer {KEY}")]

    def test_the_error_names_a_server_that_does_not_answer(self) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        with HttpClient(url, KEY, timeout_s=1.0) as http, pytest.raises(Unavailable) as found:
            http.embed("a")
        assert found.value.message.startswith(f"{url} does not answer ([Errno 111] Connection refused): check that")


#: Largest number of pieces that a slow server sends or receives, one every 10 ms. The client does not wait for all.
MAX_PIECES = 3_000

#: A text that a slow server needs several seconds to receive, and that sockets cannot buffer.
TEXT = "a" * 2**25

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: 1000000\r\n\r\n"


@contextmanager
def slow_server(start: bytes, step: Callable[[socket.socket], int]) -> Iterator[tuple[str, list[int]]]:
    """Serve one connection: send `start`, then call `step`, which sends or receives a piece, until the client is gone.

    Yields the URL and the list of the sizes of all pieces so far.
    """
    sizes: list[int] = []

    def serve() -> None:
        with listener.accept()[0] as connection, suppress(OSError):
            connection.sendall(start)
            while len(sizes) < MAX_PIECES and (size := step(connection)):
                sizes.append(size)
                threading.Event().wait(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sizes
        with suppress(OSError):  # a client may have had no time to connect
            socket.create_connection(listener.getsockname()).close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def sending(piece: bytes) -> Callable[[socket.socket], int]:
    """Return a step that sends the piece."""
    return lambda connection: connection.send(piece)


@pytest.mark.parametrize(
    ("start", "step", "text"),
    [
        (b"HTTP/1.1 200 OK\r\n", sending(b"X-Slow: 1\r\n"), "a"),
        (b"", sending(b"HTTP/1.1 102 Processing\r\n\r\n"), "a"),
        (HEAD, sending(b"a"), "a"),
        (b"", lambda connection: len(connection.recv(2**16)), TEXT),
    ],
    ids=["headers", "interim answers", "body", "a server that reads slowly"],
)
def test_an_answer_that_arrives_too_slowly_is_given_up(
    start: bytes, step: Callable[[socket.socket], int], text: str
) -> None:
    with (
        slow_server(start, step) as (url, sizes),
        HttpClient(url, timeout_s=0.3) as http,
        pytest.raises(Timeout, match=r"no answer within 0\.3 s"),
    ):
        http.embed(text)
    assert len(sizes) < MAX_PIECES
    assert sum(sizes) < len(TEXT)
