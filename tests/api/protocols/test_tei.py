"""Text Embeddings Inference's routes, and Shoal's own routes that its clients use: bodies, answers and errors."""

from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, error_of, vector_of
from flask.testing import FlaskClient
from numpy.typing import NDArray
from werkzeug.test import TestResponse

from shoal_api.protocols.tei import MAX_TOKENIZED_CHARS

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
LONG = "a b c d e f g h i j"


def tei_error_of(response: TestResponse, status: int) -> tuple[str, str]:
    """Check the status and shape of an error; return its type and its message."""
    assert response.status_code == status
    assert sorted(response.get_json()) == ["error", "error_type"]
    return response.get_json()["error_type"], response.get_json()["error"]


def rows(response: TestResponse) -> NDArray[np.float32]:
    """Return the vectors of a response."""
    assert response.status_code == 200, response.get_data()
    return np.array(response.get_json(), np.float32)


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("path", ["/", "/embed"])
class TestEmbed:
    def test_its_bodies_are_accepted(self, api: FlaskClient, path: str) -> None:
        body = {"truncate": None, "truncation_direction": "Left", "prompt_name": None, "normalize": False}
        assert np.array_equal(rows(api.post(path, json={"inputs": TEXTS, **body})), [vector_of(text) for text in TEXTS])
        assert np.array_equal(rows(api.post(path, json={"inputs": TEXTS[0]})), [vector_of(TEXTS[0])])
        assert rows(api.post(path, json={"inputs": "", "dimensions": 2, "truncate": True})).shape == (1, 2)

    def test_errors_have_its_shape(self, api: FlaskClient, path: str) -> None:
        own = {"truncation_direction": "Right"}
        response = api.post(path, json={"inputs": LONG, "truncate": False, **own})
        assert "a text has 12 tokens" in tei_error_of(response, 422)[1]
        response = api.post(path, json={"inputs": ["a", 5], **own})
        assert tei_error_of(response, 422) == ("Validation", "inputs[1] is 5: it takes a string")
        response = api.post(path, json={"inputs": "a", "truncation_direction": "up"})
        assert 'truncation_direction is "up"' in tei_error_of(response, 422)[1]
        assert tei_error_of(api.post(path, json={"inputs": "fail", **own}), 424)[0] == "Backend"

    def test_its_own_token_ids_are_decoded(self, make_app: MakeApp, path: str) -> None:
        api = make_app(token_ids="own").test_client()
        expected = [vector_of("text 5 6, False"), vector_of("text 7, False")]
        assert np.array_equal(rows(api.post(path, json={"inputs": [[5, 6], [7]]})), expected)
        assert np.array_equal(rows(api.post(path, json={"inputs": [5, 6]})), expected[:1])
        assert np.shape(api.post("/embed_all", json={"inputs": [[5, 6]]}).get_json()) == (1, 6, 4)


@pytest.mark.usefixtures("stub")
def test_without_a_field_of_its_clients_shoals_route_has_shoals_errors_and_headers(api: FlaskClient) -> None:
    assert error_of(api.post("/embed", json={"inputs": 5}), 422)[0] == "invalid_request"
    assert "X-Total-Time" not in api.post("/embed", json={"inputs": TEXTS}).headers


@pytest.mark.usefixtures("stub")
def test_token_vectors_come_by_text(api: FlaskClient) -> None:
    answer = api.post("/embed_all", json={"inputs": ["a", "a b"]}).get_json()
    assert [np.shape(tokens) for tokens in answer] == [(3, 4), (4, 4)]
    assert api.post("/embed_all", json={"inputs": ["a", "a b"], "normalize": True}).get_json() == answer
    assert api.post("/embed_all", json={"inputs": ["a", "a b"], "dimensions": 2}).status_code == 422


