"""The routes of smaller services, and of Weaviate's container of transformers."""

import json
import re

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, error_of, vector_of
from flask.testing import FlaskClient

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
        assert len(api.post("/similar", json={"text": "a"}).get_json()["text"]) == 3  # all documents, up to 5

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

    def test_a_body_with_inputs_is_for_text_embeddings_inference(self, api: FlaskClient, make_app: MakeApp) -> None:
        response = api.post("/predict", json={"inputs": "a"})
        assert (response.status_code, response.get_json()["error_type"]) == (424, "Backend")
        alone = make_app(protocols="predict=/old,tei").test_client()
        assert alone.post("/old/predict", json={"text": "a"}).status_code == 200
        assert alone.post("/predict", json={"text": "a"}).get_json()["error_type"] == "Backend"

    def test_the_description_has_both(self, api: FlaskClient) -> None:
        shared = api.get("/openapi.json").get_json()["paths"]["/predict"]["post"]
        assert shared["tags"] == ["Text Embeddings Inference", "Predictions"]
        assert [parameter["name"] for parameter in shared["parameters"]] == ["output"]
        assert {"200", "424", "4XX", "5XX"} <= shared["responses"].keys()
        errors = shared["responses"]["4XX"]["content"]["application/json"]["schema"]["anyOf"]
        assert [error["$ref"].rpartition("/")[2] for error in errors] == ["TeiError", "ErrorBody"]
        assert shared["description"].startswith("Predictions: ")


@pytest.mark.usefixtures("stub")
class TestWireFormats:
    def test_the_model_and_the_vectors_are_answered(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="old").test_client()
        for path in ("/json_embed/", "/orjson_embed/", "/json_embed", "/orjson_embed"):
            for texts, expected in ((TEXTS, VECTORS), (TEXTS[0], VECTORS[:1])):
                found = api.post(path, json={"model_name": "old", "input": texts}).get_json()
                assert (list(found), found["model_name"]) == (["model_name", "embedding"], "stub")
                assert np.array_equal(np.float32(found["embedding"]), expected)
            response = api.post(path, json={"model_name": "other", "input": "a"})
            assert error_of(response, 404)[0] == "model_not_found"

    def test_the_body_contains_only_the_numbers(self, api: FlaskClient) -> None:
        for path, accept in (("/raw_embed/", "*/*"), ("/raw_embed", "application/json")):
            asked = {"model_name": "stub", "input": TEXTS}
            response = api.post(path, json=asked, headers={"Accept": accept})
            assert (response.headers["X-Dtype"], response.headers["X-Shape"]) == ("float32", "2,4")
            assert np.array_equal(np.frombuffer(response.data, "<f4").reshape(2, 4), VECTORS)
            assert api.post(path, json={"model_name": "other", "input": "a"}).status_code == 404


@pytest.mark.usefixtures("stub")
class TestWeaviate:
    def test_one_text_or_several_have_their_vectors_and_an_error_is_one_string(self, api: FlaskClient) -> None:
        asked = {"text": TEXTS[0], "config": {"pooling_strategy": "masked_mean", "task_type": ""}}
        for more in ({}, {"config": None}, {"config": {"task_type": None, "dimensions": None}}, {"texts": ["b", "c"]}):
            body = api.post("/vectors", data=json.dumps(asked | more)).get_json()  # without a content type
            assert np.array_equal(np.array(body["vector"], np.float32), VECTORS[0])
            assert (body["text"], body["dims"], body["dim"]) == (TEXTS[0], 4, 4)
            assert body.keys().isdisjoint(("texts", "vectors"))
        body = api.post("/vectors", json={"texts": TEXTS, "config": {"dimensions": 2}}).get_json()
        assert np.array_equal(np.array(body["vectors"], np.float32), VECTORS[:, :2])
        assert body["dims"] == 2
        for wrong in ({}, {"text": 5}, {"text": "a", "config": {"dimensions": 0}}):
            response = api.post("/vectors", json=wrong)
            assert (response.status_code, list(response.get_json())) == (422, ["error"])

    def test_it_is_ready_with_a_worker(self, api: FlaskClient, stub: StubWorker) -> None:
        assert api.get("/.well-known/ready").status_code == 204
        assert api.get("/.well-known/live").status_code == 204
        assert api.get("/meta").get_json()["model"] == "stub"
        stub.announce(state="starting")
        assert list(api.get("/.well-known/ready").get_json()) == ["error"]
