"""Text Embeddings Inference's routes, and Shoal's own routes that its clients use: bodies, answers and errors."""

from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, vector_of
from flask.testing import FlaskClient
from numpy.typing import NDArray
from werkzeug.test import TestResponse

from shoal_api.protocols.tei import MAX_TOKENIZED_CHARS

pytest_plugins = ["api_fixtures"]

TEXTS = ["a storm", "rain in the sea"]
LONG = "a b c d e f g h i j"
EMBED = ("/", "/embed")
SIMILAR = ("/", "/similarity")


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
@pytest.mark.parametrize("path", EMBED)
def test_texts_and_token_ids_have_their_vectors(make_app: MakeApp, path: str) -> None:
    api = make_app(token_ids="own").test_client()
    body = {"truncate": None, "truncation_direction": "Left", "prompt_name": None, "normalize": False}
    assert np.array_equal(rows(api.post(path, json={"inputs": TEXTS, **body})), [vector_of(text) for text in TEXTS])
    assert np.array_equal(rows(api.post(path, json={"inputs": TEXTS[0]})), [vector_of(TEXTS[0])])
    assert rows(api.post(path, json={"inputs": "", "dimensions": 2, "truncate": True})).shape == (1, 2)
    decoded = [vector_of("text 5 6, False"), vector_of("text 7, False")]
    assert np.array_equal(rows(api.post(path, json={"inputs": [[5, 6], [7]]})), decoded)
    assert np.array_equal(rows(api.post(path, json={"inputs": [5, 6]})), decoded[:1])


OWN = {"truncation_direction": "Right"}  # POST /embed recognises a client of this protocol by this field
PAIR = {"source_sentence": "sea", "sentences": ["a", 5]}

#: Paths, a body that they refuse, the status and a part of the error's message.
REFUSED: list[tuple[tuple[str, ...], dict[str, Any], int, str]] = [
    (EMBED, {"inputs": LONG, "truncate": False} | OWN, 422, "a text has 12 tokens"),
    (EMBED, {"inputs": ["a", 5]} | OWN, 422, "inputs[1] is 5: it takes a string"),
    (EMBED, {"inputs": "a", "truncation_direction": "up"}, 422, 'truncation_direction is "up"'),
    (EMBED, {"inputs": "fail"} | OWN, 424, "told to fail"),
    (("/embed_all",), {"inputs": "a", "dimensions": 2}, 422, 'unknown field "dimensions"'),
    (SIMILAR, {"inputs": PAIR | {"sentences": [LONG]}, "parameters": {"truncate": False}}, 422, "a text has 12 tokens"),
    (SIMILAR, {"inputs": PAIR}, 422, "inputs.sentences[1] is 5: it takes a string"),
    (SIMILAR, {"inputs": {"source_sentence": "a"}}, 422, "inputs.sentences is missing"),
    *((("/decode",), {"ids": ids}, 422, "ids") for ids in (5, ["a"], [[1], 2], [[1.5]], None)),
    (("/predict",), {"inputs": "a"}, 424, "the served model"),
    (("/", "/embed_all", "/tokenize"), {"inputs": []}, 400, "inputs is an empty list: send at least one item"),
    (("/decode",), {"ids": []}, 400, "ids is an empty list: send at least one item"),
    (("/rerank",), {"query": "a", "texts": []}, 400, "texts is an empty list: send at least one item"),
    (SIMILAR, {"inputs": PAIR | {"sentences": []}}, 400, "inputs.sentences is an empty list"),
]


@pytest.mark.usefixtures("stub")
def test_errors_have_the_protocols_shape(api: FlaskClient) -> None:
    for paths, body, status, words in REFUSED:
        for path in paths:
            kind, message = tei_error_of(api.post(path, json=body), status)
            assert (kind, words in message) == ({400: "Empty", 424: "Backend"}.get(status, "Validation"), True), message
            assert status != 400 or tei_error_of(api.post(path, data=b"{"), 400)[0] == "Validation"
    size = MAX_TOKENIZED_CHARS
    assert api.post("/tokenize", json={"inputs": "a" * size}).status_code == 200
    message = f"the request has {size + 1:,} characters and may have {size:,}: split the list"
    assert tei_error_of(api.post("/tokenize", json={"inputs": ["a" * size, "a"]}), 413) == ("Validation", message)


