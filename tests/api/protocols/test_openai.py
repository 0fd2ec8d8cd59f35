"""Embeddings and models as the clients of OpenAI, Voyage, Jina, Infinity and vLLM send and read them."""

import base64
import re
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, multivector_of, vector_of
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
VECTORS = np.array([vector_of(text) for text in TEXTS])
LONG = "a b c d e f g h i"


def post(api: FlaskClient, path: str = "/v1/embeddings", **body: Any) -> TestResponse:
    """Post a body, which has two texts unless it has others."""
    return api.post(path, json={"input": TEXTS, **body})


def error_of(response: TestResponse, status: int) -> tuple[str, str, str]:
    """Check the status and shape of an error; return its type, code and message."""
    assert response.status_code == status
    error = response.get_json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert response.get_json() == {"error": error, "detail": error["message"]}  # Voyage's clients read `detail`
    return error["type"], error["code"], error["message"]


def rows(api: FlaskClient, number: str = "<f4", path: str = "/v1/embeddings", **body: Any) -> Any:
    """Return the vectors, as arrays if they come in base64; check that the answer has OpenAI's shape."""
    found = post(api, path, **{"model": "stub"} | body).get_json()
    assert (found["object"], found["model"], found["usage"]["total_tokens"] > 0) == ("list", "stub", True)
    assert [item["index"] for item in found["data"]] == [*range(len(found["data"]))]
    vectors = [item["data" if path == "/pooling" else "embedding"] for item in found["data"]]
    if (body.get("embedding_type") or body.get("encoding_format")) != "base64":
        return vectors
    return [np.frombuffer(base64.b64decode(row), number) for row in vectors]


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, VECTORS),
        ({"user": "u-1", "encoding_format": "base64"}, VECTORS),
        ({"input": TEXTS[0], "encoding_format": "float"}, VECTORS[:1]),
        ({"input": ""}, [vector_of("")]),
        ({"dimensions": 2, "encoding_format": None, "model": None}, VECTORS[:, :2]),
        # Voyage
        ({"input_type": None, "truncation": True, "output_dtype": None, "encoding_format": "base64"}, VECTORS),
        ({"output_dimension": 2, "truncation": None}, VECTORS[:, :2]),
        # Jina
        ({"late_chunking": False, "embedding_type": "float", "encoding_format": "base64"}, VECTORS),
        ({"embedding_type": "base64", "task": "text-matching", "normalized": True}, VECTORS),
        ({"dimensions": 2, "task": "text-matching", "encoding_format": "base64"}, VECTORS[:, :2]),  # OpenAI's client
        ({"input": [{"text": TEXTS[0]}, TEXTS[1]], "truncate": True}, VECTORS),
        ({"input": [{"text": TEXTS[0]}, {"text": TEXTS[1]}], "encoding_type": "float"}, VECTORS),  # LlamaIndex
        # Infinity
        ({"path": "/embeddings", "model": "default/not-specified", "dimensions": 0}, VECTORS),
        ({"path": "/embeddings", "input": TEXTS[0], "encoding_format": "base64", "dimensions": 2}, VECTORS[:1, :2]),
        # vLLM
        ({"path": "/pooling", "task": "embed", "user": "me"}, VECTORS),
    ],
)
def test_vectors_come_as_they_are_asked_for(api: FlaskClient, body: dict[str, Any], expected: Any) -> None:
    assert np.array_equal(np.array(rows(api, **body), np.float32), expected)


