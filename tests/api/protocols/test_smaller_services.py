"""POST /similar, POST /predict with a text, and POST /json_embed/, /orjson_embed/ and /raw_embed/."""

import re
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, error_of, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/similar", {}, "text is missing"),
        ("/similar", {"text": ["a"]}, 'text is ["a"]: it takes a string'),
        ("/similar", {"text": " ", "keywords": "a"}, "queries[0] is empty"),
        ("/similar", {"text": "a", "num_results": 0}, "num_results is 0: it takes at least 1"),
        ("/predict", {}, "text is missing"),
        ("/predict", {"text": 5}, "text is 5: it takes a string or a list"),
        ("/predict?output=chunks", {"text": "a"}, "it takes 'vector' or 'tokens'"),
        ("/raw_embed/", {"input": 5}, "input is 5"),
    ],
)
def test_a_wrong_field_is_named(api: FlaskClient, path: str, body: dict[str, Any], words: str) -> None:
    code, message = error_of(api.post(path, json=body), 422)
    assert (code, words in message) == ("invalid_request", True), message


class TestSimilar:
    @pytest.mark.usefixtures("stub")
    @pytest.mark.parametrize("name", ["text", "keywords"])
    def test_each_item_is_a_line_with_its_text_id_and_score(self, api: FlaskClient, name: str) -> None:
        response = api.post("/similar", json={name: "self driving cars navigation", "num_results": 2})
        lines = ["Item:document 0 (index: 0 score:1.0)", "Item:document 1 (index: 1 score:0.9)"]
        assert response.get_json() == {"text": lines}
        assert response.headers["X-Tokens"] == "6"
        assert len(api.post("/similar", json={name: "a"}).get_json()["text"]) == 3  # all that the index has, up to 5

    @pytest.mark.usefixtures("serving")
    def test_the_items_are_those_that_a_search_finds(self, api: FlaskClient) -> None:
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
    @pytest.mark.parametrize("path", ["/json_embed/", "/orjson_embed/", "/json_embed", "/orjson_embed"])
    def test_the_model_and_the_vectors_are_answered(self, make_app: MakeApp, path: str) -> None:
        api = make_app(model_aliases="old").test_client()
        for texts in (TEXTS, TEXTS[0]):
            found = api.post(path, json={"model_name": "old", "input": texts}).get_json()
            assert (list(found), found["model_name"]) == (["model_name", "embedding"], "stub")
            assert np.array_equal(np.float32(found["embedding"]), VECTORS[: 1 if texts is TEXTS[0] else 2])
        response = api.post(path, json={"model_name": "other", "input": "a"})
        assert error_of(response, 404)[0] == "model_not_found"

    @pytest.mark.parametrize("path", ["/raw_embed/", "/raw_embed"])
    @pytest.mark.parametrize("accept", ["*/*", "application/json"])
    def test_the_body_is_the_numbers_alone(self, api: FlaskClient, path: str, accept: str) -> None:
        response = api.post(path, json={"model_name": "stub", "input": TEXTS}, headers={"Accept": accept})
        assert (response.headers["X-Dtype"], response.headers["X-Shape"]) == ("float32", "2,4")
        assert np.array_equal(np.frombuffer(response.data, "<f4").reshape(2, 4), VECTORS)
        assert api.post(path, json={"model_name": "other", "input": "a"}).status_code == 404
