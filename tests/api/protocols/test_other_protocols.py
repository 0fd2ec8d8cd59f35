"""The routes of Cohere, Ollama and Weaviate."""

import base64
import itertools
import json
import time
from typing import Any

import numpy as np
import pytest
from api_stub import ABOUT, MakeApp, StubWorker, vector_of
from flask.testing import FlaskClient

from shoal import __version__

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])


@pytest.mark.usefixtures("stub")
class TestWeaviate:
    def test_one_text_or_several_have_their_vectors_and_the_service_is_ready(
        self, api: FlaskClient, stub: StubWorker
    ) -> None:
        asked = {"text": TEXTS[0], "config": {"pooling_strategy": "masked_mean", "task_type": ""}}
        for more in ({}, {"config": None}, {"config": {"task_type": None, "dimensions": None}}, {"texts": ["b", "c"]}):
            body = api.post("/vectors", data=json.dumps(asked | more)).get_json()  # this request has no content type
            assert np.array_equal(np.array(body["vector"], np.float32), VECTORS[0])
            assert (body["text"], body["dims"], body["dim"]) == (TEXTS[0], 4, 4)
            assert body.keys().isdisjoint(("texts", "vectors"))
        body = api.post("/vectors", json={"texts": TEXTS, "config": {"dimensions": 2}}).get_json()
        assert np.array_equal(np.array(body["vectors"], np.float32), VECTORS[:, :2])
        assert body["dims"] == 2
        for wrong in ({}, {"text": 5}, {"text": "a", "config": {"dimensions": 0}}):
            response = api.post("/vectors", json=wrong)
            assert (response.status_code, list(response.get_json())) == (422, ["error"])
        assert api.get("/.well-known/ready").status_code == 204
        assert api.get("/.well-known/live").status_code == 204
        assert api.get("/meta").get_json()["model"] == "stub"
        stub.announce(state="starting")
        assert list(api.get("/.well-known/ready").get_json()) == ["error"]


ALL = ["float", "int8", "uint8", "base64"]


@pytest.mark.usefixtures("stub")
class TestCohere:
    def test_vectors_come_in_every_format_or_as_floats(self, api: FlaskClient) -> None:
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


def test_without_a_worker_neither_prompts_nor_models_are_known(make_app: MakeApp) -> None:
    api = make_app(request_timeout_s=0.01).test_client()
    response = api.post("/v2/embed", json={"texts": ["a"], "input_type": "search_query"})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert api.get("/api/tags").get_json() == {"models": []}
    assert api.post("/api/show", json={"model": "stub"}).status_code == 404
    assert api.get("/api/version").get_json() == {"version": __version__}


@pytest.mark.usefixtures("stub")
class TestOllama:
    def test_texts_are_embedded_at_a_cost(self, api: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = itertools.count()
        monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))  # each reading of it takes a second
        asked: dict[str, Any] = {"model": "stub", "input": ["a", "b c"], "options": {"num_ctx": 8}, "keep_alive": "5m"}
        body = api.post("/api/embed", json=asked | {"truncate": None}).get_json()
        assert np.array_equal(np.array(body["embeddings"], np.float32), [vector_of("a"), vector_of("b c")])
        assert (body["model"], body["prompt_eval_count"], body["load_duration"]) == ("stub", 7, 0)
        assert divmod(body["total_duration"], 10**9) == (1, 0)
        for dimensions, size in ((2, 2), (4, 4), (5, 4)):  # a larger number asks for all
            asked = {"model": "stub", "input": "a", "dimensions": dimensions}
            assert np.shape(api.post("/api/embed", json=asked).get_json()["embeddings"]) == (1, size)
        body = api.post("/api/embeddings", json={"model": "stub", "prompt": "a", "keep_alive": 5}).get_json()
        assert np.array_equal(np.array(body["embedding"], np.float32), vector_of("a"))

    def test_the_served_model_may_be_pulled_and_shown_by_its_names_and_no_other(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="mine:latest").test_client()
        for asked in ({"model": "stub"}, {"name": "STUB:latest", "stream": True, "insecure": False}, {"model": "mine"}):
            response = api.post("/api/pull", json=asked)
            assert (response.status_code, response.mimetype) == (200, "application/x-ndjson")
            assert response.data == b'{"status":"success"}\n'
        response = api.post("/api/pull", json={"model": "stub", "stream": False})
        assert (response.mimetype, response.get_json()) == ("application/json", {"status": "success"})
        response = api.post("/api/pull", json={"model": "llama3", "stream": True})
        assert (response.status_code, list(response.get_json())) == (404, ["error"])
        assert "is not served here: ask for stub" in response.get_json()["error"]
        shown = [api.post("/api/show", json=asked).status_code for asked in ({"model": "", "name": "stub"}, {})]
        assert shown == [200, 400]

    def test_a_model_is_listed_and_shown_under_each_name(self, make_app: MakeApp, stub: StubWorker) -> None:
        stub.announce(model="sentence-transformers/all-MiniLM-L6-v2")
        api = make_app(model_aliases="mine,*").test_client()
        models = api.get("/api/tags").get_json()["models"]
        names = ["sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "all-minilm", "mine"]
        assert [model["name"] for model in models] == [model["model"] for model in models] == names
        assert {model["digest"] for model in models} == {"d"}
        assert (models[0]["details"]["family"], models[0]["details"]["quantization_level"]) == ("bert", "f32")
        assert [model["name"] for model in api.get("/api/ps").get_json()["models"]] == names[:1]
        api = make_app(model_aliases="nomic-embed-text").test_client()
        stub.pool.announce("other", ABOUT | {"model": "other", "dimension": 5})
        for name, dimensions in ((names[0], {4}), ("nomic-embed-text:latest", {4, 5}), ("other", {5})):
            body = api.post("/api/show", json={"model": name}).get_json()
            assert body["capabilities"] == ["embedding"]
            assert body["model_info"].pop("bert.embedding_length") in dimensions
            assert body["model_info"] == {"general.architecture": "bert", "bert.context_length": 8}
        stub.pool.leave("other")
