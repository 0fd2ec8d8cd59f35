"""The routes that score texts for a query, in the shapes of five protocols, which share their paths."""

from typing import Any

import msgpack
import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, raw_score_of
from flask.testing import FlaskClient
from fuzzing import nested

from shoal.contract.jobs import TEXTS_PER_JOB
from shoal.contract.replies import Reply
from shoal.errors import BadSetting
from shoal_api.protocol_paths import FALLBACKS, TOLD_BY
from shoal_api.protocols.cohere import MAX_RANK_FIELDS
from shoal_api.protocols.rerank import best_first

pytest_plugins = ["api_fixtures"]

QUERY = "storm in europe"
TEXTS = ["rain in the sea", "market falls", "a storm"]
RAW = {text: float(raw_score_of(QUERY, text)) for text in TEXTS}
RANKED = sorted(TEXTS, key=lambda text: -RAW[text])
NAN = float("nan")
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]


def score_of(text: str) -> Any:
    """The score of a text, from 0 to 1."""
    return pytest.approx(1 / (1 + 2.718281828459045 ** -RAW[text]), rel=1e-5)


def results(num: int | None = None, **documents: Any) -> list[dict[str, Any]]:
    """The best texts as most protocols have them; with `document`, a function that makes it of a text."""
    document = documents.get("document")
    return [
        {
            "index": TEXTS.index(text),
            "relevance_score": score_of(text),
            **({"document": document(text)} if document else {}),
        }
        for text in RANKED[:num]
    ]


