"""POST /json_embed/, /orjson_embed/ and /raw_embed/."""

import numpy as np
import pytest
from api_stub import MakeApp, error_of, vector_of
from flask.testing import FlaskClient

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])


@pytest.mark.usefixtures("stub")
class TestJson:
    @pytest.mark.parametrize("path", ["/json_embed/", "/orjson_embed/", "/json_embed", "/orjson_embed"])
    def test_the_model_and_the_vectors_are_answered(self, api: FlaskClient, path: str) -> None:
        found = api.post(path, json={"model_name": "stub", "input": TEXTS}).get_json()
        assert list(found) == ["model_name", "embedding"]
        assert found["model_name"] == "stub"
        assert np.array_equal(np.float32(found["embedding"]), VECTORS)

    def test_one_text_has_a_list_of_one_vector(self, api: FlaskClient) -> None:
        found = api.post("/json_embed/", json={"input": TEXTS[0]}).get_json()
        assert np.array_equal(np.float32(found["embedding"]), VECTORS[:1])

    def test_an_alias_is_answered_with_the_model(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="old").test_client()
        assert api.post("/json_embed/", json={"model_name": "old", "input": "a"}).get_json()["model_name"] == "stub"
        response = api.post("/json_embed/", json={"model_name": "other", "input": "a"})
        assert error_of(response, 404)[0] == "model_not_found"


@pytest.mark.usefixtures("stub")
class TestRaw:
    @pytest.mark.parametrize("path", ["/raw_embed/", "/raw_embed"])
    @pytest.mark.parametrize("accept", ["*/*", "application/json"])
    def test_the_body_is_the_numbers_alone(self, api: FlaskClient, path: str, accept: str) -> None:
        response = api.post(path, json={"model_name": "stub", "input": TEXTS}, headers={"Accept": accept})
        assert (response.headers["X-Dtype"], response.headers["X-Shape"]) == ("float32", "2,4")
        assert np.array_equal(np.frombuffer(response.data, "<f4").reshape(2, 4), VECTORS)

    def test_a_wrong_field_is_named(self, api: FlaskClient) -> None:
        assert error_of(api.post("/raw_embed/", json={"input": 5}), 422)[1].startswith("input is 5")
