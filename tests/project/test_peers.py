"""Peers of the benchmark: what each kind of server is sent, and what is read from its answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from benchmarks.peers import PEERS, Target, check, target_of
from numpy.typing import NDArray

from shoal.errors import BadSetting, ModelMismatch

UNIT = np.eye(2, 3, dtype=np.float32)


@contextmanager
def answering(vectors: NDArray[np.float32]) -> Iterator[Target]:
    """A server that answers every request with these vectors."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(vectors.tolist()).encode())

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield target_of(f"tei+http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_a_tei_server_is_asked_at_embed_for_inputs() -> None:
    target = target_of("tei+http://127.0.0.1:3000")
    assert target.url == "http://127.0.0.1:3000/embed"
    assert json.loads(target.body(["a", "b"])) == {"inputs": ["a", "b"]}
    assert target.vectors(UNIT.tolist()).tolist() == UNIT.tolist()


def test_an_openai_server_is_asked_at_v1_embeddings_for_input() -> None:
    target = target_of("openai+https://example.org")
    assert target.url == "https://example.org/v1/embeddings"
    assert json.loads(target.body(["a"])) == {"input": ["a"], "model": "sentence-transformers/all-MiniLM-L6-v2"}


def test_the_address_may_name_the_path_and_the_model() -> None:
    target = target_of("openai+http://127.0.0.1:7997/embeddings#some/model")
    assert target.url == "http://127.0.0.1:7997/embeddings"
    assert json.loads(target.body(["a"]))["model"] == "some/model"


def test_vectors_of_an_openai_answer_are_in_the_order_of_the_texts() -> None:
    data = [{"index": 1, "embedding": UNIT[1].tolist()}, {"index": 0, "embedding": UNIT[0].tolist()}]
    assert target_of("openai+http://host").vectors({"data": data}).tolist() == UNIT.tolist()


@pytest.mark.parametrize("spec", ["", "http://host:1", "grpc+http://host:1", "tei+ftp://host", "tei+http:"])
def test_an_address_of_no_known_kind_is_refused(spec: str) -> None:
    with pytest.raises(BadSetting, match=r"write tei\+http"):
        target_of(spec)


def test_every_body_is_one_line_whatever_the_text() -> None:
    text = "one\ntwo  \u2028 „three“ \U0001f600"
    body = target_of("tei+http://host:1").body([text])
    assert b"\n" not in body
    assert json.loads(body)["inputs"] == [text]


def test_a_server_with_the_same_vectors_at_any_length_does_the_same_work() -> None:
    with answering(UNIT * 3) as target:
        assert check(target, ["a", "b"], UNIT) == pytest.approx(1)


def test_a_server_with_one_other_vector_does_other_work() -> None:
    with (
        answering(UNIT + np.array([[0, 0, 0], [0.1, 0, 0]], np.float32)) as target,
        pytest.raises(ModelMismatch, match=r"0\.995"),
    ):
        check(target, ["a", "b"], UNIT)


@pytest.mark.parametrize("name", PEERS)
def test_every_version_that_a_peer_needs_is_pinned(name: str) -> None:
    lines = (PEERS[name].folder / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if "==" not in pin] == []