@pytest.mark.usefixtures("stub")
class TestTei:
    @pytest.mark.parametrize("path", ["/", *PATHS])
    def test_texts_come_best_first(self, api: FlaskClient, path: str) -> None:
        response = api.post(path, json={"query": QUERY, "texts": TEXTS})
        assert response.get_json() == [{"index": TEXTS.index(text), "score": score_of(text)} for text in RANKED]
        assert response.headers["X-Tokens"] == response.headers["X-Compute-Tokens"] == "14"
        assert response.headers["X-Compute-Characters"] == str(3 * len(QUERY) + sum(map(len, TEXTS)))

    def test_raw_scores_and_texts_come_if_they_are_asked_for(self, api: FlaskClient) -> None:
        asked = {"raw_scores": True, "return_text": True, "truncate": None, "truncation_direction": "left"}
        found = api.post("/rerank", json={"query": QUERY, "texts": TEXTS, **asked}).get_json()
        expected = [
            {"index": TEXTS.index(text), "score": pytest.approx(RAW[text], rel=1e-5), "text": text} for text in RANKED
        ]
        assert found == expected

    def test_a_query_that_is_too_long_is_refused(self, make_app: MakeApp) -> None:
        api = make_app(max_text_chars=20).test_client()
        response = api.post("/rerank", json={"query": "a" * 21, "texts": ["a"]})
        assert (response.status_code, response.get_json()["error_type"]) == (413, "Validation")

    def test_a_query_that_has_too_many_copies_is_refused(self, api: FlaskClient) -> None:
        query = "é" * 500_000
        found = api.post("/rerank", json={"query": query, "texts": ["a"] * (33 * TEXTS_PER_JOB + 1)})
        assert (found.status_code, found.get_json()["error_type"]) == (413, "Validation")
        words = "the query has 1,000,000, in each of 34 jobs: 34,001,057 bytes at a time are over"
        assert words in found.get_json()["error"]
        assert api.post("/rerank", json={"query": query, "texts": ["a"] * TEXTS_PER_JOB}).status_code == 200

    def test_copies_of_a_query_count_as_bytes_in_memory(self, make_app: MakeApp) -> None:
        app = make_app()
        shares = app.extensions["shoal"].access._bytes
        shares.acquire("127.0.0.1", shares._total // 2)
        body = {"query": "é" * 500_000, "texts": ["a"] * 32 * TEXTS_PER_JOB}
        response = app.test_client().post("/rerank", json=body)
        assert (response.status_code, response.get_json()["error_type"]) == (429, "Overloaded")

    @pytest.mark.parametrize(
        ("body", "status", "kind"),
        [
            ({"query": QUERY}, 422, "Validation"),
            ({"query": QUERY, "texts": "a"}, 422, "Validation"),
            ({"query": QUERY, "texts": ["a b c d e f g"], "truncate": False}, 422, "Validation"),
            ({"query": QUERY, "texts": ["unscored"]}, 424, "Backend"),
        ],
    )
    def test_errors_have_its_shape(self, api: FlaskClient, body: dict[str, Any], status: int, kind: str) -> None:
        response = api.post("/rerank", json=body)
        assert (response.status_code, response.get_json()["error_type"]) == (status, kind)


def test_of_equal_scores_the_first_text_comes_first() -> None:
    reply = Reply("a", scores=np.array([1, 2, 2, 1], np.float32))
    assert best_first(reply) == [1, 2, 0, 3]


@pytest.mark.usefixtures("stub")
class TestCohere:
    def test_documents_come_best_first(self, api: FlaskClient) -> None:
        body = {"query": QUERY, "documents": TEXTS, "model": "stub-reranker", "max_tokens_per_doc": 4096, "top_n": 2}
        found = api.post("/v2/rerank", json=body).get_json()
        assert found["results"] == results(2)
        assert found["meta"]["api_version"] == {"version": "2", "is_experimental": False}
        assert found["id"]

    def test_documents_may_be_objects(self, api: FlaskClient) -> None:
        documents = [TEXTS[0], *({"text": text, "page": 3} for text in TEXTS[1:])]
        body = {"query": QUERY, "documents": documents, "return_documents": True}
        expected = results(document=lambda text: {"text": text} | ({"page": 3} if text != TEXTS[0] else {}))
        assert api.post("/v2/rerank", json=body).get_json()["results"] == expected

    @pytest.mark.parametrize("path", ["/v1/rerank", "/cohere/v1/rerank"])
    def test_the_older_route_reads_the_fields_that_are_named(self, make_app: MakeApp, path: str) -> None:
        api = make_app(protocols="cohere=/cohere" if "cohere" in path else "cohere,jina").test_client()
        body = {"query": QUERY, "documents": [{"title": "a", "body": "b"}, "c"], "rank_fields": ["body", "title"]}
        found = {item["index"]: item for item in api.post(path, json=body).get_json()["results"]}
        raw = float(raw_score_of(QUERY, "b\na"))
        assert found[0] == {"index": 0, "relevance_score": pytest.approx(1 / (1 + 2.718281828459045**-raw), rel=1e-5)}
        assert found.keys() == {0, 1}

    @pytest.mark.parametrize(
        ("names", "words"),
        [
            (["t", "u", "t"], 'rank_fields has "t" twice: name each field once'),
            (["t"] * 400_000, "it takes a list with 100 or fewer items"),
            ([], "rank_fields is []: it takes a list with 1 or more items"),
            ("t", 'rank_fields is "t": it takes a list'),
        ],
        ids=["twice", "many", "none", "a text"],
    )
    def test_fields_are_few_and_named_once(self, api: FlaskClient, names: Any, words: str) -> None:
        response = api.post(
            "/v1/rerank", json={"query": "a", "documents": [{"t": "b", "u": "c"}], "rank_fields": names}
        )
        assert response.status_code == 400
        assert response.get_json()["message"].endswith(words)

    def test_so_many_fields_are_read(self, api: FlaskClient) -> None:
        names = [f"name {n}" for n in range(MAX_RANK_FIELDS)]
        body = {"query": "a", "documents": [dict.fromkeys(names, "b")], "rank_fields": names}
        assert api.post("/v1/rerank", json=body).status_code == 200

    def test_the_newer_route_reads_the_text_alone(self, api: FlaskClient) -> None:
        body = {"query": QUERY, "documents": [{"text": TEXTS[0], "title": TEXTS[1]}]}
        found = api.post("/v2/rerank", json=body).get_json()["results"]
        assert found == [{"index": 0, "relevance_score": score_of(TEXTS[0])}]
        response = api.post("/v2/rerank", json=body | {"rank_fields": ["title"]})
        assert response.get_json()["message"].startswith('unknown field "rank_fields"')

    def test_the_length_of_documents_is_the_rerankers(self, api: FlaskClient) -> None:
        for path, name in (("/v2/rerank", "max_tokens_per_doc"), ("/v1/rerank", "max_chunks_per_doc")):
            body: dict[str, Any] = {"query": QUERY, "documents": TEXTS, name: 10, "priority": 1}
            assert api.post(path, json=body).get_json()["results"] == results()

    @pytest.mark.parametrize(
        ("changes", "status", "words"),
        [
            ({"documents": ["a", {"title": "b"}]}, 400, "documents[1].text is missing: it takes a string"),
            ({"documents": ["a", {"text": 5}]}, 400, "documents[1].text is 5: it takes a string"),
            ({"documents": ["a", 5]}, 400, "documents[1] is 5: it takes a string or an object"),
            ({"documents": "a"}, 400, 'documents is "a": it takes a list'),
            ({"query": " "}, 400, "query is empty"),
            ({"top_n": 0}, 400, "top_n is 0: it takes at least 1"),
            ({"model": "other"}, 404, 'the reranker "other" is not served here: ask for stub-reranker'),
            ({"documents": ["unscored"]}, 400, "this worker has no reranker"),
        ],
    )
    def test_errors_have_its_shape(self, api: FlaskClient, changes: dict[str, Any], status: int, words: str) -> None:
        response = api.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS, **changes})
        assert (response.status_code, list(response.get_json())) == (status, ["message"])
        assert words in response.get_json()["message"]


