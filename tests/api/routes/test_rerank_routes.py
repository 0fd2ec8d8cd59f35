"""The routes that score texts for a query, in the shapes of five protocols, which share their paths."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, raw_score_of
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shoal.contract.jobs import TEXTS_PER_JOB
from shoal.contract.replies import Reply
from shoal_api.protocols.rerank import best_first

pytest_plugins = ["api_fixtures"]
pytestmark = pytest.mark.usefixtures("stub")

QUERY = "storm in europe"
TEXTS = ["rain in the sea", "market falls", "a storm"]
RAW = {text: float(raw_score_of(QUERY, text)) for text in TEXTS}
RANKED = sorted(TEXTS, key=lambda text: -RAW[text])
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]


def score_of(text: str) -> Any:
    """The score of a text, from 0 to 1."""
    return pytest.approx(1 / (1 + 2.718281828459045 ** -RAW[text]), rel=1e-5)


def results(num: int | None = None, document: Callable[[str], Any] | None = None) -> list[dict[str, Any]]:
    """Return the best texts in the form of most protocols. `document` makes the returned document from a text."""
    found = [{"index": TEXTS.index(text), "relevance_score": score_of(text)} for text in RANKED[:num]]
    return [about | {"document": document(TEXTS[about["index"]])} for about in found] if document else found


def errors_of(response: TestResponse, status: int, field: str) -> str:
    """Check the status of an error, and that its message is its first field; return the message."""
    assert response.status_code == status
    assert next(iter(response.get_json())) == field
    return str(response.get_json()[field])


class TestTei:
    def test_texts_come_best_first_and_with_raw_scores_and_texts_if_asked_for(self, api: FlaskClient) -> None:
        for path in ("/", *PATHS):
            response = api.post(path, json={"query": QUERY, "texts": TEXTS})
            assert response.get_json() == [{"index": TEXTS.index(text), "score": score_of(text)} for text in RANKED]
            assert response.headers["X-Tokens"] == response.headers["X-Compute-Tokens"] == "14"
            assert response.headers["X-Compute-Characters"] == str(3 * len(QUERY) + sum(map(len, TEXTS)))
        asked = {"raw_scores": True, "return_text": True, "truncate": None, "truncation_direction": "left"}
        body = {"query": QUERY, "texts": TEXTS, "top_n": 2, "model": "any/name"}  # fields of LiteLLM and rerankers
        found = api.post("/rerank", json=body | asked).get_json()
        expected = [
            {"index": TEXTS.index(text), "score": pytest.approx(RAW[text], rel=1e-5), "text": text}
            for text in RANKED[:2]
        ]
        assert found == expected

    def test_copies_of_a_query_have_a_limit_and_count_as_bytes_in_memory(self, make_app: MakeApp) -> None:
        app = make_app()
        api, shares, query = app.test_client(), app.own.access._bytes, "é" * 500_000
        found = api.post("/rerank", json={"query": query, "texts": ["a"] * (33 * TEXTS_PER_JOB + 1)})
        assert (found.status_code, found.get_json()["error_type"]) == (413, "Validation")
        words = "the query has 1,000,000, in each of 34 jobs: 34,001,057 bytes at a time exceed"
        assert words in found.get_json()["error"]
        assert api.post("/rerank", json={"query": query, "texts": ["a"] * TEXTS_PER_JOB}).status_code == 200
        shares.acquire("127.0.0.1", shares._total // 2 - 20 * 2**20)  # the body is accepted
        found = api.post("/rerank", json={"query": query, "texts": ["a"] * 32 * TEXTS_PER_JOB})
        assert (found.status_code, found.get_json()["error_type"]) == (429, "Overloaded")

    def test_errors_have_its_shape(self, make_app: MakeApp) -> None:
        api = make_app(max_text_chars=20).test_client()
        for body, status, kind in (
            ({"query": QUERY}, 422, "Validation"),
            ({"query": QUERY, "texts": "a"}, 422, "Validation"),
            ({"query": QUERY, "texts": ["a b c d e f g"], "truncate": False}, 422, "Validation"),
            ({"query": "a" * 21, "texts": ["a"]}, 413, "Validation"),
            ({"query": QUERY, "texts": ["unscored"]}, 424, "Backend"),
        ):
            response = api.post("/rerank", json=body)
            assert (response.status_code, response.get_json()["error_type"]) == (status, kind)


def test_of_equal_scores_the_first_text_comes_first() -> None:
    scores = [1, 2, 2, 1] * 50
    reply = Reply("a", scores=np.array(scores, np.float32))
    assert best_first(reply) == sorted(range(200), key=lambda n: -scores[n])


#: Changes of a good body of Cohere, the status of the error, and words of its message.
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"documents": ["a", {"title": "b"}]}, 400, "documents[1].text is missing: it takes a string"),
    ({"documents": ["a", {"text": 5}]}, 400, "documents[1].text is 5: it takes a string"),
    ({"documents": ["a", 5]}, 400, "documents[1] is 5: it takes a string or an object"),
    ({"documents": "a"}, 400, 'documents is "a": it takes a list'),
    ({"query": " "}, 400, "query is empty"),
    ({"top_n": 0}, 400, "top_n is 0: it takes at least 1"),
    ({"model": "other"}, 404, 'the reranker "other" is not served here: ask for stub-reranker'),
    ({"documents": ["unscored"]}, 400, "this worker has no reranker"),
    ({"rank_fields": ["title"]}, 400, 'unknown field "rank_fields"'),
]


class TestCohere:
    def test_documents_come_best_first(self, api: FlaskClient) -> None:
        documents = [TEXTS[0], *({"text": text, "page": 3, "title": TEXTS[0]} for text in TEXTS[1:])]
        body = {"query": QUERY, "documents": documents, "model": "stub-reranker", "max_tokens_per_doc": 4096}
        found = api.post("/v2/rerank", json=body | {"top_n": 2}).get_json()
        assert found["results"] == results(2)
        assert found["meta"]["api_version"] == {"version": "2", "is_experimental": False}
        assert found["id"]
        expected = results(document=lambda text: {"text": text})
        assert api.post("/v2/rerank", json=body | {"return_documents": True}).get_json()["results"] == expected
        body = {"query": QUERY, "documents": TEXTS, "max_chunks_per_doc": 10, "overlap_tokens": 80, "priority": 1}
        assert api.post("/v1/rerank", json=body).get_json()["results"] == results()

    @pytest.mark.parametrize("protocols", ["cohere", "cohere,jina"])
    def test_the_older_route_reads_a_few_named_fields(self, make_app: MakeApp, protocols: str) -> None:
        api, path = make_app(protocols=protocols).test_client(), "/v1/rerank"
        document = {"title": "a", "body": "b", "unread": {"n": [1]}}
        body = {"query": QUERY, "documents": [document, "c"], "rank_fields": ["body", "title", "body"]}
        found = {item["index"]: item for item in api.post(path, json=body).get_json()["results"]}
        returned = api.post(path, json=body | {"return_documents": True}).get_json()["results"]
        assert {item["index"]: item["document"] for item in returned} == {
            0: {"body": "b", "title": "a"},
            1: {"text": "c"},
        }
        raw = float(raw_score_of(QUERY, "b\na"))
        assert found[0] == {"index": 0, "relevance_score": pytest.approx(1 / (1 + 2.718281828459045**-raw), rel=1e-5)}
        assert found.keys() == {0, 1}
        names = [f"name {n}" for n in range(100)]
        body = {"query": "a", "documents": [dict.fromkeys([*names, "t", "u"], "b")]}
        assert api.post(path, json=body | {"rank_fields": names}).status_code == 200
        for refused, words in (
            (["t"] * 101, "it takes a list with 100 or fewer items"),
            ([], "rank_fields is []: it takes a list with 1 or more items"),
            ("t", 'rank_fields is "t": it takes a list'),
        ):
            assert errors_of(api.post(path, json=body | {"rank_fields": refused}), 400, "message").endswith(words)

    def test_errors_have_its_shape(self, api: FlaskClient) -> None:
        for changes, status, words in REFUSED:
            response = api.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS, **changes})
            assert words in errors_of(response, status, "message")


def test_voyage_and_jina(api: FlaskClient) -> None:
    body: dict[str, Any] = {"query": QUERY, "documents": TEXTS, "model": "stub-reranker"}
    body |= {"top_k": None, "truncation": True}
    found = api.post("/v1/rerank", json=body).get_json()
    usage = {"prompt_tokens": 14, "total_tokens": 14}
    assert found == {"object": "list", "data": results(), "model": "stub-reranker", "usage": usage}
    body |= {"top_k": 2, "return_documents": True}
    assert api.post("/v1/rerank", json=body).get_json()["data"] == results(2, document=str)
    errors_of(api.post("/v1/rerank", json=body | {"query": 5}), 400, "detail")
    body = {"query": "a", "documents": ["a b c d e f g"], "truncation": False}
    assert "tokens" in errors_of(api.post("/v1/rerank", json=body), 400, "detail")
    body = {"query": QUERY, "documents": TEXTS, "truncate_prompt_tokens": -1}
    found = api.post("/v1/rerank", json=body).get_json()
    assert found["results"] == results(document=lambda text: {"text": text})
    assert found["data"] == results(document=str)  # for Voyage's clients without options; Continue needs the texts
    assert (found["object"], found["model"], found["meta"]["api_version"]["version"]) == ("list", "stub-reranker", "1")
    assert found["usage"] == {"prompt_tokens": 14, "completion_tokens": 0, "total_tokens": 14}
    fields = api.post("/v1/rerank", json=body | {"rank_fields": ["text"]}).get_json()  # Together's clients send these
    assert (fields["usage"], fields["results"]) == (found["usage"], results())
    changes = {"return_documents": False, "top_n": 1}
    assert api.post("/v1/rerank", json=body | changes).get_json()["results"] == results(1)
    errors_of(api.post("/v1/rerank", json=body | {"query": 5}), 422, "detail")
    errors_of(api.post("/v1/rerank", json=body | {"model": "other"}), 404, "detail")
    errors_of(api.post("/v1/rerank", json=body | {"documents": ["unscored"]}), 400, "detail")


def test_infinity_and_weaviate(api: FlaskClient, make_app: MakeApp) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "default/not-specified", "return_documents": True}
    found = api.post("/rerank", json=body).get_json()
    assert found["results"] == results(document=str)
    assert (found["object"], found["model"]) == ("rerank", "stub-reranker")
    assert found["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
    assert found["created"] > 0
    body = {"query": QUERY, "documents": TEXTS, "raw_scores": True, "top_n": 1}
    (best,) = api.post("/rerank", json=body).get_json()["results"]
    assert best["relevance_score"] == pytest.approx(RAW[RANKED[0]], rel=1e-5)
    response = api.post("/rerank", json={"query": QUERY, "documents": ["unscored"]})
    assert (response.status_code, response.get_json()["error"]["code"]) == (400, "unsupported")
    api = make_app(protocols="weaviate").test_client()
    scores = [{"document": text, "score": score_of(text)} for text in TEXTS]
    for path in PATHS:
        found = api.post(path, json={"query": QUERY, "property": "", "documents": TEXTS}).get_json()
        assert found == {"query": QUERY, "scores": scores}
    found = api.post("/rerank", json={"query": QUERY, "property": TEXTS[0]}).get_json()
    assert found == {"query": QUERY, "property": TEXTS[0], "score": score_of(TEXTS[0])}
    response = api.post("/rerank", json={"query": QUERY, "property": None})
    assert "documents is missing" in response.get_json()["error"]


def test_an_unclear_body_is_answered_by_the_protocol_of_the_path(api: FlaskClient) -> None:
    both = {"query": QUERY, "texts": TEXTS}
    fields_of_errors = ({"error", "error_type"}, {"detail", "error"}, {"message"})
    for path, fields in zip(PATHS, fields_of_errors, strict=True):
        for body in (b'{"query": "a"}', b"{"):
            assert api.post(path, data=body).get_json().keys() == fields
        assert api.get(path).get_json().keys() == fields
        found = api.post(path, json=both | {"documents": None}).get_json()
        assert [item["index"] for item in found] == [TEXTS.index(text) for text in RANKED]
        assert 'unknown field "documents"' in api.post(path, json=both | {"documents": TEXTS}).get_json()["error"]
        assert 'unknown field "texts"' in api.post(path, json=both | {"property": "a"}).get_json()["error"]


def test_the_reranker_has_aliases_and_all_its_routes_are_described(
    make_app: MakeApp, stub: StubWorker, api: FlaskClient
) -> None:
    api = make_app(model_aliases="rerank-v3.5").test_client()
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-v3.5"}
    assert api.post("/v1/rerank", json=body).get_json()["model"] == "stub-reranker"
    stub.announce(reranker=None)
    assert api.post("/v2/rerank", json=body | {"model": "any"}).status_code == 200
    paths = api.get("/openapi.json").get_json()["paths"]
    tags = {path: set(paths[path]["post"]["tags"]) - {"Text Embeddings Inference", "Weaviate"} for path in PATHS}
    assert tags == {"/rerank": {"Infinity"}, "/v1/rerank": {"Cohere", "Jina", "Voyage"}, "/v2/rerank": {"Cohere"}}
    assert None not in [value for path in PATHS for value in paths[path]["post"].values()]
    body = paths["/v2/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    names = {schema["$ref"].rpartition("/")[2] for schema in body}
    assert names == {"TeiRerankBody", "CohereRerankBody", "WeaviateRerankBody"}
