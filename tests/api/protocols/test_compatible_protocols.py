"""Compatible protocols can be switched off, and each reports errors in its own dialect."""

import re
from typing import Any

import pytest
from api_stub import MakeApp, StubWorker
from conftest import RedisServer
from flask.testing import FlaskClient
from keys_file import KeysFile
from werkzeug.test import TestResponse

from shoal.contract.options import Options
from shoal.errors import BadSetting
from shoal.settings import PROTOCOLS, Settings
from shoal_api.app import PROTOCOL_APIS
from shoal_api.protocol_paths import RECOGNISED_BY

pytest_plugins = ["api_fixtures"]


def test_each_protocol_in_the_settings_has_routes_and_a_dialect_or_is_refused(make_app: MakeApp) -> None:
    assert set(PROTOCOLS) == set(PROTOCOL_APIS)
    assert all(api.name == name for name, api in PROTOCOL_APIS.items())
    api = make_app(protocols="").test_client()
    assert api.get("/v1/models").get_json()["error"]["code"] == "not_found"
    assert api.get("/openapi.json").get_json()["paths"].keys() & {"/embed", "/v1/embeddings"} == {"/embed"}
    for protocols in ("opneai", "openai,openai", "openai=/v1"):
        with pytest.raises(BadSetting, match="protocols has "):
            Settings(protocols=protocols)
    shared: dict[str, list[str]] = {}
    for rule in make_app().url_map.iter_rules():
        if "POST" in (rule.methods or ()):
            shared.setdefault(rule.rule, []).append(rule.endpoint)
    ambiguous = [endpoints for endpoints in shared.values() if len(endpoints) > 1]
    assert {name for endpoints in ambiguous for name in endpoints} <= RECOGNISED_BY.keys()


@pytest.mark.usefixtures("stub")
def test_wrong_methods_have_the_shape_of_the_route_and_unknown_paths_shoals(api: FlaskClient) -> None:
    for method, path, status, names in UNKNOWN:
        response = api.open(f"{path}?key=secret", method=method)
        body = response.get_json()
        shape = body["error"] if isinstance(body.get("error"), dict) else body
        assert (response.status_code, shape.keys(), path in response.text) == (status, names, True), path
        assert names != OWN or shape["code"] == {404: "not_found", 405: "method_not_allowed"}[status], path
        assert status != 405 or response.headers["Allow"], path
        assert "secret" not in response.text


OPENAI = {"message", "type", "param", "code"}
OWN = {"code", "message"}

#: Unknown paths and wrong methods, the status, and the names of the error's fields, or of the fields of its `error`.
UNKNOWN = [
    ("GET", "/v1/embeddings", 405, OPENAI),
    ("POST", "/v1/models/a", 405, OPENAI),
    ("GET", "/embed_all", 405, {"error", "error_type"}),
    ("GET", "/v1/rerank", 405, OPENAI),
    ("GET", "/api/embed", 405, {"error"}),
    ("GET", "/v2/embed", 405, {"message"}),
    ("GET", "/embed", 405, OWN),
    ("DELETE", "/", 405, OWN),
    ("PUT", "/v1/jobs", 405, OWN),
    ("POST", "/v1/embeddings/a", 404, OWN),
    ("POST", "/api/generate", 404, OWN),
    ("POST", "/embed_all/", 404, OWN),
    ("POST", "/a//embed", 404, OWN),
]


def test_slashes_at_either_end_of_a_path_never_redirect(make_app: MakeApp) -> None:
    """The Host header would choose the target."""
    app = make_app(request_timeout_s=0.01)  # the route with a parameter asks a worker
    api, redirected = app.test_client(), set()
    for rule in app.url_map.iter_rules():
        path = re.sub("<.+>", "a", rule.rule).rstrip("/")
        for asked in (path or "/", f"{path}/", f"{path}//"):
            for method in ("OPTIONS", *(rule.methods or ())):
                with api.open(asked, method=method, headers={"Host": "localhost"}) as response:
                    redirected |= {asked} if 300 <= response.status_code < 400 else set()
    assert redirected == {"/docs"}
    doubled = api.get("/", environ_overrides={"PATH_INFO": "//health"})
    assert doubled.get_json() == api.get("/health").get_json()
    assert api.get("/a//health").status_code == 404


