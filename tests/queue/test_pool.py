"""The pool: a worker that announces itself is alive until it leaves or falls silent. A heartbeat goes on by itself."""

import itertools
from socket import gethostname
from types import SimpleNamespace

import pytest
from blocking import Pool
from conftest import RedisServer, wait_until
from queues import Queue

from shoal_workers.process import heartbeat
from shoal_workers.process.heartbeat import Heartbeat

#: Seconds by which Redis's clock is set back.
STEP_S = 20


@pytest.fixture
def pool(queue: Queue) -> Pool:
    return Pool(queue.broker, queue.keys, alive_s=3_600)


def test_a_worker_that_announces_itself_is_alive_until_it_leaves(pool: Pool) -> None:
    assert pool.workers() == {}
    pool.announce("b", {"state": "ready", "model": "m"})
    pool.announce("a", {"state": "starting"})
    assert list(pool.workers()) == ["a", "b"]
    assert pool.ready() == {"b": {"state": "ready", "model": "m"}}
    pool.leave("b")
    assert list(pool.workers()) == ["a"]
    pool.leave("b")
    pool.broker.execute("ZADD", pool.keys.alive, 1, "silent since 1970")
    assert pool.alive() == {"a"}
    for name, host in (("c", gethostname()), ("d", "elsewhere")):
        pool.announce(name, {"state": "ready", "host": host, "pid": 7})
    assert list(pool.own_ready([7])) == ["c"]


def test_the_first_heartbeat_of_a_worker_is_read_once(pool: Pool) -> None:
    for n in range(50):
        pool.announce(f"w{n:02d}", {"model": "m"})
    assert list(pool.first_heartbeats()) == [f"w{n:02d}" for n in range(50)]
    pool.announce("new", {"model": "m"})
    pool.leave("w00")
    pool.broker.execute("DEL", *(pool.keys.worker(f"w{n:02d}") for n in range(50)))
    assert list(pool.first_heartbeats()) == ["new", *(f"w{n:02d}" for n in range(1, 50))]


def test_when_redis_clock_is_set_back_no_worker_stays_alive_for_longer(queue: Queue, pool: Pool) -> None:
    for worker_id in ("dead", "living"):
        pool.announce(worker_id)
    for worker_id in ("dead", "living"):
        queue.redis.zincrby(pool.keys.alive, STEP_S * 1_000, worker_id)
    pool.announce("living")
    assert pool.alive() == {"dead", "living"}
    until_ms = dict(queue.redis.zrange(pool.keys.alive, 0, -1, withscores=True))
    assert until_ms[b"dead"] == until_ms[b"living"]
    assert until_ms[b"living"] / 1_000 <= queue.redis.time()[0] + 1 + pool.alive_s


def test_a_heartbeat_beats_until_stopped_and_outlives_redis(
    own_redis: RedisServer, own_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    pool, counts = Pool(own_queue.broker, own_queue.keys), iter(range(-2, 1_000_000))
    heart = Heartbeat(pool, "a", lambda: {"n": (n := next(counts)), "state": str(1 // n)}, every_s=0.01)  # fails at 0
    heart.start()
    wait_until(lambda: pool.workers().get("a", {}).get("n", 0) > 3)
    own_redis.stop()
    own_redis.start()
    wait_until(pool.workers)
    heart.close()
    assert pool.workers() == {}
    own_redis.stop()
    for about in ({}, {"model": "caf\udce9"}):  # a path that is not UTF-8
        heart = Heartbeat(pool, "a", about.copy)
        heart.start()
        heart.close()
    assert "no heartbeat: InvalidText" in caplog.text


def test_a_beat_that_had_no_answer_for_long_is_followed_by_the_next_at_once(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, beats = itertools.count(0, 3_600), itertools.count()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    heart = Heartbeat(pool, "a", lambda: {"n": next(beats)}, every_s=3_600)
    heart.start()
    wait_until(lambda: pool.workers()["a"]["n"] > 2)
    heart.close()
