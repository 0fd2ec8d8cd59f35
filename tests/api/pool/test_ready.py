"""The pool over HTTP: `/v1/pool` shows what a key may see, and `/ready` says whether requests will be answered."""

from typing import Any

import pytest
from api_stub import COUNTERS, INDEX, MakeApp, StubWorker, error_of
from blocking import Pool
from conftest import RedisServer, wait_until
from flask.testing import FlaskClient
from keys_file import KeysFile
from long_job_callers import Rq
from queues import Queue
from test_dead_letters import bury

from shoal.contract.jobs import LANES
from shoal.contract.keys import LANE_KEYS, Keys
from shoal.contract.replies import TIMINGS
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.settings import Settings
from shoal_api.routes.pool import MAX_RECENT, MAX_SHOWN

pytest_plugins = ["api_fixtures", "long_job_fixtures"]


def recent(job_id: str, ended_at: float, **changes: Any) -> dict[str, Any]:
    """Return a recent job."""
    known = {"id": job_id, "op": "embed", "lane": "bulk", "client": "web", "num_texts": 2, "num_tokens": 9}
    known |= {"num_cached": 1, "status": "done", "error": None, "ended_at": ended_at, "total_s": 0.5}
    return known | {"timings": dict.fromkeys(TIMINGS, 0.1)} | changes


def test_the_present_state_of_the_pool_is_returned(api: FlaskClient, queue: Queue, stub: StubWorker) -> None:
    stub.pause()
    bury(queue, Embed(["a secret text"]).pack(), reason="why")
    queue.put("bulk", [Embed(["secret storm", "rain"], reply_to="me")])
    unknown = recent("2", 20.0, id=None, op=None, num_texts=None, error="expired")
    stub.announce(recent=[recent("3", 30.0), recent("1", 10.0)], written_at=5.0)
    stub.pool.announce("a", {"state": "stalled", "recent": [unknown]})
    response = api.get("/v1/pool")
    assert "secret" not in response.text
    found = response.get_json()
    assert [(lane["lane"], lane["num_jobs"], lane["num_texts"]) for lane in found["lanes"]] == [
        ("interactive", 0, 0),
        ("bulk", 1, 2),
    ]
    other, worker = found["workers"]
    assert (other["id"], other["state"], other["model"], other["counters"]) == ("a", "stalled", None, None)
    assert (worker["id"], worker["state"], worker["model"]) == ("stub", "ready", "stub")
    assert (worker["written_at"], worker["counters"], worker["memory_bytes"]) == (5.0, COUNTERS, 2**20)
    assert (found["is_admin"], found["num_dead"]) == (True, 1)
    assert found["recent"] == [
        recent("3", 30.0, worker="stub"),
        unknown | {"worker": "a"},
        recent("1", 10.0, worker="stub"),
    ]
    assert (found["long_jobs"], found["api_cache_hits"]) == ([], 0)


def test_a_user_sees_its_own_jobs_alone(
    make_app: MakeApp, keys_file: KeysFile, stub: StubWorker, rq: Rq, settings: Settings
) -> None:
    with LongJobs(settings) as jobs:
        own_job = jobs.submit("embed_file", {"source": "a", "out": "b"}, client="user")
        for _ in range(MAX_SHOWN + 1):
            jobs.submit("embed_file", {"source": "a", "out": "b"}, client="other")
    stub.pause()
    bury(stub.queue, b"no job")
    for n in range(MAX_RECENT // 8 + 1):
        stub.pool.announce(f"w{n}", {"recent": [recent(f"{n}-{k}", 8.0 + n, client="other") for k in range(8)]})
    stub.announce(recent=[recent("own", 1.0, client="user")])
    app = make_app(api_keys_file=str(keys_file.path))
    own = app.test_client().get("/v1/pool", headers=keys_file.user).get_json()
    assert [job["id"] for job in own["long_jobs"]] == [own_job]
    assert [job["id"] for job in own["recent"]] == ["own"]
    assert (own["is_admin"], own["num_dead"]) == (False, 1)
    assert app.test_client().get("/v1/pool").status_code == 401
    everything = app.test_client().get("/v1/pool", headers=keys_file.admin).get_json()
    assert everything["is_admin"]
    assert (len(everything["long_jobs"]), len(everything["recent"])) == (MAX_SHOWN, MAX_RECENT)


def test_without_redis_it_is_not_ready_but_healthy_and_then_goes_on(make_app: MakeApp, own_redis: RedisServer) -> None:
    api = make_app(redis_url=own_redis.url).test_client()
    assert api.get("/v1/pool").status_code == 200
    own_redis.stop()
    assert error_of(api.get("/v1/pool"), 503)[0] == "unavailable"
    own_redis.start()
    wait_until(lambda: api.get("/v1/pool").status_code == 200)
    own_redis.stop()
    api = make_app(redis_url=own_redis.url).test_client()
    assert error_of(api.get("/ready"), 503)[0] == "unavailable"
    response = api.get("/health")
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})