#: A route of each protocol, a body that it accepts, and the place of the message in its errors.
ROUTES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("/v1/embeddings", {"input": ["a"]}, ("error", "message")),
    ("/", {"inputs": ["a"]}, ("error",)),
    ("/rerank", {"query": "a", "texts": ["a"]}, ("error",)),
    ("/embeddings", {"input": ["a"]}, ("error", "message")),
    ("/api/embed", {"model": "stub", "input": ["a"]}, ("error",)),
    ("/v2/embed", {"texts": ["a"]}, ("message",)),
    ("/v2/rerank", {"query": "a", "documents": ["a"]}, ("message",)),
    ("/v1/rerank", {"query": "a", "documents": ["a"]}, ("detail",)),
    ("/vectors", {"text": "a"}, ("error",)),
    *((path, {"text": "a"}, ("error", "message")) for path in ("/similar", "/predict")),
    ("/json_embed", {"input": "a"}, ("error", "message")),
]


#: Options of an embed under Shoal's own names, each with a value that is not its default.
ALL: dict[str, Any] = {"normalize": False, "pooling": "max", "dimensions": 2, "prompt_name": "query"}
ALL |= {"truncate": False, "truncation_side": "left"}
QUERY: dict[str, Any] = {"prompt_name": "query"}
PAIR = {"source_sentence": "a", "sentences": ["b"]}

#: A route, the fields of a body besides the model, and the options of its job if the model has a prompt for queries.
OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/embed", {"inputs": "a", "truncate": None, "truncation_direction": "Left"}, {"truncation_side": "left"}),
    ("/embed", {"inputs": "a", **ALL}, ALL),
    ("/", {"inputs": "a", "normalize": False, "dimensions": 2}, {"normalize": False, "dimensions": 2}),
    ("/embed_all", {"inputs": "a", "truncate": None}, {"output": "tokens", "normalize": False}),
    ("/similarity", {"inputs": PAIR, "parameters": QUERY}, QUERY),
    ("/v1/embeddings", {"input": "a", "task": "retrieval.query", "normalized": False}, QUERY | {"normalize": False}),
    ("/v1/embeddings", {"input": "a", "task": "text-matching", "truncate": False}, {"truncate": False}),
    (
        "/v1/embeddings",
        {"input": "a", "truncation": False, "output_dimension": 2},
        {"truncate": False, "dimensions": 2},
    ),
    (
        "/v2/embed",
        {"texts": ["a"], "truncate": "START", "output_dimension": 2},
        {"truncation_side": "left", "dimensions": 2},
    ),
    ("/v2/embed", {"texts": ["a"], "truncate": "NONE"}, {"truncate": False}),
    ("/pooling", {"input": "a", "task": "embed", "use_activation": False}, {"normalize": False}),
    ("/vectors", {"text": "a", "config": {"task_type": "query", "dimensions": 2}}, QUERY | {"dimensions": 2}),
    ("/api/embed", {"model": "stub", "input": "a", "truncate": False, "dimensions": 5}, {"truncate": False}),
    ("/rerank", {"query": "a", "texts": ["a"], "truncation_direction": "left"}, {"truncation_side": "left"}),
]


#: A route, a body that says what kind of text it has, and the prompt that the model has for this kind.
KINDS: list[tuple[str, dict[str, Any], str | None]] = [
    *(
        row
        for kind, prompt in (("query", "query"), ("document", "passage"))
        for row in (
            ("/v2/embed", {"texts": ["a"], "input_type": f"search_{kind}"}, prompt),
            ("/v1/embeddings", {"input": "a", "input_type": kind}, prompt),
            ("/v1/embeddings", {"input": "a", "task": f"retrieval.{prompt}"}, prompt),
            ("/vectors", {"text": "a", "config": {"task_type": prompt}}, prompt),
        )
    ),
    ("/v2/embed", {"texts": ["a"], "input_type": "clustering"}, "clustering"),
    ("/v2/embed", {"texts": ["a"], "input_type": "classification"}, None),
]