@pytest.mark.usefixtures("stub")
class TestVoyage:
    def test_texts_come_best_first(self, api: FlaskClient) -> None:
        body: dict[str, Any] = {"query": QUERY, "documents": TEXTS, "model": "stub-reranker"}
        body |= {"top_k": None, "truncation": True}
        found = api.post("/v1/rerank", json=body).get_json()
        assert found == {
            "object": "list",
            "data": results(),
            "model": "stub-reranker",
            "usage": {"prompt_tokens": 14, "total_tokens": 14},
        }
        body |= {"top_k": 2, "return_documents": True}
        assert api.post("/v1/rerank", json=body).get_json()["data"] == results(2, document=str)

    def test_errors_have_its_shape(self, api: FlaskClient) -> None:
        response = api.post("/v1/rerank", json={"query": 5, "documents": TEXTS, "top_k": 1})
        assert (response.status_code, list(response.get_json())) == (400, ["detail"])
        body = {"query": "a", "documents": ["a b c d e f g"], "truncation": False}
        assert "tokens" in api.post("/v1/rerank", json=body).get_json()["detail"]


@pytest.mark.usefixtures("stub")
class TestJina:
    def test_documents_come_back_unless_they_are_not_wanted(self, api: FlaskClient) -> None:
        found = api.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).get_json()
        assert found["results"] == results(document=lambda text: {"text": text})
        assert (found["model"], found["usage"]) == ("stub-reranker", {"prompt_tokens": 14, "total_tokens": 14})
        assert found["meta"]["api_version"]["version"] == "1"
        body = {"query": QUERY, "documents": TEXTS, "return_documents": False, "top_n": 1}
        assert api.post("/v1/rerank", json=body).get_json()["results"] == results(1)

    @pytest.mark.parametrize(
        ("changes", "status"),
        [({"query": 5}, 422), ({"documents": "a"}, 422), ({"model": "other"}, 404), ({"documents": ["unscored"]}, 400)],
    )
    def test_errors_have_its_shape(self, api: FlaskClient, changes: dict[str, Any], status: int) -> None:
        response = api.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS, **changes})
        assert (response.status_code, list(response.get_json())) == (status, ["detail"])


class TestReturnedDocuments:
    @pytest.mark.parametrize(
        "value",
        [nested(300), NAN, [-float("inf")], b"bytes", {b"name": 1}, msgpack.Timestamp(5)],
        ids=["deep", "NaN", "infinity", "bytes", "a name of bytes", "a time"],
    )
    @pytest.mark.parametrize(("path", "error"), [("/v1/rerank", "detail"), ("/v2/rerank", "message")])
    def test_one_that_json_cannot_hold_is_refused_before_it_is_scored(
        self, api: FlaskClient, stub: StubWorker, path: str, error: str, value: Any
    ) -> None:
        body = {"query": QUERY, "documents": ["a", {"text": "b", "more": value}], "return_documents": True}
        response = api.post(path, data=msgpack.packb(body), content_type="application/msgpack")
        assert response.status_code in (400, 422)
        assert response.get_json()[error].startswith("documents[1] cannot be written as JSON: ")
        assert stub.prompts_asked == []
        body["return_documents"] = False
        assert api.post(path, data=msgpack.packb(body), content_type="application/msgpack").status_code == 200

    @pytest.mark.usefixtures("stub")
    def test_others_come_back_as_they_are(self, api: FlaskClient) -> None:
        document = {"text": "b", "deep": nested(240), "large": 2**64 - 1, "small": -0.0, "none": None}
        found = api.post("/v1/rerank", json={"query": QUERY, "documents": [document]}).get_json()["results"]
        assert found[0]["document"] == document


