"""The routes of Cohere, Ollama, Weaviate and smaller services."""

import base64
import itertools
import json
import re
import time
from typing import Any

import numpy as np
import pytest
from api_stub import ABOUT, MakeApp, StubWorker, error_of, vector_of
from flask.testing import FlaskClient

from shoal import __version__

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])


@pytest.mark.usefixtures("stub")
def test_a_wrong_field_is_named(api: FlaskClient) -> None:
    for path, body, words in (
        ("/similar", {}, "text is missing"),
        ("/similar", {"text": ["a"]}, 'text is ["a"]: it takes a string'),
        ("/similar", {"text": " ", "keywords": "a"}, "queries[0] is empty"),
        ("/similar", {"text": "a", "num_results": 0}, "num_results is 0: it takes at least 1"),
        ("/predict", {}, "text is missing"),
        ("/predict", {"text": 5}, "text is 5: it takes a string or a list"),
        ("/predict?output=chunks", {"text": "a"}, "it takes 'vector' or 'tokens'"),
        ("/raw_embed/", {"input": 5}, "input is 5"),
    ):
        code, message = error_of(api.post(path, json=body), 422)
        assert (code, words in message) == ("invalid_request", True), message


class TestSimilar:
    @pytest.mark.usefixtures("stub")
    def test_each_item_is_a_line_with_its_text_id_and_score(self, api: FlaskClient) -> None:
        for name in ("text", "keywords"):
            response = api.post("/similar", json={name: "self driving cars navigation", "num_results": 2})
            lines = ["Item:document 0 (index: 0 score:1.0)", "Item:document 1 (index: 1 score:0.9)"]
            assert response.get_json() == {"text": lines}
            assert response.headers["X-Tokens"] == "6"
        assert len(api.post("/similar", json={"text": "a"}).get_json()["text"]) == 3  # all documents, at most 5

    @pytest.mark.usefixtures("serving")
    def test_the_items_are_the_hits_of_a_search(self, api: FlaskClient) -> None:
        (hits,) = api.post("/search", json={"queries": "storm rain", "k": 4}).get_json()["results"]
        lines = api.post("/similar", json={"keywords": "storm rain", "num_results": 4}).get_json()["text"]
        found = [re.fullmatch(r"Item:(.+) \(index: (\d+) score:(\d\.\d+)\)", line) for line in lines]
        assert [(match[1], match[2]) for match in found if match] == [(hit["text"], hit["id"]) for hit in hits]
        assert [np.float32(match[3]) for match in found if match] == [np.float32(hit["score"]) for hit in hits]


@pytest.mark.usefixtures("stub")
class TestPredict:
    def test_texts_have_a_vector_each_or_one_for_each_token(self, api: FlaskClient) -> None:
        for texts, expected in ((TEXTS, VECTORS), (TEXTS[0], VECTORS[:1])):
            found = api.post("/predict", json={"text": texts}).get_json()["embeddings"]
            assert np.array_equal(np.array(found, np.float32), expected)
        tokens = api.post("/predict?output=tokens", json={"text": ["a", "a b"]}).get_json()
        assert list(tokens) == ["ys"]
        assert [np.shape(rows) for rows in tokens["ys"]] == [(3, 4), (4, 4)]
        response = api.post("/predict", json={"text": TEXTS}, headers={"Accept": "application/octet-stream"})
        assert np.array_equal(np.frombuffer(response.data, "<f4").reshape(2, 4), VECTORS)
        response = api.post("/predict", json={"inputs": "a"})
        assert (response.status_code, response.get_json()["error_type"]) == (424, "Backend")
        shared = api.get("/openapi.json").get_json()["paths"]["/predict"]["post"]
        assert shared["tags"] == ["Text Embeddings Inference", "Predictions"]
        assert [parameter["name"] for parameter in shared["parameters"]] == ["output"]
        assert {"200", "424", "4XX", "5XX"} <= shared["responses"].keys()
        errors = shared["responses"]["4XX"]["content"]["application/json"]["schema"]["anyOf"]
        assert [error["$ref"].rpartition("/")[2] for error in errors] == ["TeiError", "ErrorBody"]


@pytest.mark.usefixtures("stub")
def test_the_model_and_the_vectors_or_only_the_numbers_are_answered(make_app: MakeApp, api: FlaskClient) -> None:
    api = make_app(model_aliases="old").test_client()
    for path in ("/json_embed/", "/orjson_embed/", "/json_embed", "/orjson_embed"):
        for texts, expected in ((TEXTS, VECTORS), (TEXTS[0], VECTORS[:1])):
            found = api.post(path, json={"model_name": "old", "input": texts}).get_json()
            assert (list(found), found["model_name"]) == (["model_name", "embedding"], "stub")
            assert np.array_equal(np.float32(found["embedding"]), expected)
        response = api.post(path, json={"model_name": "other", "input": "a"})
        assert error_of(response, 404)[0] == "model_not_found"
    for path, accept in (("/raw_embed/", "*/*"), ("/raw_embed", "application/json")):
        asked = {"model_name": "stub", "input": TEXTS}
        response = api.post(path, json=asked, headers={"Accept": accept})
        assert (response.headers["X-Dtype"], response.headers["X-Shape"]) == ("float32", "2,4")
        assert np.array_equal(np.frombuffer(response.data, "<f4").reshape(2, 4), VECTORS)
        assert api.post(path, json={"model_name": "other", "input": "a"}).status_code == 404


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
