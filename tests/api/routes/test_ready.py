"""`/ready` says that requests will be answered, and only then; `/health` says whether a restart would help."""

import pytest
from api_stub import INDEX, MakeApp, StubWorker, error_of
from blocking import Pool
from conftest import RedisServer
from flask.testing import FlaskClient
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.contract.keys import LANE_KEYS, Keys

pytest_plugins = ["api_fixtures"]


def why_not(api: FlaskClient, path: str = "/ready") -> str:
    """Return the reason that `/ready` gives."""
    code, message = error_of(api.get(path), 503)
    assert code == "not_ready"
    return message


def test_not_ready_without_redis(make_app: MakeApp, own_redis: RedisServer) -> None:
    own_redis.stop()
    api = make_app(redis_url=own_redis.url).test_client()
    assert error_of(api.get("/ready"), 503)[0] == "unavailable"
    response = api.get("/health")
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})


def test_not_ready_while_no_live_worker_is_ready_and_serves_the_indexes(make_app: MakeApp, stub: StubWorker) -> None:
    api, other = make_app().test_client(), make_app(indexes="news=/a,faq=/b").test_client()
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
def test_not_ready_and_no_fault_of_the_server_if_a_limit_is_no_number(
    make_app: MakeApp, queue: Queue, number: str
) -> None:
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
