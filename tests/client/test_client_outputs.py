"""Outputs of models beside vectors, through every client, from workers with made-up numbers and with a model."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from api_stub import StubWorker, multivector_of, sparse_of, vector_of
from client_adapters import AnyClient, MakeClient
from conftest import PATIENCE_S, WORDS, running
from http_servers import Canned, CannedServer
from numpy.typing import NDArray
from queues import Queue
from safetensors.numpy import save_file

from shoal import Client, HttpClient
from shoal.contract import wire
from shoal.contract.keys import Keys
from shoal.contract.vectors import SparseVector
from shoal.errors import MalformedJob, TooLarge, Unsupported
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.worker import Worker
from shoal_workers.model.prepare import prepare

pytest_plugins = ["any_client_fixtures", "api_fixtures", "http_fixtures"]

TEXTS = [f"{word} in {number}" for number in range(9) for word in WORDS]
EVERY = ["vector", "sparse", "multivector"]
PACKED = {"lengths": [1], "indices": b"\1\0\0\0", "values": np.array([0.5], "<f4").tobytes()}
EXPECTED: dict[str, Any] = {"vector": vector_of, "sparse": sparse_of, "multivector": multivector_of}


@pytest.fixture
def client(make_client: MakeClient, stub: StubWorker) -> AnyClient:
    """A client of the test's own pool."""
    return make_client()


def same(found: Any, expected: Any) -> bool:
    """Return True if two sparse vectors or arrays are the same."""
    if isinstance(expected, SparseVector):
        assert isinstance(found, SparseVector)
        return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    return bool(found.dtype == np.float32) and np.array_equal(found, expected)


def check(found: Mapping[str, Any], texts: list[str]) -> None:
    """Check that the outputs have an item for each text."""
    for word, items in found.items():
        assert len(items) == len(texts)
        assert all(same(item, EXPECTED[word](text)) for item, text in zip(items, texts, strict=True))


def test_an_output_has_an_item_for_each_text_in_order(client: AnyClient) -> None:
    check({word: client.embed(TEXTS, output=word) for word in ("sparse", "multivector")}, TEXTS)
    assert same(client.embed("a storm", output="sparse"), sparse_of("a storm"))
    assert same(client.embed("a storm", output="multivector"), multivector_of("a storm"))


def test_a_list_of_outputs_is_a_dict(client: AnyClient) -> None:
    found = client.embed(TEXTS, output=EVERY)
    assert list(found) == EVERY
    check(found, TEXTS)
    alone = client.embed("a storm", output=["sparse", "vector"])
    assert list(alone) == ["vector", "sparse"]
    check({word: [item] for word, item in alone.items()}, ["a storm"])


def test_a_stream_has_an_item_or_a_dict_for_each_text(client: AnyClient) -> None:
    check({"sparse": list(client.embed_stream(TEXTS, output="sparse"))}, TEXTS)
    dicts = list(client.embed_stream(TEXTS[:9], output=EVERY))
    check({word: [item[word] for item in dicts] for word in EVERY}, TEXTS[:9])


@pytest.mark.parametrize("output", ["sparse", EVERY])
def test_a_reply_for_another_number_of_texts_is_malformed(client: AnyClient, output: str | list[str]) -> None:
    for call in (client.embed, lambda texts, **asked: list(client.embed_stream(texts, **asked))):
        with pytest.raises(MalformedJob, match="the answer does not fit a request with 2 texts"):
            call(["a storm", "twice"], output=output)
    with pytest.raises(MalformedJob, match="does not fit a request with 1 texts"):
        client.embed("twice", output=output)


def test_the_result_of_a_job_has_the_outputs(client: AnyClient) -> None:
    reply = client.submit("embed", TEXTS[:3], output=EVERY).result()
    check({"vector": reply.vectors, "sparse": reply.sparse, "multivector": reply.multivectors}, TEXTS[:3])
    assert client.submit("embed", TEXTS[:3], output="sparse").result().vectors is None


