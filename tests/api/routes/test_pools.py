"""Several pools behind one API: the model of a request, or its path, chooses the one that answers."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from api_stub import MakeApp, StubWorker
from flask.testing import FlaskClient

from shoal.contract.keys import Keys
from shoal.errors import BadSetting
from shoal.settings import Settings

pytest_plugins = ["api_fixtures"]

OTHER = "large"


@pytest.fixture
def workers(redis_url: str, keys: Keys) -> Iterator[dict[str, StubWorker]]:
    """Return the worker of each pool, whose replies name its model; the second one has a reranker."""
    found = {pool: StubWorker(redis_url, Keys(keys.prefix, pool)) for pool in (keys.pool, OTHER)}
    with ExitStack() as stack:
        for worker, model in zip(found.values(), ("small", "org/large-en"), strict=True):
            worker.start(model=model, reranker="reranker" if model == "small" else "judge")
            stack.callback(worker.stop)
        yield found


@pytest.fixture
def api(make_app: MakeApp, workers: dict[str, StubWorker]) -> FlaskClient:
    return make_app(pools=OTHER).test_client()


@pytest.mark.parametrize(
    ("asked", "model"),
    [("small", "small"), ("org/large-en", "org/large-en"), ("large-en", "org/large-en"), ("large", "org/large-en")],
)
def test_the_model_of_a_request_chooses_the_pool(api: FlaskClient, asked: str, model: str) -> None:
    answers = [
        api.post("/v1/embeddings", json={"input": "a", "model": asked}),
        api.post(
            "/v2/embed", json={"texts": ["a"], "model": asked, "input_type": "clustering", "embedding_types": ["float"]}
        ),
        api.post("/api/embed", json={"input": "a", "model": asked}),
        api.post("/embeddings", json={"input": ["a"], "model": asked}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
    assert [answers[n].get_json()["model"] for n in (0, 2, 3)] == [model] * 3
    assert api.get(f"/v1/models/{asked}").get_json()["id"] == model
    assert api.post("/api/show", json={"model": asked}).status_code == 200


def test_without_a_model_the_own_pool_answers(api: FlaskClient) -> None:
    assert api.post("/v1/embeddings", json={"input": "a"}).get_json()["model"] == "small"


def test_a_reranker_is_found_by_its_name(api: FlaskClient, workers: dict[str, StubWorker]) -> None:
    for name, worker in zip(("reranker", "judge"), workers.values(), strict=True):
        answer = api.post("/v1/rerank", json={"query": "q", "documents": ["a"], "model": name})
        assert (answer.status_code, len(worker.prompts_asked)) == (200, 1), answer.text
    assert api.post("/rerank", json={"query": "q", "documents": ["a"], "model": "small"}).status_code == 404


def test_all_models_are_listed(api: FlaskClient) -> None:
    assert [about["id"] for about in api.get("/v1/models").get_json()["data"]] == ["org/large-en", "small"]
    names = [about["name"] for about in api.get("/api/tags").get_json()["models"]]
    assert names == ["small", "org/large-en", "large-en", "large"]
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "gpt"})
    assert answer.status_code == 404
    assert "ask for small or org/large-en or large-en or large" in answer.text


def test_a_path_names_the_pool_of_any_route(api: FlaskClient, keys: Keys) -> None:
    for prefix, model in (("/pools/large", "org/large-en"), (f"/pools/{keys.pool}", "small"), ("", "small")):
        assert api.get(f"{prefix}/info").get_json()["model"] == model
        assert api.get(f"{prefix}/ready").status_code == 200
        submitted = api.post(f"{prefix}/v1/jobs", json={"op": "embed", "inputs": ["a"]})
        place = submitted.headers["Location"]
        assert place == f"{prefix}/v1/jobs/{submitted.get_json()['id']}"
        assert api.get(f"{place}/result?wait=20").get_json()["model"] == model
    assert api.get("/pools/large/v1/models").get_json()["data"][0]["id"] == "org/large-en"
    assert api.post("/pools/large/v1/embeddings", json={"input": "a", "model": "small"}).status_code == 404
    for path in ("/pools/none/info", "/pools/large", "/pools//info"):
        assert api.get(path).status_code == 404


def test_a_job_belongs_to_its_pool(api: FlaskClient) -> None:
    job = api.post("/pools/large/v1/jobs", json={"op": "embed", "inputs": ["a"]}).get_json()["id"]
    assert api.get(f"/v1/jobs/{job}").status_code == 404
    assert api.get(f"/pools/large/v1/jobs/{job}").status_code == 200


def test_metrics_of_a_further_pool_are_its_own_alone(api: FlaskClient) -> None:
    api.post("/pools/large/embed", json={"inputs": "a"})
    own, other = api.get("/metrics").text, api.get("/pools/large/metrics").text
    assert 'shoal_cache_hits_total{pool="large"} 0.0' in own
    for text, is_there in ((own, True), (other, False)):
        assert "shoal_workers" in text
        assert ("shoal_http_request_seconds" in text) == is_there


def test_a_pool_without_a_worker_is_asked_what_no_other_serves(
    make_app: MakeApp, workers: dict[str, StubWorker], keys: Keys
) -> None:
    workers[OTHER].announce(state="loading", model="org/large-en")
    api = make_app(pools=OTHER, request_timeout_s=20).test_client()
    assert api.post("/v1/embeddings", json={"input": "a", "model": "small"}).get_json()["model"] == "small"
    for name in ("large", "org/large-en"):  # a worker that is loading will say what it serves
        assert api.post("/v1/embeddings", json={"input": "a", "model": name}).get_json()["model"] == "org/large-en"
    workers[keys.pool].announce(state="loading", model="small")
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "org/large-en"})
    assert answer.status_code == 503
    assert f"no worker of the pools {keys.pool} and large is ready to tell its model" in answer.text
    assert api.post("/v1/embeddings", json={"input": "a", "model": "large"}).get_json()["model"] == "org/large-en"


def test_pools_have_names_as_pools_do() -> None:
    with pytest.raises(BadSetting, match='pools is "a b": it takes'):
        Settings(pools="x, a b")
    assert Settings(pool="a", pools="b,a,b").pool_names() == ["b"]