@pytest.mark.usefixtures("stub")
def test_each_sentence_has_its_product_with_the_source(api: FlaskClient) -> None:
    inputs = {"source_sentence": "sea", "sentences": TEXTS}
    expected = [vector_of("sea") @ vector_of(text) for text in TEXTS]
    for path, parameters in (("/", {}), ("/similarity", None), ("/similarity", {"truncate": True})):
        answer = api.post(path, json={"inputs": inputs, "parameters": parameters})
        assert answer.get_json() == pytest.approx(expected, rel=1e-5)
    body: dict[str, Any] = {"inputs": inputs | {"sentences": [LONG]}, "parameters": {"truncate": False}}
    assert "a text has 12 tokens" in tei_error_of(api.post("/similarity", json=body), 422)[1]
    for path in ("/", "/similarity"):
        body = {"inputs": inputs | {"sentences": ["a", 5]}}
        message = "inputs.sentences[1] is 5: it takes a string"
        assert tei_error_of(api.post(path, json=body), 422) == ("Validation", message)
        body = {"inputs": {"source_sentence": "a"}}
        assert "inputs.sentences is missing" in tei_error_of(api.post(path, json=body), 422)[1]


@pytest.mark.usefixtures("stub")
class TestTokenizer:
    def test_each_text_has_its_tokens(self, api: FlaskClient) -> None:
        expected = [{"id": len(text), "text": text, "special": True, "start": 0, "stop": len(text)} for text in TEXTS]
        assert api.post("/tokenize", json={"inputs": TEXTS}).get_json() == [[piece] for piece in expected]
        body = {"inputs": "a", "add_special_tokens": False, "prompt_name": None}
        ((piece,),) = api.post("/tokenize", json=body).get_json()
        assert (piece["text"], piece["special"]) == ("a", False)

    def test_each_list_of_ids_has_its_text(self, api: FlaskClient) -> None:
        assert api.post("/decode", json={"ids": [1, 2]}).get_json() == ["text 1 2, False"]
        body = {"ids": [[1, 2], [3], []], "skip_special_tokens": False}
        assert api.post("/decode", json=body).get_json() == ["text 1 2, True", "text 3, True", "text , True"]
        for ids in (5, ["a"], [[1], 2], [[1.5]], None):
            kind, message = tei_error_of(api.post("/decode", json={"ids": ids}), 422)
            assert (kind, message.startswith("ids")) == ("Validation", True), message

    def test_a_request_with_too_much_to_tokenize_is_refused(self, api: FlaskClient) -> None:
        most = MAX_TOKENIZED_CHARS
        body = {"inputs": ["a" * most, "a"]}
        message = f"the request has {most + 1:,} characters and may have {most:,}: split the list"
        assert tei_error_of(api.post("/tokenize", json=body), 413) == ("Validation", message)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/", {"inputs": []}, "inputs"),
        ("/embed_all", {"inputs": []}, "inputs"),
        ("/tokenize", {"inputs": []}, "inputs"),
        ("/decode", {"ids": []}, "ids"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
    ],
)
def test_empty_lists_have_a_type_of_their_own(api: FlaskClient, path: str, body: dict[str, Any], name: str) -> None:
    message = f"{name} is an empty list: send at least one item"
    assert tei_error_of(api.post(path, json=body), 400) == ("Empty", message)
    assert tei_error_of(api.post(path, data=b"{"), 400)[0] == "Validation"


