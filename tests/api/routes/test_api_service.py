"""The routes about the service itself, and the description of the API."""

import json
import logging
import re
from pathlib import Path
from typing import get_args

import pytest
from api_stub import COUNTERS, INDEX, MakeApp, StubWorker, error_of
from conftest import RedisServer
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from queues import Queue

from shoal import __version__
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.options import CHOICES, OPTION_NAMES
from shoal.errors import BY_CODE
from shoal.operations import OPERATIONS
from shoal.settings import OPEN_PATHS
from shoal_api.schema.errors import STATUS
from shoal_api.schema.requests import JobBody

pytest_plugins = ["api_fixtures"]


def samples(api: FlaskClient) -> dict[tuple[str, ...], float]:
    """The metrics by name and the values of their labels, in the order of the labels' names."""
    families = text_string_to_metric_families(api.get("/metrics").get_data(as_text=True))
    return {
        (sample.name, *dict(sorted(sample.labels.items())).values()): sample.value
        for family in families
        for sample in family.samples
    }


class TestHealth:
    def test_a_process_without_redis_lives(self, make_app: MakeApp, own_redis: RedisServer) -> None:
        own_redis.stop()
        response = make_app(redis_url=own_redis.url).test_client().get("/health")
        assert (response.status_code, response.get_json()) == (200, {"status": "ok"})


class TestReady:
    @pytest.mark.usefixtures("stub")
    def test_with_a_worker(self, api: FlaskClient) -> None:
        response = api.get("/ready")
        assert (response.status_code, response.get_json()) == (200, {"status": "ready", "workers": 1})

    def test_without_a_worker(self, api: FlaskClient) -> None:
        response = api.get("/ready")
        assert "no worker is alive" in error_of(response, 503)[1]
        assert response.headers["Retry-After"] == "1"

    def test_while_the_worker_loads(self, api: FlaskClient, stub: StubWorker) -> None:
        stub.announce(state="starting")
        code, message = error_of(api.get("/ready"), 503)
        assert code == "not_ready"
        assert "none of the 1 workers" in message

    def test_without_redis(self, make_app: MakeApp, own_redis: RedisServer) -> None:
        own_redis.stop()
        assert error_of(make_app(redis_url=own_redis.url).test_client().get("/ready"), 503)[0] == "unavailable"


class TestInfo:
    @pytest.mark.usefixtures("stub")
    def test_it_says_what_is_served(self, api: FlaskClient) -> None:
        info = api.get("/info").get_json()
        assert (info["version"], info["model"], info["dimension"], info["max_tokens"]) == (__version__, "stub", 4, 8)
        assert (info["engine"], info["precision"], info["digest"], info["prompts"]) == ("none", "f32", "d", ["query"])
        assert info["indexes"] == {"default": INDEX}
        assert info["reranker"] == "stub-reranker"
        assert info["workers_alive"] == 1
        assert info["workers"][0]["id"] == "stub"
        assert (info["workers"][0]["clock_offset_s"], info["workers"][0]["clock_error_s"]) == (0.5, 0.001)
        assert info["limits"]["max_k"] == 1_000
        assert info["limits"]["max_response_mb"] == 96

    def test_without_a_worker_it_says_what_it_knows(self, api: FlaskClient) -> None:
        response = api.get("/info")
        info = response.get_json()
        assert response.status_code == 200
        assert (info["model"], info["indexes"], info["workers"], info["workers_alive"]) == (None, {}, [], 0)

    @pytest.mark.usefixtures("stub")
    def test_indexes_are_listed_by_name(self, api: FlaskClient) -> None:
        listed = {"indexes": [{"name": "default", **INDEX, "error": None}], "errors": {}}
        assert api.get("/v1/indexes").get_json() == listed

    def test_an_index_that_no_worker_can_serve_is_listed_among_the_errors(self, api: FlaskClient, queue: Queue) -> None:
        older = {name: value for name, value in INDEX.items() if name != "fields"}
        about = {"state": "ready", "indexes": {"news": older}, "index_errors": {"news": "old", "faq": "broken"}}
        queue.pool.announce("w1", about)
        found = api.get("/v1/indexes").get_json()
        assert found["errors"] == {"news": "old", "faq": "broken"}
        assert [(index["name"], index["error"], index["fields"]) for index in found["indexes"]] == [("news", "old", {})]

    def test_without_a_worker_there_is_no_index(self, api: FlaskClient) -> None:
        assert api.get("/v1/indexes").get_json() == {"indexes": [], "errors": {}}

    def test_the_root_says_where_to_go(self, api: FlaskClient) -> None:
        root = api.get("/").get_json()
        assert (root["name"], root["version"], root["docs"]) == ("shoal", __version__, "/docs")


