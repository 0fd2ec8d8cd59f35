"""Embeddings of Voyage, Jina, Infinity and vLLM, whose answers are like OpenAI's. test_rerank_routes.py has reranks."""

import base64
from typing import Any

import numpy as np
import pytest
from api_stub import StubWorker, multivector_of, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]
pytestmark = pytest.mark.usefixtures("stub")

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])


def rows(api: FlaskClient, **body: Any) -> list[Any]:
    """Return the vectors in the route's answer; fail the test if the answer does not have OpenAI's shape."""
    found = api.post("/v1/embeddings", json={"input": TEXTS, "model": "stub", **body}).get_json()
    assert (found["object"], found["model"], found["usage"]["total_tokens"] > 0) == ("list", "stub", True)
    assert [item["index"] for item in found["data"]] == [0, 1]
    return [item["embedding"] for item in found["data"]]


#: Fields beside the texts, and words of the error that refuses them.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_dtype": "float64"}, "output_dtype is"),
    ({"output_dtype": "binary"}, "the vectors have 4 numbers"),
    ({"output_dimension": 0}, "output_dimension is 0"),
    ({"input_type": "image"}, "input_type is"),
    ({"truncation": False, "input": "a b c d e f g h i"}, "a text has 11 tokens"),
    ({"truncation": True, "dimensions": 2}, "did you mean output_dimension?"),
    ({"task": "retrieval.query", "late_chunking": True}, "late_chunking is true"),
    ({"task": "walk"}, "task is"),
]


class TestVoyage:
    def test_its_clients_requests_get_answers_that_the_client_decodes(self, api: FlaskClient) -> None:
        plain = {"input_type": None, "truncation": True, "output_dtype": None, "output_dimension": None}
        found = [base64.b64decode(row) for row in rows(api, encoding_format="base64", **plain)]
        assert np.array_equal([np.frombuffer(row, "<f4") for row in found], VECTORS)
        small = rows(api, encoding_format="base64", output_dtype="int8")
        numbers = np.array([np.frombuffer(base64.b64decode(row), np.int8) for row in small])
        assert np.array_equal(numbers, rows(api, output_dtype="int8"))
        assert np.abs(numbers).max() == 127
        mistrals = {"output_dtype": "uint8", "encoding_format": "float"}
        assert np.shape(rows(api, output_dimension=2, **mistrals)) == (2, 2)

    def test_errors_have_its_shape(self, api: FlaskClient) -> None:
        for more, words in REFUSED:
            response = api.post("/v1/embeddings", json={"input": TEXTS, **more})
            assert response.status_code in (400, 422)
            assert list(response.get_json()) == ["detail"]
            assert words in response.get_json()["detail"]


def test_jina(api: FlaskClient) -> None:
    assert np.array_equal(np.array(rows(api, late_chunking=False, embedding_type="float"), np.float32), VECTORS)
    found = rows(api, embedding_type="base64", task="text-matching", normalized=True)
    assert np.array_equal([np.frombuffer(base64.b64decode(row), "<f4") for row in found], VECTORS)
    assert np.shape(rows(api, dimensions=2, late_chunking=False)) == (2, 2)
    asked = {"input": "a b c d e f g h i", "late_chunking": False, "truncate": False}
    assert "a text has 11 tokens" in api.post("/v1/embeddings", json=asked).get_json()["detail"]


def test_jinas_multivectors_and_texts_as_objects(api: FlaskClient) -> None:
    assert np.array_equal(np.array(rows(api, input=[{"text": TEXTS[0]}, TEXTS[1]], truncate=True), np.float32), VECTORS)
    asked: dict[str, Any] = {"input": [{"text": TEXTS[0]}, TEXTS[1]], "return_multivector": True}
    answer = api.post("/v1/embeddings", json=asked).get_json()
    own = api.post("/embed", json={"inputs": TEXTS, "output": "multivector"}).get_json()
    data = [{"object": "embedding", "index": n, "embeddings": vectors} for n, vectors in enumerate(own)]
    assert (answer["data"], answer["object"], answer["model"]) == (data, "list", "stub")
    assert answer["usage"]["total_tokens"] > 0
    for more, words in (
        ({"dimensions": 2}, "dimensions"),
        ({"embedding_type": "base64"}, "embedding_type is base64"),
        ({"input": [{"image": "a"}]}, "image"),
    ):
        assert words in api.post("/v1/embeddings", json=asked | more).get_json()["detail"]