@pytest.mark.usefixtures("stub")
class TestAnswers:
    def test_the_cost_is_the_number_of_tokens_and_answers_have_ids(self, api: FlaskClient) -> None:
        body = post(api).get_json()
        assert body["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
        assert re.fullmatch("[0-9a-f]{24}", body["id"])  # Mistral's clients need an id
        assert [item["object"] for item in body["data"]] == ["embedding"] * 2
        sent: dict[str, Any] = {"truncate_prompt_tokens": -1, "drop_params": True}  # vLLM's clients and RAGFlow send it
        response = post(api, input=LONG, **sent)
        assert response.get_json()["usage"]["prompt_tokens"] == 8
        assert (response.headers["X-Tokens"], response.headers["X-Truncated"]) == ("8", "1")
        body = post(api, "/embeddings").get_json()
        assert (body["id"][:9], body["created"] > 1_700_000_000) == ("infinity-", True)
        assert error_of(post(api, input="fail"), 500)[:2] == ("server_error", "internal")

    def test_numbers_and_multivectors_have_their_shapes(self, api: FlaskClient) -> None:
        packed = np.array(rows(api, "i1", encoding_format="base64", output_dtype="int8"))
        assert np.array_equal(packed, rows(api, output_dtype="int8"))
        assert np.abs(packed).max() == 127
        mistrals = {"output_dtype": "uint8", "encoding_format": "float"}
        assert np.shape(rows(api, output_dimension=2, **mistrals)) == (2, 2)
        answer = post(api, input=[{"text": TEXTS[0]}, TEXTS[1]], return_multivector=True).get_json()
        own = api.post("/embed", json={"inputs": TEXTS, "output": "multivector"}).get_json()
        data = [{"object": "embedding", "index": n, "embeddings": vectors} for n, vectors in enumerate(own)]
        assert (answer["data"], answer["object"], answer["model"]) == (data, "list", "stub")
        assert answer["usage"]["total_tokens"] > 0

    def test_a_task_of_vllm_chooses_vectors_of_texts_or_of_tokens(self, api: FlaskClient, stub: StubWorker) -> None:
        assert np.allclose(rows(api, path="/pooling")[0], multivector_of(TEXTS[0]), atol=1e-6)
        stub.announce(outputs=["vector", "tokens"])
        of_tokens = api.post("/embed", json={"inputs": TEXTS, "output": "tokens"}).get_json()
        asked: dict[str, Any] = {"task": "token_embed", "truncate_prompt_tokens": -1, "use_activation": True}
        assert rows(api, path="/pooling") == rows(api, path="/pooling", **asked) == of_tokens
        for one, other in zip(rows(api, path="/pooling", encoding_format="base64"), of_tokens, strict=True):
            assert np.allclose(one, np.ravel(other))
        found = post(api, "/pooling").get_json()
        assert list(found) == ["id", "object", "created", "model", "data", "usage"]
        assert [item["object"] for item in found["data"]] == ["pooling"] * 2

    def test_token_ids_are_decoded_if_the_setting_allows_it(self, api: FlaskClient, make_app: MakeApp) -> None:
        own = make_app(token_ids="own").test_client()
        for ids, texts in (([5, 6], ["5 6"]), ([[5, 6], [7]], ["5 6", "7"])):
            kind, code, message = error_of(post(api, input=ids), 400)
            assert (kind, code) == ("invalid_request_error", "invalid_request")
            assert "OpenAIEmbeddings(check_embedding_ctx_length=False)" in message
            found = np.array(rows(own, input=ids), np.float32)
            assert np.array_equal(found, [vector_of(f"text {text}, False") for text in texts])


#: Fields of wrong bodies of OpenAI's route, or vLLM's, and words of the error.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ["a", 5]}, "input[1] is 5: it takes a string"),
    ({"input": [1, "a"]}, 'input[1] is "a": it takes a whole number'),
    ({"input": [[1], ["a"]]}, 'input[1][0] is "a": it takes a whole number'),
    ({"input": {"a": 1}}, 'input is {"a": 1}: it takes a string, a list of strings, or token ids'),
    ({"input": None}, "input is null: it takes"),
    ({"input": []}, "the list of texts is empty"),
    ({"dimensions": 10**6}, "dimensions is 1000000"),
    ({"encoding_format": "hex"}, "encoding_format is \"hex\": it takes 'float' or 'base64'"),
    *(({"path": "/pooling", name: 9}, name) for name in ("task", "dimensions", "truncate_prompt_tokens", "messages")),
    ({"path": "/pooling", "input": 5}, "input is 5"),
]

#: Fields that only Voyage or Jina has, and words of the error that refuses them.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_dtype": "float64"}, "output_dtype is"),
    ({"output_dtype": "binary"}, "the vectors have 4 numbers"),
    ({"output_dimension": 0}, "output_dimension is 0"),
    ({"input_type": "image"}, "input_type is"),
    ({"truncation": True, "dimensions": 2}, "did you mean output_dimension?"),
    ({"task": "retrieval.query", "late_chunking": True}, "late_chunking is true: it takes false"),
    ({"encoding_type": "ubinary"}, "encoding_type is"),
    ({"task": "walk"}, "task is"),
    ({"return_multivector": True, "dimensions": 2}, "dimensions"),
    ({"return_multivector": True, "encoding_format": "base64"}, "the format is base64"),
    ({"return_multivector": True, "input": [{"image": "a"}]}, "image"),
]


@pytest.mark.usefixtures("stub")
def test_a_wrong_field_is_named(api: FlaskClient) -> None:
    assert "input is missing" in error_of(api.post("/v1/embeddings", json={}), 400)[2]
    for body, words in (*WRONG, *REFUSED):
        response = post(api, **body)
        assert response.status_code in ((400,) if (body, words) in WRONG else (400, 422))
        kind, code, message = error_of(response, response.status_code)
        assert (kind, code, words in message) == ("invalid_request_error", "invalid_request", True), message


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
    def test_an_alias_is_answered_with_its_model_and_any_other_name_is_unknown(self, make_app: MakeApp) -> None:
        for aliases in ("ada, text-embedding-3-small", "*"):
            api = make_app(model_aliases=aliases).test_client()
            assert post(api, model="text-embedding-3-small").get_json()["model"] == "stub"
            assert api.get("/v1/models/ada").get_json()["id"] == "stub"
        api = make_app().test_client()
        for response in (post(api, model="text-embedding-3-small"), api.get("/v1/models/ada")):
            kind, code, message = error_of(response, 404)
            assert (kind, code, "ask for stub" in message) == ("not_found_error", "model_not_found", True)

    def test_without_a_worker_no_model_is_listed_and_a_request_waits_for_one(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="*", request_timeout_s=0.01).test_client()
        assert api.get("/v1/models").get_json()["data"] == []
        assert error_of(api.get("/v1/models/any"), 404)[1] == "model_not_found"
        assert error_of(post(api, model="any"), 504)[:2] == ("server_error", "timeout")

    def test_infinitys_models_show_the_load_of_the_lanes(self, api: FlaskClient, stub: StubWorker) -> None:
        stub.pause()
        api.post("/v1/jobs", json={"op": "embed", "inputs": ["a", "b"]})
        model, reranker = api.get("/models").get_json()["data"]
        assert (reranker["id"], reranker["capabilities"]) == ("stub-reranker", ["rerank"])
        assert (model["id"], model["capabilities"], model["backend"]) == ("stub", ["embed"], "shoal")
        loads = {"queue_fraction": 2 / 200_000, "queue_absolute": 2, "results_pending": 2}
        assert model["stats"] == loads | {"batch_size": 64}
        stub.resume()
