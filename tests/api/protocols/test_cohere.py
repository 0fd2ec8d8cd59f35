"""Cohere's routes: vectors in several formats, and the prompt of each type of input."""

import base64
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])
ALL = ["float", "int8", "uint8", "base64"]


@pytest.mark.usefixtures("stub")
class TestEmbed:
    def test_vectors_come_in_every_format(self, api: FlaskClient) -> None:
        asked = {"model": "stub", "texts": TEXTS, "input_type": "search_query", "embedding_types": ALL}
        body = api.post("/v2/embed", json=asked).get_json()
        found = body["embeddings"]
        at_root = api.post("/", json=asked).get_json()
        assert {name for name in body if body[name] != at_root[name]} == {"id"}
        assert np.array_equal(np.array(found["float"], np.float32), VECTORS)
        decoded = [np.frombuffer(base64.b64decode(row), "<f4") for row in found["base64"]]
        assert np.array_equal(decoded, VECTORS)
        rounded = np.array(found["int8"])
        assert np.abs(rounded).max(axis=1).tolist() == [127, 127]
        assert rounded / 127 * np.abs(VECTORS).max(axis=1, keepdims=True) == pytest.approx(VECTORS, abs=0.02)
        assert np.array_equal(np.array(found["uint8"]) - 128, rounded)
        assert (body["response_type"], body["texts"]) == ("embeddings_by_type", TEXTS)
        assert body["meta"]["tokens"] == body["meta"]["billed_units"] == {"input_tokens": 10}

    def test_without_a_format_vectors_are_floats_and_null_is_no_choice(self, api: FlaskClient) -> None:
        body = api.post("/v2/embed", json={"texts": TEXTS, "embedding_types": None}).get_json()
        assert list(body["embeddings"]) == ["float"]
        optional = ("model", "input_type", "embedding_types", "truncate", "output_dimension")
        for more in ({}, dict.fromkeys(optional)):
            body = api.post("/v1/embed", json={"texts": TEXTS, **more}).get_json()
            assert np.array_equal(np.array(body["embeddings"], np.float32), VECTORS)
            assert body["response_type"] == "embeddings_floats"
        body = api.post("/v1/embed", json={"texts": TEXTS, "embedding_types": ["int8"]}).get_json()
        assert (list(body["embeddings"]), body["response_type"]) == (["int8"], "embeddings_by_type")

    def test_texts_may_come_in_parts(self, api: FlaskClient) -> None:
        def parts(*texts: str) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": text} for text in texts]}

        body = api.post("/v2/embed", json={"inputs": [parts("a storm"), parts("rain", "in the sea")]}).get_json()
        expected = [vector_of("a storm"), vector_of("rain\nin the sea")]
        assert np.array_equal(np.array(body["embeddings"]["float"], np.float32), expected)
        assert body["texts"] == ["a storm", "rain\nin the sea"]
        image = {"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
        for refused, words in (
            ({"inputs": [parts("a"), parts()]}, "inputs[1].content is []: it takes a list with 1 or more items"),
            ({"inputs": [parts("a")], "texts": TEXTS}, "either texts or inputs"),
            ({}, "either texts or inputs"),
            ({"inputs": [parts("a"), image]}, 'unknown field "image_url"'),
            ({"inputs": ["a"]}, 'inputs[0] is "a": it takes an object'),
        ):
            response = api.post("/v2/embed", json=refused)
            assert (response.status_code, list(response.get_json())) == (400, ["message"])
            assert words in response.get_json()["message"]

    def test_options_reach_the_worker(self, api: FlaskClient, stub: StubWorker) -> None:
        for side in ("START", "END"):
            body = api.post("/v2/embed", json={"texts": TEXTS, "output_dimension": 2, "truncate": side}).get_json()
            assert np.shape(body["embeddings"]["float"]) == (2, 2)
        assert [options.truncation_side for options in stub.asked] == ["left", "right"]
        response = api.post("/v2/embed", json={"texts": ["a b c d e f g h i"], "truncate": "NONE"})
        assert response.status_code == 400
        assert "a text has 11 tokens" in response.get_json()["message"]


def test_without_a_worker_the_prompt_is_not_known(make_app: MakeApp) -> None:
    api = make_app(request_timeout_s=0.01).test_client()
    response = api.post("/v2/embed", json={"texts": ["a"], "input_type": "search_query"})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
