"""OpenAI's routes: embeddings and models, as its clients send and read them."""

import base64
import re
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, vector_of
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]


def embed(api: FlaskClient, **body: Any) -> TestResponse:
    """Post to the route of embeddings."""
    return api.post("/v1/embeddings", json=body)


def error_of(response: TestResponse, status: int) -> tuple[str, str, str]:
    """Check the status and shape of an error; return its type, code and message."""
    assert response.status_code == status
    error = response.get_json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert response.get_json() == {"error": error, "detail": error["message"]}  # Voyage's clients read `detail`
    return error["type"], error["code"], error["message"]


@pytest.mark.usefixtures("stub")
class TestEmbeddings:
    def test_vectors_come_as_lists_of_numbers_with_their_cost(self, api: FlaskClient) -> None:
        response = embed(api, input=TEXTS, model="stub", user="u-1")
        body = response.get_json()
        assert (body["object"], body["model"], body["usage"]) == (
            "list",
            "stub",
            {"prompt_tokens": 10, "total_tokens": 10},
        )
        assert re.fullmatch("[0-9a-f]{24}", body["id"])  # Mistral's clients need an id
        assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", 0), ("embedding", 1)]
        rows = np.array([item["embedding"] for item in body["data"]], np.float32)
        assert np.array_equal(rows, [vector_of(text) for text in TEXTS])
        assert response.headers["X-Tokens"] == "10"

    def test_base64_has_the_same_numbers_as_little_endian_floats(self, api: FlaskClient) -> None:
        data = embed(api, input=TEXTS, encoding_format="base64").get_json()["data"]
        rows = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data]
        assert np.array_equal(rows, [vector_of(text) for text in TEXTS])

    def test_one_text_is_a_list_of_one(self, api: FlaskClient) -> None:
        for text in ("a storm", ""):
            (item,) = embed(api, input=text, encoding_format="float").get_json()["data"]
            assert np.array_equal(np.array(item["embedding"], np.float32), vector_of(text))
        (item,) = embed(api, input="a", dimensions=2, encoding_format=None, model=None).get_json()["data"]
        assert len(item["embedding"]) == 2

    def test_a_cut_text_counts_the_tokens_that_were_read(self, api: FlaskClient) -> None:
        sent = {"truncate_prompt_tokens": -1, "drop_params": True}  # by vLLM's clients and by RAGFlow
        response = embed(api, input="a b c d e f g h i j", **sent)
        assert response.get_json()["usage"]["prompt_tokens"] == 8
        assert response.headers["X-Truncated"] == "1"

    def test_token_ids_are_decoded_if_the_setting_allows_it(self, api: FlaskClient, make_app: MakeApp) -> None:
        own = make_app(token_ids="own").test_client()
        for ids, texts in (([5, 6], ["5 6"]), ([[5, 6], [7]], ["5 6", "7"])):
            kind, code, message = error_of(embed(api, input=ids), 400)
            assert (kind, code) == ("invalid_request_error", "invalid_request")
            assert "OpenAIEmbeddings(check_embedding_ctx_length=False)" in message
            data = embed(own, input=ids).get_json()["data"]
            found = np.array([item["embedding"] for item in data], np.float32)
            assert np.array_equal(found, [vector_of(f"text {text}, False") for text in texts])

    def test_a_wrong_field_is_named(self, api: FlaskClient) -> None:
        for body, words in (
            ({"input": ["a", 5]}, "input[1] is 5: it takes a string"),
            ({"input": [1, "a"]}, 'input[1] is "a": it takes a whole number'),
            ({"input": [[1], ["a"]]}, 'input[1][0] is "a": it takes a whole number'),
            ({"input": {"a": 1}}, 'input is {"a": 1}: it takes a string, a list of strings, or token ids'),
            ({"input": None}, "input is null: it takes"),
            ({"input": []}, "the list of texts is empty"),
            ({}, "input is missing"),
            ({"input": "a", "dimensions": 10**6}, "dimensions is 1000000"),
            ({"input": "a", "encoding_format": "hex"}, "encoding_format is \"hex\": it takes 'float' or 'base64'"),
        ):
            kind, _, message = error_of(api.post("/v1/embeddings", json=body), 400)
            assert (kind, words in message) == ("invalid_request_error", True), message

    def test_a_failure_is_an_error_of_the_server(self, api: FlaskClient) -> None:
        assert error_of(embed(api, input="fail"), 500)[:2] == ("server_error", "internal")


class TestModels:
    def test_the_served_model_is_listed_and_found(self, api: FlaskClient, stub: StubWorker) -> None:
        for name in ("stub", "org/stub", "/folder/of/stub"):
            stub.announce(model=name)
            about: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "shoal"}
            about |= {"dimension": 4, "matryoshka_dimensions": [2, 4], "type": "base", "capabilities": {}}
            assert api.get("/v1/models").get_json() == {"object": "list", "data": [about]}
            assert api.get(f"/v1/models/{name}").get_json() == about
            assert api.get(f"/v1/models/{quote(name, safe='')}").get_json() == about

    @pytest.mark.usefixtures("stub")
    def test_any_other_name_is_unknown(self, api: FlaskClient) -> None:
        for response in (embed(api, input="a", model="text-embedding-3-small"), api.get("/v1/models/ada")):
            kind, code, message = error_of(response, 404)
            assert (kind, code) == ("not_found_error", "model_not_found")
            assert "ask for stub" in message

    @pytest.mark.usefixtures("stub")
    def test_an_alias_is_answered_with_its_model(self, make_app: MakeApp) -> None:
        for aliases in ("ada, text-embedding-3-small", "*"):
            api = make_app(model_aliases=aliases).test_client()
            assert embed(api, input="a", model="text-embedding-3-small").get_json()["model"] == "stub"
            assert api.get("/v1/models/ada").get_json()["id"] == "stub"

    def test_without_a_worker_no_model_is_listed_and_a_request_waits_for_one(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="*", request_timeout_s=0.01).test_client()
        assert api.get("/v1/models").get_json()["data"] == []
        assert error_of(api.get("/v1/models/any"), 404)[1] == "model_not_found"
        assert error_of(embed(api, input="a", model="any"), 504)[:2] == ("server_error", "timeout")
