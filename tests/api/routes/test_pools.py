"""Several pools behind one API: the model or the path of a request chooses the pool that answers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_stub import MakeApp, StubWorker, error_of
from conftest import PATIENCE_S, wait_until
from flask.testing import FlaskClient
from keys_file import KeysFile
from queues import Queue
from redis_groups import running_group

from shoal.contract.keys import Keys
from shoal.errors import BadSetting
from shoal.operations import Embed
from shoal.settings import Settings
from shoal_api.server.async_flask import AsyncFlask

pytest_plugins = ["api_fixtures", "long_job_fixtures"]

OTHER = "large"

#: The worker of each pool.
Workers = dict[str, StubWorker]


@pytest.fixture
def workers(redis_url: str, keys: Keys) -> Iterator[Workers]:
    """Return the worker of each pool, whose replies name its model; the second one has a reranker."""
    found = {pool: StubWorker(redis_url, Keys(keys.prefix, pool)) for pool in (keys.pool, OTHER)}
    with ExitStack() as stack:
        for worker, model in zip(found.values(), ("small", "org/large-en"), strict=True):
            for key in worker.queue.redis.scan_iter(f"{worker.queue.keys.root}:*"):  # keys of an earlier test
                worker.queue.redis.delete(key)
            worker.start(model=model, reranker="reranker" if model == "small" else "judge")
            stack.callback(worker.stop)
        yield found


@pytest.fixture
def api(make_app: MakeApp, workers: Workers) -> FlaskClient:
    return looking(make_app(pools=OTHER)).test_client()


@pytest.fixture
def alike(make_app: MakeApp, workers: Workers) -> AsyncFlask:
    """Return an application of two pools whose workers serve the same model and reranker."""
    workers[OTHER].announce(model="small", reranker="reranker")
    return looking(make_app(pools=OTHER, cache_mb=0))


def looking(app: AsyncFlask) -> AsyncFlask:
    """Return the application, changed to look at all pools for every request, for as long as that takes."""
    for each in app.contexts.values():
        each.pool.max_age_s, each.pool.usable_s, each.pool.max_wait_s = 0.0, 0.0, PATIENCE_S
    return app


@contextmanager
def busy(app: AsyncFlask, worker: StubWorker, pool: str) -> Iterator[None]:
    """Let a request wait in the pool while the context lasts."""
    worker.pause()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(app.test_client().post, f"/pools/{pool}/embed", json={"inputs": "slow"})
        try:
            wait_until(lambda: worker.queue.loads()["interactive"].num_jobs == 1)
            yield
        finally:
            worker.resume()
        assert waiting.result().status_code == 200


def test_the_model_of_a_request_chooses_the_pool(api: FlaskClient, workers: Workers, keys: Keys) -> None:
    names = {"small": "small"} | dict.fromkeys(("org/large-en", "large-en", "large"), "org/large-en")
    for asked, model in names.items():
        answers = [
            api.post(path, json=body | {"model": asked})
            for path, body in (
                ("/v1/embeddings", {"input": "a"}),
                ("/v2/embed", {"texts": ["a"], "input_type": "clustering", "embedding_types": ["float"]}),
                ("/api/embed", {"input": "a"}),
                ("/embeddings", {"input": ["a"]}),
            )
        ]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [answers[n].get_json()["model"] for n in (0, 2, 3)] == [model] * 3
        assert api.get(f"/v1/models/{asked}").get_json()["id"] == model
        assert api.post("/api/show", json={"model": asked}).status_code == 200
    assert api.post("/v1/embeddings", json={"input": "a"}).get_json()["model"] == "small"
    before = {name: len(worker.asked) for name, worker in workers.items()}
    for name, (pool, worker) in zip(("reranker", "judge"), workers.items(), strict=True):
        answer = api.post("/v1/rerank", json={"query": "q", "documents": ["a"], "model": name})
        assert (answer.status_code, len(worker.asked) - before[pool]) == (200, 1), answer.text
    assert api.post("/rerank", json={"query": "q", "documents": ["a"], "model": "small"}).status_code == 404
    assert listed(api) == ["org/large-en", "small"]
    tags = [about["name"] for about in api.get("/api/tags").get_json()["models"]]
    assert tags == ["small", keys.pool, "org/large-en", "large-en", "large"]
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "gpt"})
    assert answer.status_code == 404
    assert f"ask for small or {keys.pool} or org/large-en or large-en or large" in answer.text


def listed(api: FlaskClient) -> list[str]:
    """Return the names of the listed models."""
    return [about["id"] for about in api.get("/v1/models").get_json()["data"]]


def test_a_path_names_the_pool_of_any_route_and_of_metrics(api: FlaskClient, keys: Keys) -> None:
    for prefix, model in (("/pools/large", "org/large-en"), (f"/pools/{keys.pool}", "small"), ("", "small")):
        assert api.get(f"{prefix}/info").get_json()["model"] == model
        assert api.get(f"{prefix}/ready").status_code == 200
        submitted = api.post(f"{prefix}/v1/jobs", json={"op": "embed", "inputs": ["a"]})
        place = submitted.headers["Location"]
        assert place == f"{prefix}/v1/jobs/{submitted.get_json()['id']}"
        assert api.get(f"{place}/result?wait=20").get_json()["model"] == model
        assert api.get(place.removeprefix("/pools/large")).status_code == (404 if "large" in prefix else 200)
    assert api.get("/pools/large/v1/models").get_json()["data"][0]["id"] == "org/large-en"
    assert api.post("/pools/large/v1/embeddings", json={"input": "a", "model": "small"}).status_code == 404
    for path in ("/pools/none/info", "/pools/large", "/pools//info"):
        assert api.get(path).status_code == 404
    api.post("/pools/large/embed", json={"inputs": "a"})
    own, other = api.get("/metrics").text, api.get("/pools/large/metrics").text
    assert 'shoal_cache_hits_total{pool="large"} 0.0' in own
    assert ["shoal_workers" in text for text in (own, other)] == [True, True]
    assert ["shoal_http_request_seconds" in text for text in (own, other)] == [True, False]


def test_a_sleeping_model_is_served_and_an_odd_one_harms_no_other(api: FlaskClient, workers: Workers) -> None:
    workers[OTHER].announce(state="asleep", model="org/large-en")
    assert api.get("/pools/large/ready").status_code == 200
    assert "org/large-en" in listed(api)
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "org/large-en"})
    assert answer.get_json()["model"] == "org/large-en"
    assert "shoal_workers_ready 1" in api.get("/pools/large/metrics").text
    workers[OTHER].announce(model=["small"], reranker={})
    assert listed(api) == ["small"]
    assert api.post("/v1/embeddings", json={"input": "a", "model": "small"}).status_code == 200


def test_models_are_listed_while_redis_refuses_a_pool(api: FlaskClient, workers: Workers, keys: Keys) -> None:
    asked = ("/v1/models", "/models", "/api/tags", "/v1/models/small")
    redis, names = workers[OTHER].queue.redis, [Keys(keys.prefix, pool).alive for pool in (OTHER, keys.pool)]
    for name, status in zip(names, (200, 503), strict=True):
        redis.delete(name)
        redis.set(name, "of another program")
        assert [api.get(path).status_code for path in asked] == [status] * 4
        assert status != 200 or listed(api) == ["small"]
    redis.delete(*names)


def test_no_pool_answers_for_a_pool_with_an_unknown_model(make_app: MakeApp, workers: Workers, keys: Keys) -> None:
    workers[OTHER].announce(state="loading", model="org/large-en")
    api = make_app(pools=OTHER, model_aliases="*").test_client()
    for name, model in (("small", "small"), (keys.pool, "small"), ("large", "org/large-en")):
        assert api.post("/v1/embeddings", json={"input": "a", "model": name}).get_json()["model"] == model
    answer = api.post("/v1/embeddings", json={"input": "a", "model": "org/large-en"})
    assert answer.status_code == 503
    assert "no worker of the pool large is ready, so its model is unknown" in answer.text
    assert api.get("/v1/models/org/large-en").status_code == 503


#: Requests that any pool with the same model may answer.
ANYWHERE: list[tuple[str, dict[str, Any]]] = [
    ("/embed", {"inputs": [f"text {n}" for n in range(100)]}),
    ("/v1/embeddings", {"input": "a"}),
    ("/v1/embeddings", {"input": "a", "model": "small"}),
    ("/score", {"query": "q", "inputs": ["a"]}),
    ("/rerank", {"query": "q", "documents": ["a"], "model": "reranker"}),
    ("/tokenize", {"inputs": "a"}),
]


def test_of_alike_pools_the_less_busy_one_answers(alike: AsyncFlask, workers: Workers) -> None:
    for pool, worker in workers.items():
        with busy(alike, worker, pool):
            for path, body in ANYWHERE * 4:
                answer = alike.test_client().post(path, json=body)
                assert answer.status_code == 200, answer.text


def test_searches_and_requests_with_a_pool_or_a_key_stay(alike: AsyncFlask, workers: Workers, keys: Keys) -> None:
    api, asked = alike.test_client(), [worker.asked for worker in workers.values()]
    for n in range(20):
        assert api.post("/search", json={"queries": "a"}).status_code == 200
        job = {"op": "embed", "inputs": ["a"]}
        again = [api.post("/v1/jobs", json=job, headers={"Idempotency-Key": f"{n}"}).get_json()["id"] for _ in range(2)]
        assert again[0] == again[1]
        assert "." not in again[0]
    wait_until(lambda: list(map(len, asked)) == [40, 0])
    known = {"json": job, "headers": {"Idempotency-Key": "0"}}
    wait_until(lambda: api.post("/v1/jobs", **known).get_json()["status"] == "done")
    for n, pool in enumerate(workers):
        for _ in range(20):
            assert api.post(f"/pools/{pool}/embed", json={"inputs": "a"}).status_code == 200
            assert api.post("/v1/embeddings", json={"input": "a", "model": pool}).status_code == 200
        assert list(map(len, asked)) == [80, 40 * n]


def test_a_submitted_jobs_id_names_its_pool(alike: AsyncFlask, workers: Workers, keys: Keys) -> None:
    api = alike.test_client()
    with busy(alike, workers[keys.pool], keys.pool):
        job = api.post("/v1/jobs", json={"op": "embed", "inputs": ["a"]})
        place = job.headers["Location"]
        assert place == f"/v1/jobs/{job.get_json()['id']}"
        assert place.startswith(f"/v1/jobs/{OTHER}.")
        assert api.get(f"{place}/result?wait=60").get_json()["id"] == job.get_json()["id"]
        assert api.get(place).get_json()["status"] == "done"
        assert api.post(f"{place}/cancel").get_json() == {"id": job.get_json()["id"], "status": "done"}
        assert api.get(f"/pools/{keys.pool}{place}").status_code == 404
    with busy(alike, workers[OTHER], OTHER):
        assert "." not in api.post("/v1/jobs", json={"op": "embed", "inputs": ["a"]}).get_json()["id"]
    assert api.get(f"/v1/jobs/none.{'0' * 24}").status_code == 404


def test_no_request_goes_to_a_pool_without_a_worker(alike: AsyncFlask, workers: Workers, keys: Keys) -> None:
    api = alike.test_client()

    def num_asked_of(away: str) -> int:
        before = len(workers[away].asked)
        for _ in range(20):
            assert api.post("/v1/embeddings", json={"input": "a"}).status_code == 200
        return len(workers[away].asked) - before

    api.post("/embed", json={"inputs": "a"})  # from now on the API knows what its own pool serves
    for pool, worker in workers.items():
        worker.announce(state="loading", model="small", reranker="reranker")
        assert num_asked_of(pool) == 0
        worker.announce(model="small", reranker="reranker")
    redis, load = workers[OTHER].queue.redis, Keys(keys.prefix, OTHER).of_lane("bulk", "load")
    redis.set(load, "of another program")
    assert num_asked_of(OTHER) == 0
    redis.delete(load)


def test_pools_of_other_vectors_differ(make_app: MakeApp, workers: Workers) -> None:
    for fingerprints in (("f", "other"), ("f", None), (None, None), ("", ""), ("f", ["f"])):
        for worker, fingerprint in zip(workers.values(), fingerprints, strict=True):
            worker.announce(model="small", fingerprint=fingerprint)
        api = looking(make_app(pools=OTHER, cache_mb=0)).test_client()
        for asked in ({}, {"model": "small"}) * 10:
            assert api.post("/v1/embeddings", json={"input": "a", **asked}).status_code == 200
        assert workers[OTHER].asked == [], fingerprints


def test_pools_of_other_rerankers_share_all_but_scores(make_app: MakeApp, workers: Workers, keys: Keys) -> None:
    workers[OTHER].announce(model="small", reranker="judge")
    app = looking(make_app(pools=OTHER, cache_mb=0))
    for _ in range(20):
        assert app.test_client().post("/score", json={"query": "q", "inputs": ["a"]}).status_code == 200
    assert workers[OTHER].asked == []
    with busy(app, workers[keys.pool], keys.pool):
        assert app.test_client().post("/embed", json={"inputs": "a"}).status_code == 200


def test_the_choice_of_a_pool_waits_for_no_redis(alike: AsyncFlask, workers: Workers) -> None:
    reader = alike.contexts[OTHER].pool

    async def num_ready() -> int:
        return len((await reader.look()).ready)

    assert alike.loop.run(num_ready) == 1
    reader.usable_s, reader.max_wait_s = PATIENCE_S, 0.0
    workers[OTHER].announce(state="loading")
    assert alike.loop.run(num_ready) == 1  # the last known state, while the next one is read
    wait_until(lambda: alike.loop.run(num_ready) == 0)
    alike.loop.run(reader.read)  # wait for readings that began before the next change
    workers[OTHER].announce()
    reader.usable_s = 0.0
    assert alike.loop.run(num_ready) == 0  # no state is known, and Redis needs time to answer
    reader.max_wait_s = PATIENCE_S
    assert alike.loop.run(num_ready) == 1


@pytest.mark.wide
def test_the_pools_on_other_nodes_of_a_cluster_answer_while_a_node_is_away(make_app: MakeApp, tmp_path: Path) -> None:
    with running_group("cluster", tmp_path / "cluster") as group, ExitStack() as stack:
        for pool in ("a", "b", "default"):
            worker = StubWorker(group.url, Keys("shoal", pool))
            worker.start()
            stack.callback(worker.stop)
        app = looking(make_app(redis_url=group.url, key_prefix="shoal", pool="default", pools="a,b", cache_mb=0))
        api = app.test_client()
        assert api.post("/embed", json={"inputs": "a"}).status_code == 200
        group.kill(group.primary())
        for n in range(20):
            answer = api.post("/embed", json={"inputs": f"{n}"})
            assert answer.status_code == 200, answer.text


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
def test_indexes_and_aliases_belong_to_the_own_pool_and_keys_to_all(make_app: MakeApp, keys_file: KeysFile) -> None:
    api = make_app(pools=OTHER, indexes="news=/a", model_aliases="mine,*").test_client()
    assert (api.get("/ready").status_code, api.get("/pools/large/ready").status_code) == (503, 200)
    for name, model in (("large-en", "org/large-en"), ("mine", "small"), ("any", "small")):
        assert api.post("/v1/embeddings", json={"input": "a", "model": name}).get_json()["model"] == model
    assert api.post("/pools/large/v1/embeddings", json={"input": "a", "model": "mine"}).status_code == 404
    api = make_app(pools=OTHER, api_keys_file=str(keys_file.path)).test_client()
    assert api.get("/pools/large/info").status_code == 401
    for path in ("/pools/large/v1/dead", "/pools/large//v1/dead", "/pools/large/v1/indexes/a/versions"):
        assert error_of(api.get(path, headers=keys_file.user), 403)[0] == "forbidden"


def test_wrong_names_of_pools_are_refused() -> None:
    assert Settings(pool="a", pools="b,a,b").pool_names() == ["b"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"pools": "x, a b"}, 'pools is "a b": it takes'),
        ({"pools": "x" * 101}, "pools has a name of 101 characters"),
        ({"model_aliases": "y,X"}, 'model_aliases has "x", the name of a further pool'),
    ]
    for setting, message in wrong:
        with pytest.raises(BadSetting, match=message):
            Settings(**{"pools": "x"} | setting)