@pytest.mark.usefixtures("stub")
class TestInfinity:
    def test_texts_come_best_first(self, api: FlaskClient) -> None:
        body = {"query": QUERY, "documents": TEXTS, "model": "default/not-specified", "return_documents": True}
        found = api.post("/rerank", json=body).get_json()
        assert found["results"] == results(document=str)
        assert (found["object"], found["model"]) == ("rerank", "stub-reranker")
        assert found["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
        assert found["created"] > 0

    def test_raw_scores_come_if_they_are_asked_for(self, api: FlaskClient) -> None:
        body = {"query": QUERY, "documents": TEXTS, "raw_scores": True, "top_n": 1}
        found = api.post("/rerank", json=body).get_json()["results"]
        assert [item["relevance_score"] for item in found] == [pytest.approx(RAW[RANKED[0]], rel=1e-5)]

    def test_errors_have_its_shape(self, api: FlaskClient) -> None:
        response = api.post("/rerank", json={"query": QUERY, "documents": ["unscored"]})
        assert (response.status_code, response.get_json()["error"]["code"]) == (400, "unsupported")


@pytest.mark.usefixtures("stub")
class TestWeaviate:
    @pytest.mark.parametrize("path", PATHS)
    def test_scores_come_in_the_order_of_the_documents(self, api: FlaskClient, path: str) -> None:
        found = api.post(path, json={"query": QUERY, "property": "", "documents": TEXTS}).get_json()
        scores = [{"document": text, "score": score_of(text)} for text in TEXTS]
        assert found == {"query": QUERY, "scores": scores}

    def test_one_text_has_one_score(self, api: FlaskClient) -> None:
        found = api.post("/rerank", json={"query": QUERY, "property": TEXTS[0]}).get_json()
        assert found == {"query": QUERY, "property": TEXTS[0], "score": score_of(TEXTS[0])}

    def test_without_a_text_it_is_refused(self, make_app: MakeApp) -> None:
        api = make_app(protocols="weaviate").test_client()
        response = api.post("/rerank", json={"query": QUERY, "property": None})
        assert "documents is missing" in response.get_json()["error"]


@pytest.mark.usefixtures("stub")
class TestSharedPaths:
    @pytest.mark.parametrize(
        ("path", "fields"),
        [("/rerank", {"error", "error_type"}), ("/v1/rerank", {"detail"}), ("/v2/rerank", {"message"})],
    )
    def test_a_body_without_texts_is_answered_by_the_protocol_of_the_path(
        self, api: FlaskClient, path: str, fields: set[str]
    ) -> None:
        assert api.post(path, json={"query": QUERY}).get_json().keys() == fields
        assert api.post(path, data=b"{").get_json().keys() == fields
        assert api.get(path).get_json().keys() == api.post(f"{path}/a").get_json().keys() == fields

    @pytest.mark.parametrize("path", PATHS)
    def test_a_body_for_two_protocols_is_refused(self, api: FlaskClient, path: str) -> None:
        body = {"query": QUERY, "texts": TEXTS}
        found = api.post(path, json=body | {"documents": None}).get_json()
        assert [item["index"] for item in found] == [TEXTS.index(text) for text in RANKED]
        assert 'unknown field "documents"' in api.post(path, json=body | {"documents": TEXTS}).get_json()["error"]
        assert 'unknown field "texts"' in api.post(path, json=body | {"property": "a"}).get_json()["error"]

    def test_each_that_shares_a_path_may_be_its_fallback(self) -> None:
        assert sorted(FALLBACKS) == sorted(TOLD_BY)

    def test_each_protocol_answers_alone_below_its_path(self, make_app: MakeApp) -> None:
        api = make_app(protocols="tei=/tei,infinity=/infinity,jina=/jina").test_client()
        body = {"query": QUERY, "documents": TEXTS}
        assert isinstance(api.post("/tei/rerank", json={"query": QUERY, "texts": TEXTS}).get_json(), list)
        assert api.post("/infinity/rerank", json=body).get_json()["object"] == "rerank"
        assert api.post("/jina/v1/rerank", json=body).get_json()["object"] == "list"
        assert api.post("/rerank", json=body).status_code == 404

    def test_two_that_nothing_tells_apart_are_refused(self, make_app: MakeApp) -> None:
        with pytest.raises(BadSetting, match="jina and infinity, which both answer POST /v1/"):
            make_app(protocols="jina,infinity=/v1")

    def test_an_alias_stands_for_the_reranker(self, make_app: MakeApp, stub: StubWorker) -> None:
        api = make_app(model_aliases="rerank-v3.5").test_client()
        body = {"query": QUERY, "documents": TEXTS, "model": "rerank-v3.5"}
        assert api.post("/v1/rerank", json=body).get_json()["model"] == "stub-reranker"
        stub.announce(reranker=None)
        assert api.post("/v2/rerank", json=body | {"model": "any"}).status_code == 200

    def test_the_description_has_all(self, api: FlaskClient) -> None:
        paths = api.get("/openapi.json").get_json()["paths"]
        tags = {path: set(paths[path]["post"]["tags"]) for path in PATHS}
        assert None not in [value for path in PATHS for value in paths[path]["post"].values()]
        shared = {"Text Embeddings Inference", "Weaviate"}
        assert tags["/rerank"] == shared | {"Infinity"}
        assert tags["/v1/rerank"] == shared | {"Cohere", "Jina", "Voyage"}
        assert tags["/v2/rerank"] == shared | {"Cohere"}
        body = paths["/v2/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
        names = {schema["$ref"].rpartition("/")[2] for schema in body}
        assert names == {"TeiRerankBody", "CohereRerankBody", "WeaviateRerankBody"}
