"""The headers of answers, compared with OpenAPI's description of their routes."""

from typing import Any

import pytest
from api_stub import StubWorker, examples
from flask.testing import FlaskClient

from shoal_api.answers.response import SAFETY
from shoal_api.answers.vector_format import RAW

pytest_plugins = ["api_fixtures"]

#: Headers of every answer, and Text Embeddings Inference's.
UNDESCRIBED = {*dict(SAFETY), *(f"X-Compute-{what}" for what in ("Type", "Time", "Characters", "Tokens"))}
UNDESCRIBED |= {f"X-{what}-Time" for what in ("Total", "Tokenization", "Queue", "Inference")}


@pytest.fixture
def asked(api: FlaskClient, stub: StubWorker) -> list[tuple[str, dict[str, Any]]]:
    """Return the path and an example of a body for each route whose answer has a cost, and each of its protocols."""
    stub.announce(model="sentence-transformers/all-MiniLM-L6-v2")
    paths = api.get("/openapi.json").get_json()["paths"]
    found = [(path, body) for path, body in examples(api) if "X-Tokens" in described(paths, path)["headers"]]
    assert len(found) > 35
    return found


def described(paths: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the description of the good answers of a POST."""
    answer: dict[str, Any] = paths[path]["post"]["responses"].get("200", {})
    return {"headers": {}, "content": {}} | answer


def test_each_header_and_format_of_an_answer_is_described(
    api: FlaskClient, asked: list[tuple[str, dict[str, Any]]]
) -> None:
    paths, in_bytes = api.get("/openapi.json").get_json()["paths"], set()
    for path, body in asked:
        sent, about = set(), described(paths, path)
        for accept in ("application/json", RAW):
            response = api.post(path, json=body, headers={"Accept": accept})
            assert response.status_code == 200, (path, response.get_data())
            assert response.content_type in about["content"], path
            in_bytes |= {path} if response.content_type == RAW else set()
            sent |= {name for name, _ in response.headers if name.startswith("X-")} - UNDESCRIBED
        assert "X-Tokens" in sent
        assert sent <= about["headers"].keys(), path
    assert in_bytes == {path for path, _ in asked if RAW in described(paths, path)["content"]}


def test_headers_of_requests_are_described_beside_other_parameters(api: FlaskClient) -> None:
    paths = api.get("/openapi.json").get_json()["paths"]
    for method, path, name in (
        ("get", "/v1/jobs/{id}/result", "X-Model-Fingerprint"),
        ("post", "/v1/bulk", "Idempotency-Key"),
        ("post", "/v1/indexes/{index}/builds", "Idempotency-Key"),
        ("post", "/v1/indexes/{index}/rollback", "Idempotency-Key"),
    ):
        assert [about["in"] for about in paths[path][method]["parameters"] if about["name"] == name] == ["header"]


def test_each_answer_and_result_has_the_fingerprint_that_the_request_names(
    api: FlaskClient, asked: list[tuple[str, dict[str, Any]]]
) -> None:
    for path, body in asked:
        own = api.post(path, json=body).headers["X-Model-Fingerprint"]
        for name, statuses in ((own, [200]), ("other", [409]), ("", [400, 422]), ("a\tb", [400, 422])):
            response = api.post(path, json=body, headers={"X-Model-Fingerprint": name})
            assert response.status_code in statuses, (path, name, response.get_data()[:200])
    for about, own in (({"op": "embed"}, "f"), ({"op": "rerank", "query": "rain"}, "r")):
        place = api.post("/v1/jobs", json={"inputs": "storm", **about}).headers["Location"]
        for name, status in ((own, 200), ("other", 409), ("", 422)):
            response = api.get(f"{place}/result?wait=5", headers={"X-Model-Fingerprint": name})
            assert response.status_code == status, (about, name, response.get_data()[:200])
