"""Ollama's routes: vectors, and the routes by which its clients find models."""

import itertools
import time

import numpy as np
import pytest
from api_stub import ABOUT, MakeApp, StubWorker, vector_of
from flask.testing import FlaskClient

from shoal import __version__

pytest_plugins = ["api_fixtures"]


@pytest.mark.usefixtures("stub")
class TestEmbed:
    def test_vectors_come_with_their_cost(self, api: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = itertools.count()
        monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))  # each reading takes a second
        for name in ("stub", "stub:latest"):
            asked = {"model": name, "input": ["a", "b c"], "options": {"num_ctx": 8}, "keep_alive": "5m"}
            body = api.post("/api/embed", json=asked | {"truncate": None}).get_json()
            assert np.array_equal(np.array(body["embeddings"], np.float32), [vector_of("a"), vector_of("b c")])
            assert (body["model"], body["prompt_eval_count"], body["load_duration"]) == ("stub", 7, 0)
            assert divmod(body["total_duration"], 10**9) == (1, 0)

    def test_options_reach_the_worker_and_the_older_route_takes_one_text(self, api: FlaskClient) -> None:
        for dimensions, size in ((2, 2), (4, 4), (5, 4)):  # a larger number means all
            asked = {"model": "stub", "input": "a", "dimensions": dimensions}
            assert np.shape(api.post("/api/embed", json=asked).get_json()["embeddings"]) == (1, size)
        body = api.post("/api/embeddings", json={"model": "stub", "prompt": "a", "keep_alive": 5}).get_json()
        assert np.array_equal(np.array(body["embedding"], np.float32), vector_of("a"))
        response = api.post("/api/embed", json={"model": "stub", "input": "a b c d e f g h i", "truncate": False})
        assert response.status_code == 400
        assert "a text has 11 tokens" in response.get_json()["error"]


@pytest.mark.usefixtures("stub")
def test_a_pull_confirms_the_served_model_and_no_other(api: FlaskClient) -> None:
    for asked in ({"model": "stub"}, {"name": "STUB:latest", "stream": True, "insecure": False}):
        response = api.post("/api/pull", json=asked)
        assert (response.status_code, response.mimetype) == (200, "application/x-ndjson")
        assert response.data == b'{"status":"success"}\n'
    response = api.post("/api/pull", json={"model": "stub", "stream": False})
    assert (response.mimetype, response.get_json()) == ("application/json", {"status": "success"})
    response = api.post("/api/pull", json={"model": "llama3", "stream": True})
    assert (response.status_code, list(response.get_json())) == (404, ["error"])
    assert "is not served here: ask for stub" in response.get_json()["error"]


class TestModels:
    def test_a_model_is_listed_under_each_name(self, make_app: MakeApp, stub: StubWorker) -> None:
        stub.announce(model="sentence-transformers/all-MiniLM-L6-v2")
        api = make_app(model_aliases="mine,*").test_client()
        models = api.get("/api/tags").get_json()["models"]
        names = ["sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2", "all-minilm", "mine"]
        assert [model["name"] for model in models] == [model["model"] for model in models] == names
        assert {model["digest"] for model in models} == {"d"}
        assert (models[0]["details"]["family"], models[0]["details"]["quantization_level"]) == ("bert", "f32")
        assert [model["name"] for model in api.get("/api/ps").get_json()["models"]] == names[:1]

    def test_each_of_two_served_models_is_shown_as_it_is_under_its_aliases_too(
        self, make_app: MakeApp, stub: StubWorker
    ) -> None:
        api = make_app(model_aliases="nomic-embed-text").test_client()
        stub.pool.announce("other", ABOUT | {"model": "other", "dimension": 5})
        for name, dimension in (("stub", 4), ("nomic-embed-text:latest", None), ("other", 5)):
            body = api.post("/api/show", json={"model": name}).get_json()
            assert body["capabilities"] == ["embedding"]
            info = {"general.architecture": "bert", "bert.context_length": 8}
            shown = body["model_info"].pop("bert.embedding_length")
            assert (body["model_info"], shown) == (info, dimension or shown)
        stub.pool.leave("other")

    @pytest.mark.usefixtures("stub")
    def test_a_model_may_be_named_by_an_alias_with_the_tag_and_by_the_older_field(self, make_app: MakeApp) -> None:
        api = make_app(model_aliases="mine:latest").test_client()
        assert api.post("/api/embed", json={"model": "mine:latest", "input": "a"}).status_code == 200
        assert api.post("/api/embeddings", json={"model": "mine:latest", "prompt": "a"}).status_code == 200
        for asked, status in (
            ({"model": "mine"}, 200),
            ({"name": "stub"}, 200),
            ({"model": "", "name": "stub:latest"}, 200),
            ({"model": "stub", "name": ""}, 200),
            ({"name": "other"}, 404),
            ({}, 400),
        ):
            assert api.post("/api/show", json=asked).status_code == status

    def test_without_a_worker_there_is_no_model_but_a_version(self, api: FlaskClient) -> None:
        assert api.get("/api/tags").get_json() == {"models": []}
        assert api.post("/api/show", json={"model": "stub"}).status_code == 404
        assert api.get("/api/version").get_json() == {"version": __version__}
