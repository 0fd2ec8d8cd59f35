"""Ollama's routes: vectors, and the routes by which its clients find models."""

import json
from typing import Any

import numpy as np
import pytest
from api_stub import MakeApp, StubWorker, vector_of
from flask.testing import FlaskClient

from shoal import __version__

pytest_plugins = ["api_fixtures"]


@pytest.mark.usefixtures("stub")
class TestEmbed:
    @pytest.mark.parametrize("name", ["stub", "stub:latest"])
    def test_vectors_come_with_what_they_cost(self, api: FlaskClient, name: str) -> None:
        asked = {"model": name, "input": ["a", "b c"], "options": {"num_ctx": 8}, "keep_alive": "5m", "truncate": None}
        body = api.post("/api/embed", json=asked).get_json()
        assert np.array_equal(np.array(body["embeddings"], np.float32), [vector_of("a"), vector_of("b c")])
        assert (body["model"], body["prompt_eval_count"], body["load_duration"]) == ("stub", 7, 0)
        assert 0 < body["total_duration"] / 1e9 < 60

    def test_options_reach_the_worker(self, api: FlaskClient) -> None:
        assert np.shape(
            api.post("/api/embed", json={"model": "stub", "input": "a", "dimensions": 2}).get_json()["embeddings"]
        ) == (1, 2)
        response = api.post("/api/embed", json={"model": "stub", "input": "a b c d e f g h i", "truncate": False})
        assert response.status_code == 400
        assert "a text has 11 tokens" in response.get_json()["error"]

    @pytest.mark.parametrize(("dimensions", "size"), [(3, 3), (4, 4), (5, 4), (4_096, 4)])
    def test_more_dimensions_than_there_are_are_all(self, api: FlaskClient, dimensions: int, size: int) -> None:
        found = api.post("/api/embed", json={"model": "stub", "input": "a", "dimensions": dimensions}).get_json()
        assert np.shape(found["embeddings"]) == (1, size)

    def test_the_older_route_takes_one_text(self, api: FlaskClient) -> None:
        body = api.post("/api/embeddings", json={"model": "stub", "prompt": "a", "keep_alive": 5}).get_json()
        assert np.array_equal(np.array(body["embedding"], np.float32), vector_of("a"))


@pytest.mark.usefixtures("stub")
class TestPull:
    @pytest.mark.parametrize("asked", [{"model": "stub"}, {"name": "STUB:latest", "stream": True, "insecure": False}])
    def test_a_served_model_is_there(self, api: FlaskClient, asked: dict[str, Any]) -> None:
        response = api.post("/api/pull", json=asked)
        assert (response.status_code, response.mimetype) == (200, "application/x-ndjson")
        assert [json.loads(line) for line in response.data.splitlines()] == [{"status": "success"}]
        assert response.data.endswith(b"\n")

    def test_it_is_told_in_one_object_too(self, api: FlaskClient) -> None:
        response = api.post("/api/pull", json={"model": "stub", "stream": False})
        assert (response.mimetype, response.get_json()) == ("application/json", {"status": "success"})

    @pytest.mark.parametrize("stream", [True, False])
    def test_any_other_cannot_be_had(self, api: FlaskClient, stream: bool) -> None:
        response = api.post("/api/pull", json={"model": "llama3", "stream": stream})
        assert (response.status_code, list(response.get_json())) == (404, ["error"])
        assert "is not served here: ask for stub" in response.get_json()["error"]


class TestModels:
    @pytest.mark.parametrize("path", ["/api/tags", "/api/ps"])
    def test_the_served_model_is_listed(self, api: FlaskClient, stub: StubWorker, path: str) -> None:
        (model,) = api.get(path).get_json()["models"]
        assert (model["name"], model["model"], model["digest"]) == ("stub", "stub", "d")
        assert (model["details"]["family"], model["details"]["quantization_level"]) == ("bert", "f32")

    def test_it_is_listed_under_each_name(self, make_app: MakeApp, stub: StubWorker) -> None:
        stub.announce(model="sentence-transformers/all-MiniLM-L6-v2")
        api = make_app(model_aliases="mine,*").test_client()
        models = api.get("/api/tags").get_json()["models"]
        names = ["sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "all-minilm", "mine"]
        assert [model["name"] for model in models] == [model["model"] for model in models] == names
        assert {model["digest"] for model in models} == {"d"}
        assert [model["name"] for model in api.get("/api/ps").get_json()["models"]] == names[:1]

    def test_it_is_shown_under_an_alias_too(self, make_app: MakeApp, stub: StubWorker) -> None:
        api = make_app(model_aliases="nomic-embed-text").test_client()
        for name in ("stub", "nomic-embed-text:latest"):
            body = api.post("/api/show", json={"model": name}).get_json()
            assert body["capabilities"] == ["embedding"]
            assert body["model_info"] == {
                "general.architecture": "bert",
                "bert.embedding_length": 4,
                "bert.context_length": 8,
            }
        assert api.post("/api/show", json={"model": "llama3"}).status_code == 404

    @pytest.mark.usefixtures("stub")
    def test_an_alias_may_end_in_the_tag(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="mine:latest").test_client()
        assert api.post("/api/embed", json={"model": "mine:latest", "input": "a"}).status_code == 200
        assert api.post("/api/embeddings", json={"model": "mine:latest", "prompt": "a"}).status_code == 200
        assert api.post("/api/show", json={"model": "mine:latest"}).status_code == 200
        assert api.post("/api/show", json={"model": "mine"}).status_code == 200

    @pytest.mark.usefixtures("stub")
    @pytest.mark.parametrize(
        ("asked", "status"),
        [
            ({"name": "stub"}, 200),
            ({"model": "", "name": "stub:latest"}, 200),
            ({"model": "stub", "name": ""}, 200),
            ({"name": "other"}, 404),
            ({}, 400),
        ],
    )
    def test_it_may_be_named_by_the_older_field(self, api: FlaskClient, asked: dict[str, str], status: int) -> None:
        assert api.post("/api/show", json=asked).status_code == status

    def test_without_a_worker_there_is_none(self, api: FlaskClient) -> None:
        assert api.get("/api/tags").get_json() == {"models": []}
        assert api.post("/api/show", json={"model": "stub"}).status_code == 404

    def test_the_version_is_ours(self, api: FlaskClient) -> None:
        assert api.get("/api/version").get_json() == {"version": __version__}
