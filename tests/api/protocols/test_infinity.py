"""Infinity's routes: OpenAI's answers with more fields."""

import base64

import numpy as np
import pytest
from api_stub import StubWorker, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]


@pytest.mark.usefixtures("stub")
class TestEmbeddings:
    def test_vectors_come_as_openai_s_with_an_id_and_a_time(self, api: FlaskClient) -> None:
        body = api.post("/embeddings", json={"input": ["a", "b"], "model": "stub", "dimensions": 0}).get_json()
        rows = np.array([item["embedding"] for item in body["data"]], np.float32)
        assert np.array_equal(rows, [vector_of("a"), vector_of("b")])
        assert (body["object"], body["model"], body["usage"]["total_tokens"]) == ("list", "stub", 6)
        assert body["id"].startswith("infinity-")
        assert body["created"] > 1_700_000_000

    def test_base64_and_dimensions(self, api: FlaskClient) -> None:
        asked = {"input": "a", "encoding_format": "base64", "dimensions": 2}
        (item,) = api.post("/embeddings", json=asked).get_json()["data"]
        assert np.array_equal(np.frombuffer(base64.b64decode(item["embedding"]), "<f4"), vector_of("a")[:2])

    def test_the_name_that_stands_for_none_is_taken(self, api: FlaskClient) -> None:
        body = api.post("/embeddings", json={"input": "a", "model": "default/not-specified"}).get_json()
        assert body["model"] == "stub"


def test_models_have_the_load_of_the_lanes(api: FlaskClient, stub: StubWorker) -> None:
    stub.pause()
    api.post("/v1/jobs", json={"op": "embed", "inputs": ["a", "b"]})
    model, reranker = api.get("/models").get_json()["data"]
    assert (reranker["id"], reranker["capabilities"]) == ("stub-reranker", ["rerank"])
    assert (model["id"], model["capabilities"], model["backend"]) == ("stub", ["embed"], "shoal")
    assert model["stats"] == {
        "queue_fraction": 2 / 200_000,
        "queue_absolute": 2,
        "results_pending": 2,
        "batch_size": 64,
    }
    stub.resume()