@pytest.mark.parametrize("output", ["sparse", ["multivector"]])
def test_an_answer_over_the_limit_of_the_client_is_too_large(
    redis_url: str, keys: Keys, stub: StubWorker, output: str | list[str]
) -> None:
    with Client(redis_url, key_prefix=keys.prefix, pool=keys.pool, timeout_s=PATIENCE_S, max_reply_mb=0) as client:
        with pytest.raises(TooLarge, match=r"have [\d,]+ bytes, and a reply may have 0"):
            client.embed(["a storm", "a"], output=output)
        assert np.shape(client.embed("a")) == (4,)  # vectors of texts have no such limit


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "does not fit a request with 1 texts"),
        ({"sparse": PACKED | {"lengths": [1, 0]}}, "does not fit a request with 1 texts"),
        ({"sparse": PACKED | {"lengths": [2]}}, "lengths do not add up"),
        ({"sparse": PACKED | {"values": b"\0" * 4}}, "a weight that is not positive"),
        ({"sparse": [[{"index": 1, "value": 0.5}]]}, "not of the documented shape"),
    ],
)
def test_an_answer_over_http_with_other_outputs_is_malformed(
    canned: CannedServer, values: dict[str, Any], message: str
) -> None:
    canned.answers = [Canned(200, wire.pack(values), {"Content-Type": "application/msgpack"})]
    with (
        HttpClient(canned.url, timeout_s=PATIENCE_S) as client,
        pytest.raises(MalformedJob, match=message),
    ):
        client.embed("a", output="sparse")


def test_an_output_that_the_model_lacks_is_unsupported(client: AnyClient, stub: StubWorker) -> None:
    stub.announce(outputs=["vector"])
    with pytest.raises(Unsupported, match="makes no sparse"):
        client.embed("a", output="sparse")


class Heads(NamedTuple):
    """A model with all outputs, and the weights of its two heads."""

    encoder: Encoder
    weigh: NDArray[np.float32]
    project: NDArray[np.float32]


@pytest.fixture(scope="module")
def heads(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    """The tiny model with heads as BGE-M3 has them."""
    folder = tmp_path_factory.mktemp("heads")
    source = Path(shutil.copytree(tiny_source, folder / "model"))
    random = np.random.default_rng(5)
    weigh, project = (random.standard_normal((size, 32), np.float32) for size in (1, 8))
    for name, weights in (("sparse", weigh), ("colbert", project)):
        save_file(
            {"weight": weights, "bias": np.zeros(len(weights), np.float32)}, source / f"{name}_linear.safetensors"
        )
    prepare("model", source, folder / "prepared")
    return Heads(Encoder.open(folder / "prepared", "openvino", "f32", 1), weigh, project)


def test_a_worker_makes_all_outputs_of_a_model(make_client: MakeClient, queue: Queue, heads: Heads) -> None:
    worker = Worker(queue.consumer(), heads.encoder, {}, Bucketing(4_096))
    worker.pool.announce(worker.id, {"state": "ready"})
    with running(worker):
        client = make_client()
        found, of_tokens = client.embed(TEXTS, output=EVERY), client.embed(TEXTS, output="tokens", normalize=False)
        assert found["vector"] == pytest.approx(client.embed(TEXTS), abs=1e-5)
        longer = client.embed(TEXTS[0], output="multivector", normalize=False)
        (chunk,) = client.embed(TEXTS[0], output="chunks", chunk_tokens=9)
    assert chunk.vector == pytest.approx(found["vector"][0], abs=1e-5)
    read = heads.encoder.tokenize(TEXTS)
    for rows, tokens, sparse, vectors in zip(of_tokens, read, found["sparse"], found["multivector"], strict=True):
        expected = rows[1:] @ heads.project.T  # no vector for [CLS]
        assert vectors == pytest.approx(expected / np.linalg.norm(expected, axis=1, keepdims=True), abs=1e-2)
        weights: dict[int, float] = {}  # none for [CLS] and [SEP]
        for number, weight in zip(tokens.ids[1:-1], (rows[1:-1] @ heads.weigh.T)[:, 0].tolist(), strict=True):
            weights |= {number: max(weight, weights.get(number, 0.0))} if weight > 0 else {}
        assert dict(zip(*map(np.ndarray.tolist, sparse), strict=True)) == pytest.approx(weights, abs=1e-1)
    assert longer == pytest.approx(of_tokens[0][1:] @ heads.project.T, abs=1e-1)
