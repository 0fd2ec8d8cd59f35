"""Outputs of models besides vectors, by every client, from workers with made-up numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from api_stub import StubWorker, multivector_of, sparse_of, vector_of
from client_adapters import AnyClient, MakeClient
from conftest import PATIENCE_S, WORDS

from shoal import Client
from shoal.contract.keys import Keys
from shoal.contract.vectors import SparseVector
from shoal.errors import MalformedJob, TooLarge, Unsupported

pytest_plugins = ["any_client_fixtures", "api_fixtures", "http_fixtures"]

TEXTS = [f"{word} in {number}" for number in range(9) for word in WORDS]
EVERY = ["vector", "sparse", "multivector"]
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


def test_an_output_has_an_item_for_each_text_in_order_and_several_outputs_are_a_dict(client: AnyClient) -> None:
    check({word: client.embed(TEXTS, output=word) for word in ("sparse", "multivector")}, TEXTS)
    assert same(client.embed("a storm", output="sparse"), sparse_of("a storm"))
    assert same(client.embed("a storm", output="multivector"), multivector_of("a storm"))
    found = client.embed(TEXTS, output=EVERY)
    assert list(found) == EVERY
    check(found, TEXTS)
    alone = client.embed("a storm", output=["sparse", "vector"])
    assert list(alone) == ["vector", "sparse"]
    check({word: [item] for word, item in alone.items()}, ["a storm"])
    check({"sparse": list(client.embed_stream(TEXTS, output="sparse"))}, TEXTS)
    dicts = list(client.embed_stream(TEXTS[:9], output=EVERY))
    check({word: [item[word] for item in dicts] for word in EVERY}, TEXTS[:9])
    reply = client.submit("embed", TEXTS[:3], output=EVERY).result()
    check({"vector": reply.vectors, "sparse": reply.sparse, "multivector": reply.multivectors}, TEXTS[:3])
    assert client.submit("embed", TEXTS[:3], output="sparse").result().vectors is None


def test_a_reply_that_does_not_fit_is_refused(client: AnyClient, stub: StubWorker) -> None:
    for output in ("sparse", EVERY):
        for call in (client.embed, lambda texts, **asked: list(client.embed_stream(texts, **asked))):
            with pytest.raises(MalformedJob, match="the answer does not fit a request with 2 texts"):
                call(["a storm", "twice"], output=output)
        with pytest.raises(MalformedJob, match="does not fit a request with 1 texts"):
            client.embed("twice", output=output)
    stub.announce(outputs=["vector"])
    with pytest.raises(Unsupported, match="makes no sparse"):
        client.embed("a", output="sparse")


@pytest.mark.parametrize("output", ["sparse", ["multivector"]])
def test_an_answer_over_the_limit_of_the_client_is_too_large(
    redis_url: str, keys: Keys, stub: StubWorker, output: str | list[str]
) -> None:
    with Client(redis_url, key_prefix=keys.prefix, pool=keys.pool, timeout_s=PATIENCE_S, max_reply_mb=0) as client:
        with pytest.raises(TooLarge, match=r"have [\d,]+ bytes, and a reply may have 0"):
            client.embed(["a storm", "a"], output=output)
        assert np.shape(client.embed("a")) == (4,)  # vectors of texts have no such limit