def why_not(api: FlaskClient, path: str = "/ready") -> str:
    """Return the reason that `/ready` gives."""
    code, message = error_of(api.get(path), 503)
    assert code == "not_ready"
    return message


def test_not_ready_while_no_live_worker_is_ready_and_serves_the_indexes(make_app: MakeApp, stub: StubWorker) -> None:
    app, other = make_app(), make_app(indexes="news=/a,faq=/b").test_client()
    api = app.test_client()
    assert api.get("/ready?index=default").status_code == 200
    assert 'the index "other":' in why_not(api, "/ready?index=other")
    for state in ("loading", "stalled"):
        stub.announce(state=state)
        assert f"none of the 1 workers alive is ready (1 {state})" in why_not(api)
    stub.announce()
    assert api.get("/ready").get_json() == {"status": "ready", "workers": 1}
    assert 'the index "faq", "news":' in why_not(other)
    stub.announce(indexes={"news": INDEX})
    stub.pool.announce("b", {"state": "stalled", "indexes": {"faq": INDEX}})
    assert 'the index "faq":' in why_not(other)
    stub.pool.announce("b", {"state": "ready", "indexes": {"faq": INDEX}})
    assert other.get("/ready").get_json() == {"status": "ready", "workers": 2}
    stub.pool.leave("b")
    stub.pool.leave("stub")
    assert "no worker is alive" in why_not(api)
    assert api.get("/ready").headers["Retry-After"] == "1"
    app.own.pool.max_age_s = 3_600.0
    stub.announce()
    assert api.get("/ready").status_code == 200  # the first worker is seen at once


@pytest.mark.usefixtures("stub")
def test_the_pool_is_read_once_in_a_while_for_all_requests(make_app: MakeApp, queue: Queue) -> None:
    def num_reads() -> int:
        return int(queue.redis.info("commandstats")["cmdstat_zrange"]["calls"])

    app = make_app()
    pool, api = app.own.pool, app.test_client()
    pool.max_age_s = 3_600.0
    assert api.get("/ready").status_code == 200
    before = num_reads()
    assert {api.get(path).status_code for path in ("/ready", "/info", "/v1/indexes", "/ready?index=default")} == {200}
    assert num_reads() == before
    pool.max_age_s = 0.0
    assert api.get("/ready").status_code == 200
    assert num_reads() == before + 1


def test_not_ready_if_a_key_of_a_lane_has_another_type(api: FlaskClient, queue: Queue, keys: Keys) -> None:
    Pool(queue.broker, keys, alive_s=3_600).announce("a", {"state": "ready"})
    of_lanes = [keys.of_lane(lane, what) for lane in LANES for what in LANE_KEYS]
    others = [*map(keys.lane, LANES), keys.suspects, keys.holders, keys.unread, keys.unread_load]
    for key in (*of_lanes, *others):
        assert api.get("/ready").status_code == 200
        queue.redis.delete(key)
        queue.redis.set(key, "something else")
        assert all(words in why_not(api) for words in (key, "delete it"))
        queue.redis.delete(key)


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("number", ["many", "-1", "1e308", "nan", "", "9" * 5_000])
def test_not_ready_and_no_fault_if_a_limit_is_no_number(make_app: MakeApp, queue: Queue, number: str) -> None:
    api, limits = make_app().test_client(), queue.keys.limits
    queue.redis.hset(limits, "max_jobs", number)
    assert all(words in why_not(api) for words in (limits, "delete it"))
    assert [api.get(path).status_code for path in ("/v1/pool", "/metrics")] == [503, 200]


@pytest.mark.usefixtures("stub")
def test_not_ready_once_the_server_is_told_to_stop(make_app: MakeApp) -> None:
    app = make_app()
    app.own.stopping.set()
    assert "told to stop" in why_not(app.test_client())
    response = app.test_client().post("/embed", json={"inputs": "a"})
    assert (response.status_code, response.headers["Connection"]) == (200, "close")
