"""The lines of errors can be read, and messages have short excerpts of values."""

import os
from typing import Any

from api_stub import StubWorker, error_of
from flask.testing import FlaskClient

from shoal.contract.excerpt import MAX_CHARS, excerpt
from shoal.contract.replies import Reply
from shoal.errors import BY_CODE, IndexCorrupt, parse

pytest_plugins = ["api_fixtures"]


def test_the_line_of_an_error_can_be_read_and_another_line_is_none() -> None:
    for code, kind in BY_CODE.items():
        error = parse(kind("a: [b] c").line)
        assert (type(error), str(error)) == (BY_CODE[code], "a: [b] c")
    for line in ("", "shoal: no code", "shoal: a [b]", "2026 shoal: a [too_large]"):
        assert parse(line) is None


def test_a_message_with_a_path_that_is_not_utf_8_can_be_sent() -> None:
    folder = os.fsdecode(b"/news/caf\xe9")
    reply = Reply.unpack(Reply.failure("a", IndexCorrupt(f"{folder} cannot be read")).pack())
    assert str(reply.error) == "/news/caf? cannot be read"


def test_a_value_is_written_as_json_and_cut() -> None:
    written: list[tuple[Any, str]] = [
        (None, "null"),
        (True, "true"),
        ("naïve\n", '"naïve\\n"'),
        ("\u202e", '"\\u202e"'),
        ("\ud800", '"\\ud800"'),
        (b"\x00\xff", "bytes 00ff"),
        ({"a": [None, "b"]}, '{"a": [null, "b"]}'),
        ([[[[5]]]], "[[[[...]]]]"),
    ]
    assert [excerpt(value) for value, _ in written] == [text for _, text in written]
    for value in ("x" * 10_000_000, b"x" * 10_000_000, ["x" * 50] * 1_000, {"x" * 90: "y" * 90}):
        assert len(excerpt(value)) == MAX_CHARS + 1
        assert excerpt(value).endswith("…")


def test_no_answer_repeats_a_long_value(api: FlaskClient, stub: StubWorker) -> None:
    long: list[tuple[str, str, dict[str, str]]] = [
        ("GET", f"/ready?index={'a' * 5_000}", {}),
        ("GET", "/info", {"Host": "a" * 5_000}),
        ("GET", f"/v1/jobs/{'a' * 5_000}", {}),
        ("GET", f"/v1/dead/{'a' * 5_000}", {}),
        ("GET", f"/v1/jobs/a/result?wait={'a' * 5_000}", {}),
        ("B" * 5_000, "/embed", {}),
        ("POST", "/v1/jobs", {"Idempotency-Key": "a" * 5_000}),
    ]
    for method, path, headers in long:
        response = api.open(path, method=method, headers=headers, json={"op": "embed", "inputs": "a"})
        _, message = error_of(response, response.status_code)
        assert len(message) < 300
