"""The headers of answers, compared with OpenAPI's description of their routes."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from shoal_api.answers.response import SAFETY
from shoal_api.answers.vector_format import RAW

pytest_plugins = ["api_fixtures"]

#: Bodies for each route that returns vectors, scores or hits, one for each protocol that has the route.
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/embed", {"inputs": "storm"}),
    ("/embed", {"inputs": "storm", "options": {}}),
    ("/search", {"queries": "storm"}),
    ("/score", {"query": "storm", "inputs": ["rain"]}),
    ("/", {"inputs": "storm"}),
    ("/", {"inputs": {"source_sentence": "storm", "sentences": ["rain"]}}),
    ("/", {"query": "storm", "texts": ["rain"]}),
    ("/embed_all", {"inputs": "storm"}),
    ("/embed_sparse", {"inputs": "storm"}),
    ("/similarity", {"inputs": {"source_sentence": "storm", "sentences": ["rain"]}}),
    ("/embeddings", {"input": "storm"}),
    ("/v1/embeddings", {"input": "storm"}),
    ("/pooling", {"input": "storm"}),
    ("/api/embed", {"model": "stub", "input": "storm"}),
    ("/api/embeddings", {"model": "stub", "prompt": "storm"}),
    ("/v1/embed", {"texts": ["storm"]}),
    ("/v1/embed", {"texts": ["storm"], "embedding_types": ["int8"]}),
    ("/v2/embed", {"texts": ["storm"]}),
    ("/vectors", {"text": "storm"}),
    ("/similar", {"text": "storm"}),
    ("/predict", {"text": "storm"}),
    ("/json_embed/", {"input": "storm"}),
    ("/orjson_embed/", {"input": "storm"}),
    ("/raw_embed/", {"input": "storm"}),
    *(
        (path, {"query": "storm", **body})
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
        for body in ({"texts": ["rain"]}, {"documents": ["rain"]}, {"property": "rain"})
    ),
]

#: Headers of every answer, and Text Embeddings Inference's.
UNDESCRIBED = {*dict(SAFETY), *(f"X-Compute-{what}" for what in ("Type", "Time", "Characters", "Tokens"))}
UNDESCRIBED |= {f"X-{what}-Time" for what in ("Total", "Tokenization", "Queue", "Inference")}


@pytest.mark.usefixtures("stub")
def test_each_header_of_an_answer_is_described(api: FlaskClient) -> None:
    paths = api.get("/openapi.json").get_json()["paths"]
    for path, body in BODIES:
        sent: set[str] = set()
        for accept in ("application/json", RAW):
            response = api.post(path, json=body, headers={"Accept": accept})
            assert response.status_code == 200, (path, response.get_data())
            sent |= {name for name, _ in response.headers if name.startswith("X-")} - UNDESCRIBED
        described = paths[path]["post"]["responses"]["200"]["headers"].keys()
        assert "X-Tokens" in sent
        assert sent <= described, path
    assert {path for path, about in paths.items() if _has_cost(about)} == {path for path, _ in BODIES}


def test_headers_of_requests_are_described_beside_other_parameters(api: FlaskClient) -> None:
    paths = api.get("/openapi.json").get_json()["paths"]
    for method, path, name in (
        ("get", "/v1/jobs/{id}/result", "X-Model-Fingerprint"),
        ("post", "/v1/bulk", "Idempotency-Key"),
        ("post", "/v1/indexes/{index}/builds", "Idempotency-Key"),
        ("post", "/v1/indexes/{index}/rollback", "Idempotency-Key"),
    ):
        assert [about["in"] for about in paths[path][method]["parameters"] if about["name"] == name] == ["header"]


@pytest.mark.usefixtures("stub")
def test_each_answer_has_the_fingerprint_that_the_request_names(api: FlaskClient) -> None:
    for path, body in BODIES:
        own = api.post(path, json=body).headers["X-Model-Fingerprint"]
        for name, statuses in ((own, [200]), ("other", [409]), ("", [400, 422]), ("a\tb", [400, 422])):
            response = api.post(path, json=body, headers={"X-Model-Fingerprint": name})
            assert response.status_code in statuses, (path, name, response.get_data()[:200])


@pytest.mark.usefixtures("stub")
def test_a_result_has_the_fingerprint_that_the_request_names(api: FlaskClient) -> None:
    for about, own in (({"op": "embed"}, "f"), ({"op": "rerank", "query": "rain"}, "r")):
        place = api.post("/v1/jobs", json={"inputs": "storm", **about}).headers["Location"]
        for name, status in ((own, 200), ("other", 409), ("", 422)):
            response = api.get(f"{place}/result?wait=5", headers={"X-Model-Fingerprint": name})
            assert response.status_code == status, (about, name, response.get_data()[:200])


def _has_cost(about: dict[str, Any]) -> bool:
    return "X-Tokens" in about.get("post", {}).get("responses", {}).get("200", {}).get("headers", {})
