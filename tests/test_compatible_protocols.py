"""Compatible protocols can be switched off and mounted elsewhere, and each tells of errors in its own dialect."""

import re
from typing import Any

import pytest
from api_stub import MakeApp
from flask.testing import FlaskClient

from shoal.errors import BadSetting
from shoal.settings import PROTOCOLS, Settings
from shoal_api.app import PROTOCOL_MODULES
from shoal_api.dialects import DIALECTS

pytest_plugins = ["api_fixtures"]


def test_each_that_the_settings_know_has_routes_and_a_dialect() -> None:
    assert set(PROTOCOLS) == set(PROTOCOL_MODULES) == set(DIALECTS)
    assert all(module.api.name == name for name, module in PROTOCOL_MODULES.items())
    assert Settings().protocol_prefixes() == dict.fromkeys(PROTOCOLS, "")


@pytest.mark.usefixtures("stub")
def test_each_has_a_path_of_its_own_where_one_is_set(make_app: MakeApp) -> None:
    mounted = make_app(protocols="openai=/ai/openai").test_client()
    assert mounted.post("/ai/openai/v1/embeddings", json={"input": "a"}).status_code == 200
    assert mounted.post("/ai/openai/v1/embeddings", json={}).get_json()["error"]["type"] == "invalid_request_error"
    assert mounted.post("/v1/embeddings", json={"input": "a"}).get_json()["error"]["code"] == "not_found"
    assert "/ai/openai/v1/embeddings" in mounted.get("/openapi.json").get_json()["paths"]
    usual = make_app().test_client()
    assert usual.post("/v1/embeddings", json={"input": "a"}).status_code == 200
    assert "/ai/openai/v1/embeddings" not in usual.get("/openapi.json").get_json()["paths"]


def test_without_any_the_own_routes_are_left(make_app: MakeApp) -> None:
    api = make_app(protocols="").test_client()
    assert api.get("/v1/models").get_json()["error"]["code"] == "not_found"
    paths = api.get("/openapi.json").get_json()["paths"]
    assert "/embed" in paths
    assert "/v1/embeddings" not in paths


@pytest.mark.parametrize(
    "protocols",
    [
        "opneai",
        "openai,openai",
        "openai=v1",
        "openai=/",
        "openai=/a b",
        "=/a",
        "openai=/<a>",
        "tei=/docs",
        "tei=/docs/a",
        "tei=/page",
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(protocols: str) -> None:
    with pytest.raises(BadSetting, match="protocols has "):
        Settings(protocols=protocols)


@pytest.mark.parametrize(
    ("protocols", "message"),
    [
        ("openai,infinity=/v1", "openai and infinity, which both answer POST /v1/embeddings"),
        ("cohere,tei=/v2", "cohere and tei, which both answer POST /v2/embed"),
    ],
)
def test_two_with_the_same_route_are_refused(make_app: MakeApp, protocols: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        make_app(protocols=protocols)


@pytest.mark.usefixtures("stub")
class TestUnknownPaths:
    """An unknown path and a wrong method have the shape of the protocol that they are below."""

    @pytest.mark.parametrize(
        ("method", "path", "status", "shape"),
        [
            ("GET", "/v1/embeddings", 405, {"error": {"message", "type", "param", "code"}}),
            ("POST", "/v1/models/a", 405, {"error": {"message", "type", "param", "code"}}),
            ("POST", "/v1/embeddings/a", 404, {"error": {"message", "type", "param", "code"}}),
            ("GET", "/embed_all", 405, {"error", "error_type"}),
            ("POST", "/embed_all/", 404, {"error", "error_type"}),
            ("GET", "/api/embed", 405, {"error"}),
            ("GET", "/v2/embed", 405, {"message"}),
            ("DELETE", "/predict", 405, {"error": {"code", "message"}}),
            ("GET", "/embed", 405, {"error": {"code", "message"}}),
            ("POST", "/embed/a", 404, {"error": {"code", "message"}}),
            ("DELETE", "/", 405, {"error": {"code", "message"}}),
            ("PUT", "/v1/jobs", 405, {"error": {"code", "message"}}),
            ("POST", "/v1/nothing", 404, {"error": {"code", "message"}}),
            ("POST", "/a//embed", 404, {"error": {"code", "message"}}),
        ],
    )
    def test_at_the_root(self, api: FlaskClient, method: str, path: str, status: int, shape: Any) -> None:
        response = api.open(path, method=method)
        body = response.get_json()
        assert response.status_code == status
        assert body.keys() == (shape if isinstance(shape, set) else shape.keys())
        if isinstance(shape, dict):
            assert body["error"].keys() == shape["error"]

    def test_below_a_prefix(self, make_app: MakeApp) -> None:
        api = make_app(protocols="cohere=/ai/cohere,ollama=/ai").test_client()
        assert list(api.post("/ai/cohere/v2/chat").get_json()) == ["message"]
        assert list(api.get("/ai/cohere").get_json()) == ["message"]
        assert isinstance(api.post("/ai/api/pull").get_json()["error"], str)
        assert api.post("/v2/embed").get_json()["error"]["code"] == "not_found"


class TestSlashes:
    """A slash at the end or the beginning of a path is never redirected, as the Host header would choose where to."""

    @pytest.mark.parametrize("prefix", ["", "/ai/{}"])
    def test_no_path_is_redirected_but_that_of_the_docs(self, make_app: MakeApp, prefix: str) -> None:
        protocols = ",".join(f"{name}={prefix.format(name)}".rstrip("=") for name in PROTOCOLS)
        app = make_app(protocols=protocols, request_timeout_s=0.01)  # the map's route asks a worker
        api, redirected = app.test_client(), set()
        for rule in app.url_map.iter_rules():
            path = re.sub("<.+>", "a", rule.rule).rstrip("/")
            for asked in (path or "/", f"{path}/", f"{path}//"):
                for method in ("OPTIONS", *(rule.methods or ())):
                    with api.open(asked, method=method, headers={"Host": "localhost"}) as response:
                        redirected |= {asked} if 300 <= response.status_code < 400 else set()
        assert redirected == {"/docs"}

    @pytest.mark.usefixtures("stub")
    def test_below_a_path_the_root_is_at_the_path_itself(self, make_app: MakeApp) -> None:
        api = make_app(protocols="tei=/tei").test_client()
        for path in ("/tei", "/tei/"):
            assert len(api.post(path, json={"inputs": ["a", "b"]}).get_json()) == 2
            response = api.get(path)
            assert (response.status_code, {*response.headers["Allow"].split(", ")}) == (405, {"OPTIONS", "POST"})

    @pytest.mark.parametrize("path", ["/json_embed", "/json_embed/", "/raw_embed", "/raw_embed/"])
    def test_with_and_without_one_each_method_is_answered_alike(self, api: FlaskClient, path: str) -> None:
        response = api.get(path)
        assert (response.status_code, {*response.headers["Allow"].split(", ")}) == (405, {"OPTIONS", "POST"})
        assert api.options(path).status_code == 200

    def test_several_at_the_beginning_are_one(self, api: FlaskClient) -> None:
        doubled = api.get("/", environ_overrides={"PATH_INFO": "//health"})
        assert doubled.get_json() == api.get("/health").get_json()
        assert api.get("/a//health").status_code == 404