@pytest.mark.usefixtures("stub")
def test_token_vectors_products_and_tokens_come_by_text(api: FlaskClient, make_app: MakeApp) -> None:
    answer = api.post("/embed_all", json={"inputs": ["a", "a b"]}).get_json()
    assert [np.shape(tokens) for tokens in answer] == [(3, 4), (4, 4)]
    assert api.post("/embed_all", json={"inputs": ["a", "a b"], "normalize": True}).get_json() == answer
    own = make_app(token_ids="own").test_client()
    assert np.shape(own.post("/embed_all", json={"inputs": [[5, 6]]}).get_json()) == (1, 6, 4)
    inputs = {"source_sentence": "sea", "sentences": TEXTS}
    expected = [vector_of("sea") @ vector_of(text) for text in TEXTS]
    for path, parameters in (("/", {}), ("/similarity", None), ("/similarity", {"truncate": True})):
        answer = api.post(path, json={"inputs": inputs, "parameters": parameters})
        assert answer.get_json() == pytest.approx(expected, rel=1e-5)
    pieces = [{"id": len(text), "text": text, "special": True, "start": 0, "stop": len(text)} for text in TEXTS]
    assert api.post("/tokenize", json={"inputs": TEXTS}).get_json() == [[piece] for piece in pieces]
    body = {"inputs": "a", "add_special_tokens": False, "prompt_name": None}
    ((piece,),) = api.post("/tokenize", json=body).get_json()
    assert (piece["text"], piece["special"]) == ("a", False)
    assert api.post("/decode", json={"ids": [1, 2]}).get_json() == ["text 1 2, False"]
    body = {"ids": [[1, 2], [3], []], "skip_special_tokens": False}
    assert api.post("/decode", json=body).get_json() == ["text 1 2, True", "text 3, True", "text , True"]


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
def test_sparse_vectors_are_lists_of_an_index_and_a_value(api: FlaskClient, stub: StubWorker) -> None:
    response = api.post("/embed_sparse", json={"inputs": TEXTS, "truncate": True, "truncation_direction": "Right"})
    assert response.get_json() == [
        [{"index": 1, "value": 0.1}, {"index": 5, "value": 0.5}],
        [{"index": 2, "value": 0.2}, {"index": 3, "value": 0.3}, {"index": 4, "value": 0.4}],
    ]
    assert (response.headers["X-Compute-Type"], response.headers["X-Compute-Tokens"]) == ("cpu", "10")
    assert api.post("/embed_sparse", json={"inputs": ""}).get_json() == [[]]
    dense = api.post("/", json={"inputs": "a storm"}).get_json()
    stub.announce(outputs=["sparse"])
    expected = [[{"index": 1, "value": 0.1}, {"index": 5, "value": 0.5}]]
    assert (np.shape(dense), api.post("/", json={"inputs": "a storm"}).get_json()) == ((1, 4), expected)
    assert api.get("/info").get_json()["model_type"] == {"embedding": {"pooling": "splade"}}
    message = tei_error_of(api.post("/", json={"inputs": "a", "dimensions": 2}), 422)[1]
    assert message == "dimensions does not go with output 'sparse': drop one of the two"
    stub.announce(outputs=["vector"])
    kind, message = tei_error_of(api.post("/embed_sparse", json={"inputs": "a"}), 424)
    assert (kind, "makes no sparse" in message) == ("Backend", True)


def test_without_a_worker_the_service_is_unhealthy(make_app: MakeApp) -> None:
    response = make_app(request_timeout_s=0.01).test_client().post("/", json={"inputs": "a"})
    assert (tei_error_of(response, 503)[0], response.headers["Retry-After"]) == ("Unhealthy", "1")


class TestService:
    def test_the_description_has_its_fields(self, api: FlaskClient, stub: StubWorker) -> None:
        paths = api.get("/openapi.json").get_json()["paths"]
        stub.announce(pooling="cls", precision="bf16")
        info = api.get("/info").get_json()
        assert (info["model_id"], info["served_model_name"], info["model_dtype"]) == ("stub", "stub", "bfloat16")
        assert info["model_type"] == {"embedding": {"pooling": "cls"}}
        assert (info["max_input_length"], info["max_client_batch_size"], info["auto_truncate"]) == (8, 100_000, True)
        assert [info[name] for name in ("sha", "docker_label", "max_batch_requests")] == [None] * 3
        assert paths["/embed"]["post"]["tags"] == ["wait for the answer"]
        assert paths["/info"]["get"]["tags"] == ["service"]
        assert set(paths["/"]) == {"get", "post"}
        assert paths["/"]["post"]["tags"] == ["Text Embeddings Inference", "Cohere"]

    @pytest.mark.usefixtures("stub")
    def test_a_batch_of_the_described_size_is_answered_and_no_larger_one(self, make_app: MakeApp) -> None:
        api = make_app(max_response_mb=1).test_client()
        size = api.get("/info").get_json()["max_client_batch_size"]
        assert size == 2**20 // (4 * 4)
        assert api.post("/embed", json={"inputs": ["a"] * size}).status_code == 200
        assert api.post("/embed", json={"inputs": ["a"] * (size + 1)}).status_code == 413