def test_the_fields_of_each_protocol_become_the_options_of_the_job(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(prompts=["clustering", "passage", "query"])
    rows = [*OPTIONS, *((path, body, {"prompt_name": prompt}) for path, body, prompt in KINDS)]
    for path, body, _ in rows:
        assert api.post(path, json=body).status_code == 200
    assert stub.asked == [Options(**options) for *_, options in rows]


class TestEachError:
    """Each error of a protocol's route has its message in the place that clients read: a string, never an object."""

    @pytest.mark.usefixtures("stub")
    def test_of_the_request(self, make_app: MakeApp) -> None:
        api, small = make_app().test_client(), make_app(max_request_bytes=9).test_client()
        for path, body, place in ROUTES:
            first = next(iter(body))
            check_error(api.delete(path), 405, ("error", "message") if path == "/" else place)
            check_error(small.post(path, json=body), 413, place)
            check_error(api.post(path, json=body | {first: 5}), (400, 422), place)
            found = check_error(api.post(path, json=body | {"colour": "red"}), (400, 422), place)
            assert found.startswith('unknown field "colour"')
            assert api.post(path, json=body | {"colour": None}).status_code == 200
            check_error(api.post(path, data=b"{"), 400, place)

    def test_of_client_and_service(
        self, make_app: MakeApp, keys_file: KeysFile, stub: StubWorker, own_redis: RedisServer
    ) -> None:
        own_redis.stop()
        headers = keys_file.make("slow", rate="1/minute")
        api = make_app(api_keys_file=str(keys_file.path)).test_client()
        away = make_app(redis_url=own_redis.url).test_client()
        assert api.post("/", json={"inputs": "a"}, headers=headers).status_code == 200
        for path, body, place in ROUTES:
            check_error(api.post(path, json=body), 401, place)
            check_error(api.post(path, json=body, headers=headers), 429, place)
            check_error(away.post(path, json=body), 503, place)
        told = [api.post(path, json={}, headers=headers).get_json() for path in ("/v1/embeddings", "/embed_all")]
        assert (told[0]["error"]["type"], told[1]["error_type"]) == ("rate_limit_error", "Overloaded")


def check_error(response: TestResponse, status: int | tuple[int, ...], place: tuple[str, ...]) -> str:
    """Fail the test unless the response has the status, and a string in that place; return it."""
    assert response.status_code in (status if isinstance(status, tuple) else (status,))
    found = response.get_json()
    assert response.status_code not in (429, 503) or int(response.headers["Retry-After"]) > 0
    for name in place:
        found = found[name]
    assert isinstance(found, str)
    assert found
    return found


#: The model in a worker's heartbeat, names by which a request may ask for it, and names of other models.
NAME = "sentence-transformers/all-MiniLM-L6-v2"
ITS_NAMES = (NAME, "all-MiniLM-L6-v2", "ALL-minilm-l6-V2", "all-minilm", "all-minilm:latest")
OTHER_NAMES = ("MiniLM-L6-v2", "other/all-MiniLM-L6-v2", "all-minilm:33m", "all-MiniLM-L12-v2", ":latest")


def test_a_model_may_be_named_by_each_of_its_usual_names(api: FlaskClient, stub: StubWorker, make_app: MakeApp) -> None:
    stub.announce(model=NAME, reranker="/models/ms-marco-MiniLM-L6-v2/")
    bodies: list[tuple[str, dict[str, Any]]] = [
        *(("/v1/embeddings", {"input": "a"} | more) for more in ({}, {"truncation": True}, {"task": None})),
        ("/embeddings", {"input": "a"}),
        ("/api/embed", {"input": "a"}),
        ("/api/embeddings", {"prompt": "a"}),
        *((f"/api/{name}", {}) for name in ("show", "pull")),
        *((path, {"texts": ["a"]}) for path in ("/v1/embed", "/v2/embed", "/")),
    ]
    for path, body in bodies:
        assert {api.post(path, json=body | {"model": name}).status_code for name in ITS_NAMES} == {200}
        assert {api.post(path, json=body | {"model": name}).status_code for name in OTHER_NAMES} == {404}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = {"query": "a", "documents": ["a"]}
        assert api.post(path, json=body | {"model": "MS-Marco-MiniLM-L6-v2"}).status_code == 200
        assert api.post(path, json=body | {"model": "ms-marco"}).status_code == 404
    stub.announce(model=NAME)
    api = make_app(model_aliases="ada").test_client()
    message = api.post("/v1/embeddings", json={"input": "a", "model": "babbage"}).get_json()["error"]["message"]
    assert f"ask for {NAME} or all-MiniLM-L6-v2 or all-minilm or ada, or make the name an alias" in message