@pytest.mark.usefixtures("stub")
def test_headers_report_the_cost_of_a_request(api: FlaskClient) -> None:
    for path, body in (
        ("/", {"inputs": TEXTS}),
        ("/embed", {"inputs": TEXTS, "truncation_direction": "Left"}),
        ("/embed_all", {"inputs": TEXTS}),
        ("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}),
    ):
        headers = api.post(path, json=body).headers
        assert headers["X-Compute-Type"] == "cpu"
        assert (headers["X-Compute-Characters"], headers["X-Compute-Tokens"]) == ("22", "10")
        assert 0 <= int(headers["X-Total-Time"]) < 60_000
        assert headers["X-Compute-Time"] == headers["X-Total-Time"]
        assert headers["Server-Timing"]
        steps = ("X-Queue-Time", "X-Tokenization-Time", "X-Inference-Time")
        assert [headers[name] for name in steps] == ["1", "2", "3"]


@pytest.mark.usefixtures("stub")
def test_sparse_vectors_are_lists_of_an_index_and_a_value(api: FlaskClient) -> None:
    response = api.post("/embed_sparse", json={"inputs": TEXTS, "truncate": True, "truncation_direction": "Right"})
    assert response.get_json() == [
        [{"index": 1, "value": 0.1}, {"index": 5, "value": 0.5}],
        [{"index": 2, "value": 0.2}, {"index": 3, "value": 0.3}, {"index": 4, "value": 0.4}],
    ]
    assert (response.headers["X-Compute-Type"], response.headers["X-Compute-Tokens"]) == ("cpu", "10")
    assert api.post("/embed_sparse", json={"inputs": ""}).get_json() == [[]]


def test_the_root_embeds_by_a_model_that_makes_sparse_vectors_alone(api: FlaskClient, stub: StubWorker) -> None:
    dense = api.post("/", json={"inputs": "a storm"}).get_json()
    stub.announce(outputs=["sparse"])
    expected = [[{"index": 1, "value": 0.1}, {"index": 5, "value": 0.5}]]
    assert (np.shape(dense), api.post("/", json={"inputs": "a storm"}).get_json()) == ((1, 4), expected)
    assert api.get("/info").get_json()["model_type"] == {"embedding": {"pooling": "splade"}}
    message = tei_error_of(api.post("/", json={"inputs": "a", "dimensions": 2}), 422)[1]
    assert message == "dimensions does not go with output 'sparse': drop one of the two"


def test_what_the_model_cannot_do_is_refused(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(outputs=["vector"])
    for path, words in (("/embed_sparse", "makes no sparse"), ("/predict", "the served model")):
        kind, message = tei_error_of(api.post(path, json={"inputs": "a"}), 424)
        assert (kind, words in message) == ("Backend", True)


def test_without_a_worker_the_service_is_unhealthy(make_app: MakeApp) -> None:
    response = make_app(request_timeout_s=0.01).test_client().post("/", json={"inputs": "a"})
    assert (tei_error_of(response, 503)[0], response.headers["Retry-After"]) == ("Unhealthy", "1")


class TestService:
    def test_the_description_has_its_fields(self, api: FlaskClient, stub: StubWorker) -> None:
        stub.announce(pooling="cls", precision="bf16")
        info = api.get("/info").get_json()
        assert (info["model_id"], info["served_model_name"], info["model_dtype"]) == ("stub", "stub", "bfloat16")
        assert info["model_type"] == {"embedding": {"pooling": "cls"}}
        assert (info["max_input_length"], info["max_client_batch_size"], info["auto_truncate"]) == (8, 100_000, True)
        assert [info[name] for name in ("sha", "docker_label", "max_batch_requests")] == [None] * 3

    @pytest.mark.usefixtures("stub")
    def test_a_batch_of_the_described_size_is_answered_and_no_larger_one(self, make_app: MakeApp) -> None:
        api = make_app(max_response_mb=1).test_client()
        size = api.get("/info").get_json()["max_client_batch_size"]
        assert size == 2**20 // (4 * 4)
        assert api.post("/embed", json={"inputs": ["a"] * size}).status_code == 200
        assert api.post("/embed", json={"inputs": ["a"] * (size + 1)}).status_code == 413

    def test_below_a_path_it_has_all_of_its_routes(self, make_app: MakeApp, stub: StubWorker) -> None:
        api = make_app(protocols="tei=/tei").test_client()
        assert np.array_equal(rows(api.post("/tei/embed", json={"inputs": TEXTS[0]})), [vector_of(TEXTS[0])])
        assert tei_error_of(api.post("/tei/embed", json={"inputs": 5}), 422)[0] == "Validation"
        assert rows(api.post("/tei/", json={"inputs": TEXTS})).shape == (2, 4)
        assert api.get("/tei/info").get_json() == api.get("/info").get_json()
        assert api.get("/tei/health").status_code == 200
        stub.announce(state="starting")
        assert tei_error_of(api.get("/tei/health"), 503)[0] == "Unhealthy"

    def test_shoals_own_route_is_described_if_both_have_one(self, api: FlaskClient) -> None:
        paths = api.get("/openapi.json").get_json()["paths"]
        assert paths["/embed"]["post"]["tags"] == ["wait for the answer"]
        assert paths["/info"]["get"]["tags"] == ["service"]
        assert set(paths["/"]) == {"get", "post"}
        assert paths["/"]["post"]["tags"] == ["Text Embeddings Inference", "Cohere"]
