"""Several pools behind one API: the model or the path of a request chooses the pool that answers."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from api_stub import MakeApp, StubWorker, error_of
from flask.testing import FlaskClient
from keys_file import KeysFile
from queues import Queue

from shoal.contract.keys import Keys
from shoal.errors import BadSetting
from shoal.operations import Embed
from shoal.settings import Settings

pytest_plugins = ["api_fixtures", "long_job_fixtures"]

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


def test_all_models_are_listed(api: FlaskClient, keys: Keys) -> None:
    assert [about["id"] for about in api.get("/v1/models").get_json()["data"]] == ["org/large-en", "small"]
    names = [about["name"] for about in api.get("/api/tags").get_json()["models"]]
    assert names == ["small", keys.pool, "org/large-en", "large-en", "large"]
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "gpt"})
    assert answer.status_code == 404
    assert f"ask for small or {keys.pool} or org/large-en or large-en or large" in answer.text


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


def test_metrics_below_a_pools_path_are_of_that_pool_only(api: FlaskClient) -> None:
    api.post("/pools/large/embed", json={"inputs": "a"})
    own, other = api.get("/metrics").text, api.get("/pools/large/metrics").text
    assert 'shoal_cache_hits_total{pool="large"} 0.0' in own
    for text, is_there in ((own, True), (other, False)):
        assert "shoal_workers" in text
        assert ("shoal_http_request_seconds" in text) == is_there


def test_a_sleeping_model_is_served(api: FlaskClient, workers: dict[str, StubWorker]) -> None:
    workers[OTHER].announce(state="asleep", model="org/large-en")
    assert api.get("/pools/large/ready").status_code == 200
    assert "org/large-en" in [about["id"] for about in api.get("/v1/models").get_json()["data"]]
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "org/large-en"})
    assert answer.get_json()["model"] == "org/large-en"
    assert "shoal_workers_ready 1" in api.get("/pools/large/metrics").text


def test_no_other_pool_answers_for_a_pool_whose_model_is_not_known(
    make_app: MakeApp, workers: dict[str, StubWorker], keys: Keys
) -> None:
    workers[OTHER].announce(state="loading", model="org/large-en")
    api = make_app(pools=OTHER, model_aliases="*").test_client()
    for name, model in (("small", "small"), (keys.pool, "small"), ("large", "org/large-en")):
        assert api.post("/v1/embeddings", json={"input": "a", "model": name}).get_json()["model"] == model
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "org/large-en"})
    assert answer.status_code == 503
    assert "no worker of the pool large is ready to tell its model" in answer.text
    assert api.get("/v1/models/org/large-en").status_code == 503


def test_keys_and_admins_routes_are_the_same_below_a_pool(make_app: MakeApp, keys_file: KeysFile) -> None:
    api = make_app(pools=OTHER, api_keys_file=str(keys_file.path)).test_client()
    assert api.get("/pools/large/info").status_code == 401
    for path in ("/pools/large/v1/dead", "/pools/large//v1/dead", "/pools/large/v1/indexes/a/versions"):
        assert error_of(api.get(path, headers=keys_file.user), 403)[0] == "forbidden"


@pytest.mark.usefixtures("rq")
def test_uploads_long_jobs_and_dead_letters_belong_to_the_pool(make_app: MakeApp, redis_url: str, keys: Keys) -> None:
    api = make_app(pools=OTHER, indexes="news=/a").test_client()
    once = {"Idempotency-Key": "k"}
    places = [
        api.post(f"{pool}/v1/bulk?name=a.txt", data=b"storm\n", headers=once).headers["Location"]
        for pool in ("/pools/large", "/pools/large", "")
    ]
    assert places[0] == places[1] != places[2]
    assert places[0].startswith("/pools/large/v1/jobs/")
    assert api.get(places[0]).status_code == 200
    assert api.get(places[0].removeprefix("/pools/large")).status_code == 404
    assert [len(api.get(f"{pool}/v1/jobs").get_json()["jobs"]) for pool in ("/pools/large", "")] == [1, 1]
    queue = Queue.connect(redis_url, Keys(keys.prefix, OTHER))
    fields = {"job": Embed(["a"], id="b").pack(), "reason": "why", "lane": "bulk", "worker": "w", "deliveries": "3"}
    letter = queue.redis.xadd(queue.keys.dead, fields | {"traceback": ""}).decode()
    assert api.get("/v1/dead").get_json()["count"] == 0
    again = api.post(f"/pools/large/v1/dead/{letter}/retry")
    assert again.headers["Location"].startswith("/pools/large/v1/jobs/")
    queue.close()


@pytest.mark.usefixtures("workers")
def test_indexes_and_aliases_in_the_settings_belong_to_the_own_pool(make_app: MakeApp) -> None:
    api = make_app(pools=OTHER, indexes="news=/a", model_aliases="mine,*").test_client()
    assert (api.get("/ready").status_code, api.get("/pools/large/ready").status_code) == (503, 200)
    for name, model in (("large-en", "org/large-en"), ("mine", "small"), ("any", "small")):
        assert api.post("/v1/embeddings", json={"input": "a", "model": name}).get_json()["model"] == model
    assert api.post("/pools/large/v1/embeddings", json={"input": "a", "model": "mine"}).status_code == 404


def test_wrong_names_of_pools_are_refused() -> None:
    with pytest.raises(BadSetting, match='pools is "a b": it takes'):
        Settings(pools="x, a b")
    with pytest.raises(BadSetting, match='model_aliases has "x", the name of a further pool'):
        Settings(pools="x", model_aliases="y,X")
    with pytest.raises(BadSetting, match='protocols has "tei=/pools/x": below /pools/ are the routes of pools'):
        Settings(pools="x", protocols="tei=/pools/x")
    assert Settings(pool="a", pools="b,a,b").pool_names() == ["b"]