class TestMetrics:
    @pytest.mark.usefixtures("stub")
    def test_requests_are_counted_by_route_and_status(self, api: FlaskClient) -> None:
        api.post("/embed", json={"inputs": "a"})
        api.post("/embed", json={"inputs": 5})
        api.get("/v1/jobs/some-id")
        api.get("/nowhere")
        found = samples(api)
        name = "shoal_http_request_seconds_count"
        assert found[name, "POST", "/embed", "200"] == 1
        assert found[name, "POST", "/embed", "422"] == 1
        assert found[name, "GET", "/v1/jobs/<id>", "404"] == 1
        assert found[name, "", "unmatched", "404"] == 1
        assert found["shoal_http_errors_total", "invalid_request"] == 1
        assert found["shoal_build_info", __version__] == 1

    @pytest.mark.usefixtures("stub")
    def test_workers_counters_are_those_of_their_heartbeat(self, api: FlaskClient) -> None:
        found = samples(api)
        assert found["shoal_workers_alive",] == 1
        assert found["shoal_workers_ready",] == 1
        for word, value in COUNTERS.items():
            name = f"shoal_worker_{word[:-1]}seconds_total" if word.endswith("_s") else f"shoal_worker_{word}_total"
            assert found[name, "stub"] == value

    def test_lanes_are_measured(self, api: FlaskClient) -> None:
        api.post("/v1/jobs", json={"op": "embed", "inputs": "a", "lane": "bulk"})
        found = samples(api)
        assert [found["shoal_lane_jobs", lane] for lane in LANES] == [0, 1]
        assert found["shoal_redis_up",] == 1

    def test_two_applications_count_apart(self, make_app: MakeApp) -> None:
        first, second = make_app().test_client(), make_app().test_client()
        first.get("/health")
        assert ("shoal_http_request_seconds_count", "GET", "/health", "200") not in samples(second)

    def test_without_redis_the_process_is_still_measured(self, make_app: MakeApp, own_redis: RedisServer) -> None:
        own_redis.stop()
        found = samples(make_app(redis_url=own_redis.url).test_client())
        assert found["shoal_redis_up",] == 0
        assert found["process_resident_memory_bytes",] > 0
        assert ("shoal_workers_alive",) not in found


class TestDescription:
    def test_every_route_is_in_it(self, make_app: MakeApp) -> None:
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

    def test_every_route_has_words_and_says_how_it_fails(self, api: FlaskClient) -> None:
        paths = api.get("/openapi.json").get_json()["paths"]
        for operation in (operation for methods in paths.values() for operation in methods.values()):
            assert operation["summary"]
            assert {"4XX", "5XX"} < set(operation["responses"])

    def test_references_lead_somewhere(self, api: FlaskClient) -> None:
        response = api.get("/openapi.json")
        names = set(response.get_json()["components"]["schemas"])
        assert set(re.findall(r"#/components/schemas/(\w+)", response.get_data(as_text=True))) <= names

    def test_no_two_choices_differ_by_case_alone(self, api: FlaskClient) -> None:
        described = api.get("/openapi.json").get_data(as_text=True)
        choices = [json.loads(found) for found in re.findall(r'"enum":\s*(\[[^]]*\])', described)]
        assert ["Left", "Right"] in choices
        assert [names for names in choices if len({name.lower() for name in names}) < len(names)] == []

    def test_choices_are_those_of_the_contract(self) -> None:
        fields = JobBody.model_json_schema()["properties"]
        assert set(OPTION_NAMES) <= set(fields)
        for name, choices in CHOICES.items():
            allowed = fields[name].get("enum") or fields[name]["anyOf"][0]["enum"]
            assert tuple(allowed) == tuple(filter(None, choices))
        assert set(get_args(JobBody.model_fields["op"].annotation)) == set(OPERATIONS) - {"tokenize", "decode"}
        assert tuple(get_args(JobBody.model_fields["lane"].annotation)) == LANES

    def test_the_page_loads_nothing_from_elsewhere(self, api: FlaskClient) -> None:
        response = api.get("/docs", follow_redirects=True)
        page = response.get_data(as_text=True)
        assert response.status_code == 200
        assert "http://" not in page
        assert "https://" not in page
        assert "'self'" in response.headers["Content-Security-Policy"]
        links = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert len(links) == 4
        for link in links:
            with api.get(f"/docs/{link}") as file:
                assert file.status_code == 200
        assert 'new URL("../openapi.json"' in page
        assert '"validatorUrl": null' in page


class TestErrors:
    def test_every_code_has_a_status_or_is_never_sent(self) -> None:
        assert set(BY_CODE) - set(STATUS) == {"bad_setting", "port_in_use"}
        assert set(STATUS) - set(BY_CODE) == {"not_found", "method_not_allowed"}

    def test_an_unknown_path_is_not_found(self, api: FlaskClient) -> None:
        assert error_of(api.get("/nowhere"), 404)[0] == "not_found"

    def test_a_wrong_method_says_which_are_right(self, api: FlaskClient) -> None:
        response = api.get("/embed")
        assert error_of(response, 405)[0] == "method_not_allowed"
        assert "POST" in response.headers["Allow"]

    def test_a_surprise_is_logged_without_what_it_says(
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

    def test_texts_are_not_logged(self, make_app: MakeApp, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
        api = make_app(request_timeout_s=0.01).test_client()
        with caplog.at_level(logging.DEBUG):
            api.post("/embed", json={"inputs": "a secret text"})
            api.post("/embed", json={"inputs": ["a secret text", 5], "pooling": "a secret text"})
        assert "secret" not in caplog.text
