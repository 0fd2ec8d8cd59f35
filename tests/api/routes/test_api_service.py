"""The routes about the service itself, and the description of the API."""

import json
import logging
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from api_stub import INDEX, MakeApp, StubWorker, error_of, examples
from flask.testing import FlaskClient

from shoal import __version__
from shoal.contract.jobs import LANES
from shoal.errors import BY_CODE
from shoal.operations import OPERATIONS
from shoal.settings import OPEN_PATHS
from shoal_api.answers.response import SAFETY
from shoal_api.answers.vector_format import RAW
from shoal_api.app import PROTOCOL_APIS
from shoal_api.schema.error_statuses import STATUS
from shoal_api.schema.requests import JobBody

pytest_plugins = ["api_fixtures"]


class TestInfo:
    def test_it_describes_the_served_model_and_indexes(self, api: FlaskClient, stub: StubWorker) -> None:
        info = api.get("/info").get_json()
        assert (info["version"], info["model"], info["dimension"], info["max_tokens"]) == (__version__, "stub", 4, 8)
        assert info["matryoshka_dimensions"] == [2, 4]
        assert (info["engine"], info["precision"], info["digest"], info["prompts"]) == ("none", "f32", "d", ["query"])
        assert info["indexes"] == {"default": INDEX}
        assert info["reranker"] == "stub-reranker"
        assert info["workers_alive"] == 1
        assert info["workers"][0]["id"] == "stub"
        assert (info["workers"][0]["clock_offset_s"], info["workers"][0]["clock_error_s"]) == (0.5, 0.001)
        assert info["limits"]["max_k"] == 1_000
        assert info["limits"]["max_response_mb"] == 96
        stub.pool.leave("stub")
        info = api.get("/info").get_json()
        assert (info["model"], info["indexes"], info["workers"], info["workers_alive"]) == (None, {}, [], 0)

    def test_indexes_are_listed_by_name_or_with_their_errors(self, api: FlaskClient, stub: StubWorker) -> None:
        listed = {"indexes": [{"name": "default", **INDEX, "error": None}], "errors": {}}
        assert api.get("/v1/indexes").get_json() == listed
        stub.announce(state="loading")
        assert api.get("/v1/indexes").get_json() == {"indexes": [], "errors": {}}
        older = {name: value for name, value in INDEX.items() if name != "fields"}
        stub.announce(indexes={"news": older}, index_errors={"news": "old", "faq": "broken"})
        found = api.get("/v1/indexes").get_json()
        assert found["errors"] == {"news": "old", "faq": "broken"}
        assert [(index["name"], index["error"], index["fields"]) for index in found["indexes"]] == [("news", "old", {})]


class TestDescription:
    def test_every_route_is_described(self, make_app: MakeApp) -> None:
        app = make_app()
        paths = app.test_client().get("/openapi.json").get_json()["paths"]
        described = {(path.rstrip("/") or "/", method.upper()) for path, methods in paths.items() for method in methods}
        rules = [rule for rule in app.url_map.iter_rules() if not rule.rule.startswith(OPEN_PATHS)]
        routes = {
            (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method)
            for rule in rules
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        }
        assert described == routes
        assert ("/v1/jobs/{id}/result", "GET") in routes
        for protocol in PROTOCOL_APIS:
            paths = make_app(protocols=protocol).test_client().get("/openapi.json").get_json()["paths"]
            ids = [about["operationId"] for methods in paths.values() for about in methods.values()]
            assert len(ids) == len(set(ids)), protocol

    def test_every_operation_is_described_and_every_reference_has_its_schema(self, api: FlaskClient) -> None:
        response = api.get("/openapi.json")
        document, described = response.get_json(), response.get_data(as_text=True)
        for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
            assert operation["summary"]
            assert {"4XX", "5XX"} < set(operation["responses"])
        references = set(re.findall(r"#/components/schemas/(\w+)", described))
        assert references <= set(document["components"]["schemas"])
        choices = [json.loads(found) for found in re.findall(r'"enum":\s*(\[[^]]*\])', described)]
        assert ["Left", "Right"] in choices
        assert [names for names in choices if len({name.lower() for name in names}) < len(names)] == []

    def test_a_job_may_have_each_operation_and_each_lane(self) -> None:
        assert set(get_args(JobBody.model_fields["op"].annotation)) == set(OPERATIONS) - {"tokenize", "decode"}
        assert tuple(get_args(JobBody.model_fields["lane"].annotation)) == LANES

    def test_the_page_loads_nothing_from_elsewhere(self, api: FlaskClient) -> None:
        response = api.get("/docs", follow_redirects=True)
        page = response.get_data(as_text=True)
        assert response.status_code == 200
        assert "http://" not in page
        assert "https://" not in page
        (policy,) = response.headers.getlist("Content-Security-Policy")
        assert "style-src 'self' 'unsafe-inline';" in policy
        assert re.search(r"script-src 'self' 'sha256-[\w+/]{43}=';.* frame-ancestors 'none'", policy)
        links = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert len(links) == 4
        for link in links:
            with api.get(f"/docs/{link}") as file:
                assert (file.status_code, file.headers["X-Content-Type-Options"]) == (200, "nosniff")
            again = api.get(f"/docs/{link}", headers={"If-None-Match": file.headers["ETag"]})
            assert again.status_code == 304
        assert 'new URL("../openapi.json"' in page
        assert '"validatorUrl": null' in page


class TestErrors:
    def test_every_code_has_a_status_or_is_never_sent(self) -> None:
        assert set(BY_CODE) - set(STATUS) == {"bad_setting", "port_in_use"}
        assert set(STATUS) - set(BY_CODE) == {"not_found", "method_not_allowed"}

    def test_an_unexpected_error_has_no_message_in_logs(
        self, make_app: MakeApp, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = make_app()

        def fail() -> str:
            raise ValueError("a secret text")

        app.add_url_rule("/fail", view_func=fail)
        with caplog.at_level(logging.DEBUG):
            code, message = error_of(app.test_client().get("/fail"), 500)
        assert code == "internal"
        assert "secret" not in message
        assert "ValueError" in caplog.text
        assert Path(__file__).name in caplog.text
        assert "secret" not in caplog.text.replace('raise ValueError("a secret text")', "")


#: Headers of every answer, and Text Embeddings Inference's.
UNDESCRIBED = {*dict(SAFETY), *(f"X-Compute-{what}" for what in ("Type", "Time", "Characters", "Tokens"))}
UNDESCRIBED |= {f"X-{what}-Time" for what in ("Total", "Tokenization", "Queue", "Inference")}


@pytest.fixture
def asked(api: FlaskClient, stub: StubWorker) -> list[tuple[str, dict[str, Any]]]:
    """Return the path and an example of a body for each route whose answer has a cost, in each protocol."""
    stub.announce(model="sentence-transformers/all-MiniLM-L6-v2")
    paths = api.get("/openapi.json").get_json()["paths"]
    found = [(path, body) for path, body in examples(api) if "X-Tokens" in described(paths, path)["headers"]]
    assert len(found) > 25
    return found


def described(paths: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the description of the good answers of a POST."""
    answer: dict[str, Any] = paths[path]["post"]["responses"].get("200", {})
    return {"headers": {}, "content": {}} | answer


def test_each_header_and_format_is_described(api: FlaskClient, asked: list[tuple[str, dict[str, Any]]]) -> None:
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


def test_each_answer_has_the_wanted_fingerprint(api: FlaskClient, asked: list[tuple[str, dict[str, Any]]]) -> None:
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