def test_infinity(api: FlaskClient) -> None:
    asked: dict[str, Any] = {"input": TEXTS, "model": "default/not-specified", "dimensions": 0}
    body = api.post("/embeddings", json=asked).get_json()
    assert np.array_equal(np.array([item["embedding"] for item in body["data"]], np.float32), VECTORS)
    assert (body["object"], body["model"], body["usage"]["total_tokens"]) == ("list", "stub", 10)
    assert body["id"].startswith("infinity-")
    assert body["created"] > 1_700_000_000
    asked = {"input": TEXTS[0], "encoding_format": "base64", "dimensions": 2}
    (item,) = api.post("/embeddings", json=asked).get_json()["data"]
    assert np.array_equal(np.frombuffer(base64.b64decode(item["embedding"]), "<f4"), VECTORS[0, :2])


def test_infinitys_models_show_the_load_of_the_lanes(api: FlaskClient, stub: StubWorker) -> None:
    stub.pause()
    api.post("/v1/jobs", json={"op": "embed", "inputs": ["a", "b"]})
    model, reranker = api.get("/models").get_json()["data"]
    assert (reranker["id"], reranker["capabilities"]) == ("stub-reranker", ["rerank"])
    assert (model["id"], model["capabilities"], model["backend"]) == ("stub", ["embed"], "shoal")
    loads = {"queue_fraction": 2 / 200_000, "queue_absolute": 2, "results_pending": 2}
    assert model["stats"] == loads | {"batch_size": 64}
    stub.resume()


def pooled(api: FlaskClient, **body: Any) -> list[Any]:
    """Return the data of each text; fail the test if the answer does not have vLLM's shape."""
    found = api.post("/pooling", json={"input": TEXTS, "model": "stub", "user": "me", **body}).get_json()
    assert list(found) == ["id", "object", "created", "model", "data", "usage"]
    assert (found["object"], found["model"], found["usage"]["total_tokens"] > 0) == ("list", "stub", True)
    assert [(item["index"], item["object"]) for item in found["data"]] == [(0, "pooling"), (1, "pooling")]
    return [item["data"] for item in found["data"]]


def test_a_task_of_vllm_chooses_vectors_of_texts_or_of_tokens(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(outputs=["vector", "tokens"])
    assert np.array_equal(np.array(pooled(api, task="embed"), np.float32), [vector_of(text) for text in TEXTS])
    of_tokens = api.post("/embed", json={"inputs": TEXTS, "output": "tokens"}).get_json()
    for body in ({}, {"task": "token_embed", "truncate_prompt_tokens": -1, "use_activation": True}):
        assert pooled(api, **body) == of_tokens
    in_base64 = [np.frombuffer(base64.b64decode(data), "<f4") for data in pooled(api, encoding_format="base64")]
    assert [np.allclose(one, np.ravel(other)) for one, other in zip(in_base64, of_tokens, strict=True)] == [True, True]


def test_a_late_interaction_model_makes_its_multivectors(api: FlaskClient) -> None:
    assert np.allclose(pooled(api)[0], multivector_of(TEXTS[0]), atol=1e-6)


@pytest.mark.parametrize(
    "body", [{"task": "classify"}, {"input": 5}, {"dimensions": 2}, {"truncate_prompt_tokens": 9}, {"messages": []}]
)
def test_other_bodies_of_vllm_are_refused_and_named(api: FlaskClient, body: dict[str, Any]) -> None:
    response = api.post("/pooling", json={"input": TEXTS, **body})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, "invalid_request", "invalid_request_error")
    assert next(iter(body)) in error["message"]
