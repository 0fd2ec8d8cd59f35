"""Redis out of memory: new jobs are refused, accepted jobs are answered, and with room everything goes on."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import msgpack
import pytest
import redis
from blocking import Pool
from conftest import RedisServer, wait_until
from queues import Queue, work_off
from service import service

from shoal import Client
from shoal.client.text_client import Handle
from shoal.contract.jobs import LANES
from shoal.errors import Overloaded
from shoal.operations import Embed
from shoal.queue import scripts
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.worker import Worker

#: More jobs than Redis has memory for in a test.
MAX_JOBS = 100_000

#: Bytes of memory that are left for the jobs of a test.
ROOM_BYTES = 3_000_000


@pytest.fixture
def admin(own_redis: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(own_redis.url) as connection:
        yield connection


def limit(admin: "redis.Redis", room_bytes: int = ROOM_BYTES) -> None:
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] + room_bytes)


def fill(admin: "redis.Redis") -> None:
    for size in (100_000, 1_000):
        with suppress(redis.OutOfMemoryError):
            while True:
                admin.rpush("filler", bytes(size))


def work(queue: Queue, encoder: Encoder) -> int:
    """Answer all jobs by a worker; return their number."""
    return work_off(Worker(queue.consumer(), encoder, {}, Bucketing(4_096)), queue)


def submit_until_full(client: Client, text: str, output: str = "vector") -> list[Handle]:
    jobs: list[Handle] = []

    def submit() -> None:
        for _ in range(MAX_JOBS):
            jobs.append(client.submit("embed", text, output=output))

    with pytest.raises(Overloaded, match="no memory left"):
        submit()
    return jobs


def test_the_jobs_that_filled_it_are_all_answered(
    own_redis: RedisServer, admin: "redis.Redis", own_queue: Queue, encoder: Encoder
) -> None:
    text, output = "storm europe " * 2_000, "tokens"  # the reply is about as large as the job
    limit(admin)
    with Client(own_redis.url) as client:
        jobs = submit_until_full(client, text, output)
        jobs += submit_until_full(client, "storm")  # smaller jobs may still be accepted
        assert len(jobs) > 50
        assert work(own_queue, encoder) == len(jobs)
        assert {job.status() for job in jobs} == {"done"}
        assert all(job.result().vectors is not None for job in jobs)
        assert client.submit("embed", text, output=output).status() == "queued"


def test_a_worker_that_starts_while_redis_is_full_is_known_answers_and_looks_for_jobs_of_dead_workers(
    own_redis: RedisServer, admin: "redis.Redis", own_queue: Queue, encoder: Encoder
) -> None:
    with Client(own_redis.url) as client:
        job, other = (client.submit("embed", "storm") for _ in range(2))
        admin.config_set("maxmemory", 1)
        assert other.cancel() == other.status() == "cancelled"
        pool = Pool(own_queue.broker, own_queue.keys, alive_s=3_600)
        pool.announce("new", {"state": "ready"})
        assert pool.ready() == {"new": {"state": "ready"}}
        pool.announce("new", {"state": "ready", "model": "tiny"})
        assert pool.workers()["new"]["model"] == "tiny"
        assert work(own_queue, encoder) == 1
        assert job.status() == "done"
        admin.config_set("maxmemory", 0)
        own_queue.put("interactive", [Embed(["storm"], reply_to="me")])
        admin.config_set("maxmemory", 1)
        own_queue.take("dead", LANES, 1)
        own_queue.may_look("one")
        assert own_queue.consumer("one").reclaim(())[1]["dead"] == 1
        assert [taken.deaths for taken in own_queue.take("one", LANES, 1)] == [1]
        pool.leave("one")
        pool.leave("new")
        assert pool.workers() == {}


def test_a_producer_without_shoal_is_told_by_the_code_of_redis(admin: "redis.Redis", own_queue: Queue) -> None:
    arguments = msgpack.packb({"lane": "bulk", "client": "me", "jobs": [{"id": "a", "job": "x"}]})
    admin.config_set("maxmemory", 1)
    with pytest.raises(redis.OutOfMemoryError):
        admin.eval(scripts.PUT.text, 1, own_queue.keys.root, arguments)
    assert own_queue.backlog()["bulk"] == 0


@pytest.mark.wide
def test_the_service_refuses_stays_ready_and_recovers(
    own_redis: RedisServer, admin: "redis.Redis", tiny_source: Path, home: Path, tmp_path: Path
) -> None:
    settings = {"redis_url": own_redis.url, "model": tiny_source, "home": home, "cache_mb": 1}
    with service(tmp_path, **settings) as running, Client(own_redis.url) as client:
        wait_until(running.is_ready)
        assert running.ask("POST", "/embed", {"inputs": "storm"}).status == 200
        limit(admin)
        fill(admin)
        admin.config_set("maxmemory", 1)
        wait_until(client.pool.workers)
        (worker_id,) = client.pool.workers()
        for path, body in (("/embed", {"inputs": "rain"}), ("/v1/jobs", {"op": "embed", "inputs": "rain"})):
            refused = running.ask("POST", path, body)
            assert (refused.status, refused.body["error"]["code"]) == (429, "overloaded")
            assert "no memory left" in refused.body["error"]["message"]
            assert int({name.lower(): value for name, value in refused.headers.items()}["retry-after"]) >= 1
        beats = admin.pttl(client.keys.worker(worker_id))
        wait_until(lambda: admin.pttl(client.keys.worker(worker_id)) > beats)  # the next heartbeat
        wait_until(running.is_ready)
        assert "no memory left" not in json.dumps(running.ask("GET", "/info").body)
        admin.delete("filler")
        admin.config_set("maxmemory", 0)
        assert running.ask("POST", "/embed", {"inputs": "rain"}).status == 200
        wait_until(lambda: list(client.pool.workers()) == [worker_id])


@pytest.mark.parametrize("policy", ["volatile-ttl", "noeviction"])
def test_a_worker_that_starts_warns_of_a_policy_by_which_redis_evicts_jobs_or_results(
    own_queue: Queue, admin: "redis.Redis", encoder: Encoder, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.config_set("maxmemory-policy", policy)
    stopping = Event()
    worker = Worker(own_queue.consumer(), encoder, {}, Bucketing(4_096), stopping=stopping, before_pass=stopping.set)
    with caplog.at_level("WARNING"):
        worker.run()
    told = "config set maxmemory-policy noeviction" in caplog.text
    assert told == (policy in caplog.text) == (policy != "noeviction")
