"""`/ready` says that requests will be answered, and only then; `/health` says whether a restart would help."""

import pytest
from api_stub import INDEX, MakeApp, StubWorker, error_of
from blocking import Pool
from flask.testing import FlaskClient
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.contract.keys import LANE_KEYS, Keys
from shoal_api.context import Context

pytest_plugins = ["api_fixtures"]


def why_not(api: FlaskClient, path: str = "/ready") -> str:
    """Return the reason that `/ready` gives."""
    code, message = error_of(api.get(path), 503)
    assert code == "not_ready"
    return message


def test_no_worker_is_alive(api: FlaskClient) -> None:
    assert "no worker is alive" in why_not(api)
    assert api.get("/health").status_code == 200


@pytest.mark.parametrize("state", ["loading", "stalled"])
def test_workers_that_are_alive_and_not_at_work(api: FlaskClient, stub: StubWorker, state: str) -> None:
    stub.announce(state=state)
    assert f"none of the 1 workers alive is ready (1 {state})" in why_not(api)
    stub.announce()
    assert api.get("/ready").status_code == 200


def test_it_is_not_ready_while_no_worker_serves_an_index_of_its_settings(make_app: MakeApp, stub: StubWorker) -> None:
    api = make_app(indexes="news=/a,faq=/b").test_client()
    assert 'the index "faq", "news":' in why_not(api)
    stub.announce(indexes={"news": INDEX})
    assert 'the index "faq":' in why_not(api)
    stub.announce(indexes={"news": INDEX, "faq": INDEX})
    assert api.get("/ready").status_code == 200


def test_one_worker_may_serve_one_index_and_another_the_other(make_app: MakeApp, queue: Queue, keys: Keys) -> None:
    api = make_app(indexes="news=/a,faq=/b").test_client()
    pool = Pool(queue.broker, keys, alive_s=3_600)
    pool.announce("a", {"state": "ready", "indexes": {"news": INDEX}})
    pool.announce("b", {"state": "stalled", "indexes": {"faq": INDEX}})
    assert 'the index "faq":' in why_not(api)
    pool.announce("b", {"state": "ready", "indexes": {"faq": INDEX}})
    assert api.get("/ready").get_json() == {"status": "ready", "workers": 2}


@pytest.mark.usefixtures("stub")
def test_the_pool_is_read_once_in_a_while_for_all_requests(make_app: MakeApp, queue: Queue) -> None:
    def num_reads() -> int:
        return int(queue.redis.info("commandstats")["cmdstat_zrange"]["calls"])

    app = make_app()
    pool, api = Context.of(app).pool, app.test_client()
    pool.max_age_s = 3_600.0
    assert api.get("/ready").status_code == 200
    before = num_reads()
    assert {api.get(path).status_code for path in ("/ready", "/info", "/v1/indexes", "/ready?index=default")} == {200}
    assert num_reads() == before
    pool.max_age_s = 0.0
    assert api.get("/ready").status_code == 200
    assert num_reads() == before + 1


@pytest.mark.usefixtures("stub")
def test_an_index_that_is_asked_for(api: FlaskClient) -> None:
    assert api.get("/ready?index=default").status_code == 200
    assert 'the index "other":' in why_not(api, "/ready?index=other")


@pytest.mark.parametrize("what", ["", *LANE_KEYS, "suspects", "holders", "unread", "unread_load"])
@pytest.mark.parametrize("lane", LANES)
def test_a_key_of_a_lane_that_has_another_type(
    make_app: MakeApp, queue: Queue, keys: Keys, lane: str, what: str
) -> None:
    api = make_app().test_client()
    pool = Pool(queue.broker, keys, alive_s=3_600)
    pool.announce("a", {"state": "ready", "indexes": {"default": INDEX}})
    assert api.get("/ready").status_code == 200
    key = keys.of_lane(lane, what) if what in LANE_KEYS else getattr(keys, what) if what else keys.lane(lane)
    queue.redis.delete(key)
    queue.redis.set(key, "something else")
    assert all(words in why_not(api) for words in (key, "delete it"))
    queue.redis.delete(key)
    assert api.get("/ready").status_code == 200


@pytest.mark.usefixtures("stub")
def test_a_server_that_was_told_to_stop(make_app: MakeApp) -> None:
    app = make_app()
    Context.of(app).stopping.set()
    assert "told to stop" in why_not(app.test_client())
    response = app.test_client().post("/embed", json={"inputs": "a"})
    assert (response.status_code, response.headers["Connection"]) == (200, "close")
