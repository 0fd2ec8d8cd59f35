"""POST /predict with a text, which shares its path with Text Embeddings Inference's."""

from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, error_of, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]


@pytest.mark.usefixtures("stub")
class TestPredict:
    def test_one_text_or_several_have_a_vector_each(self, api: FlaskClient) -> None:
        expected = np.array([vector_of(text) for text in TEXTS])
        assert np.array_equal(np.float32(api.post("/predict", json={"text": TEXTS}).get_json()["embeddings"]), expected)
        found = api.post("/predict", json={"text": TEXTS[0]}).get_json()
        assert np.array_equal(np.float32(found["embeddings"]), expected[:1])

    def test_each_token_has_a_vector_where_they_are_asked_for(self, api: FlaskClient) -> None:
        found = api.post("/predict?output=tokens", json={"text": ["a", "a b"]}).get_json()
        assert list(found) == ["ys"]
        assert [np.shape(rows) for rows in found["ys"]] == [(3, 4), (4, 4)]

    def test_vectors_come_in_other_formats(self, api: FlaskClient) -> None:
        response = api.post("/predict", json={"text": TEXTS}, headers={"Accept": "application/octet-stream"})
        assert np.array_equal(np.frombuffer(response.data, "<f4").reshape(2, 4), [vector_of(text) for text in TEXTS])

    @pytest.mark.parametrize(
        ("path", "body", "words"),
        [
            ("/predict", {}, "text is missing"),
            ("/predict", {"text": 5}, "text is 5: it takes a string or a list"),
            ("/predict?output=chunks", {"text": "a"}, "it takes 'vector' or 'tokens'"),
        ],
    )
    def test_a_wrong_field_is_named(self, api: FlaskClient, path: str, body: dict[str, Any], words: str) -> None:
        assert words in error_of(api.post(path, json=body), 422)[1]


@pytest.mark.usefixtures("stub")
class TestSharedPath:
    def test_a_body_with_inputs_is_for_text_embeddings_inference(self, api: FlaskClient) -> None:
        response = api.post("/predict", json={"inputs": "a"})
        assert (response.status_code, response.get_json()["error_type"]) == (424, "Backend")

    def test_each_answers_alone_where_the_other_is_left_out(self, make_app: MakeApp) -> None:
        alone = make_app(protocols="predict=/old,tei").test_client()
        assert alone.post("/old/predict", json={"text": "a"}).status_code == 200
        assert alone.post("/predict", json={"text": "a"}).get_json()["error_type"] == "Backend"

    def test_a_body_that_is_not_json_is_refused(self, api: FlaskClient) -> None:
        response = api.post("/predict", data=b"{")
        assert response.status_code == 400

    def test_the_description_has_both(self, api: FlaskClient) -> None:
        shared = api.get("/openapi.json").get_json()["paths"]["/predict"]["post"]
        assert shared["tags"] == ["Text Embeddings Inference", "Predictions"]
        assert [parameter["name"] for parameter in shared["parameters"]] == ["output"]
        assert {"200", "424", "4XX", "5XX"} <= shared["responses"].keys()
        errors = shared["responses"]["4XX"]["content"]["application/json"]["schema"]["anyOf"]
        assert [error["$ref"].rpartition("/")[2] for error in errors] == ["TeiError", "ErrorBody"]
        assert shared["description"].startswith("Predictions: ")
