"""Workers as real processes, which are started, stopped, killed, and left without Redis."""

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from process import FewFiles, Process
from queues import queue_of

from shoal import Client
from shoal.contract.keys import Keys
from shoal.errors import Unavailable
from shoal_workers.process.processors import available

Start = Callable[..., Process]
NUM_JOBS = 60

#: Number of indexes with more files than a worker may open at its start.
NUM_INDEXES = 60


@pytest.fixture
def start(home: Path, tiny_model: Path, tiny_source: Path, tmp_path: Path, keys: Keys, redis_url: str) -> Start:
    def start_worker(kind: type[Process] = Process, **settings: Any) -> Process:
        usual = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home}
        usual |= {"model": tiny_source, "precision": "f32", "threads": 1}
        return kind(tmp_path / "worker.log", "worker", **(usual | settings))

    return start_worker


def num_pending(client: Client) -> int:
    redis, keys = queue_of(client).redis, client.keys
    return sum(redis.zcard(keys.held(worker.decode())) for worker in redis.smembers(keys.holders))


def assert_all_done(client: Client, job_ids: list[str]) -> None:
    for job_id in job_ids:
        assert client.job(job_id).result(PATIENCE_S).tokens
        assert queue_of(client).redis.llen(client.keys.result(job_id)) == 1
    assert sum(queue_of(client).backlog().values()) == 0


def suspend(client: Client, process: Process) -> None:
    """Suspend the process, and return once Redis has executed all commands of the process."""
    process.send(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    queue_of(client).ping()


def suspend_at_work(client: Client, process: Process) -> list[str]:
    """Suspend the worker while it has jobs, and return the ids of all jobs that were submitted.

    On a busy machine, the worker may answer all jobs before this process sees one. Then more are submitted.
    """
    job_ids: list[str] = []
    suspend(client, process)
    while not num_pending(client):
        if not any(queue_of(client).backlog().values()):
            texts = ["storm in europe", "rain"] * 100
            job_ids += [client.submit("embed", texts, lane="bulk").id for _ in range(NUM_JOBS)]
        process.send(signal.SIGCONT)
        wait_until(lambda: num_pending(client) or not any(queue_of(client).backlog().values()))
        suspend(client, process)
    return job_ids


def test_a_worker_announces_itself_serves_and_leaves(start: Start, client: Client, index_folder: Path) -> None:
    with start(indexes=index_folder) as process:
        wait_until(client.pool.ready)
        (about,) = client.pool.ready().values()
        assert len(client.search("storm europe", k=3)) == 3
        assert process.terminate() == 0
    assert (about["dimension"], about["engine"], about["precision"], about["threads"]) == (32, "openvino", "f32", 1)
    assert about["indexes"]["default"]["count"] == 64
    assert client.pool.workers() == {}


def test_killed_under_load_it_loses_nothing(start: Start, client: Client) -> None:
    with start() as first:
        wait_until(client.pool.ready)
        job_ids = suspend_at_work(client, first)
        first.kill()
    assert num_pending(client) > 0
    with start() as second:
        assert_all_done(client, job_ids)
        assert second.terminate() == 0


@pytest.mark.wide
@pytest.mark.skipif(available() < 2, reason="needs two processors")
def test_a_worker_takes_the_threads_of_one_that_dies(start: Start, client: Client) -> None:
    def has_threads(worker: Process, number: int) -> bool:
        return number in {one["threads"] for one in client.pool.ready().values() if one["pid"] == worker.pid}

    with start(threads=0) as first:
        wait_until(client.pool.ready)
        with start(threads=0) as second:
            wait_until(lambda: has_threads(second, int(available()) // 2))
            first.kill()
            wait_until(lambda: has_threads(second, int(available())))
            assert len(client.embed(["storm"])) == 1
            assert second.terminate() == 0


def reaches_redis(client: Client) -> bool:
    with suppress(Unavailable):
        return client.run(lambda own: own.queue.now()) > 0
    return False


@pytest.mark.wide
def test_a_restart_of_redis_under_load_loses_no_job(start: Start, own_redis: RedisServer, keys: Keys) -> None:
    with (
        Client(own_redis.url, key_prefix=keys.prefix, pool=keys.pool) as client,
        start(redis_url=own_redis.url) as process,
    ):
        wait_until(client.pool.ready)
        job_ids = suspend_at_work(client, process)
        own_redis.stop()
        process.send(signal.SIGCONT)
        wait_until(lambda: "trying until it does" in process.output)
        own_redis.start()
        wait_until(lambda: reaches_redis(client))  # a client tries to connect ten times a second
        assert_all_done(client, job_ids)
        assert process.terminate() == 0


@pytest.mark.wide
def test_a_worker_starts_before_redis_and_stops_without_it(start: Start, own_redis: RedisServer, keys: Keys) -> None:
    own_redis.stop()
    with start(redis_url=own_redis.url) as process:
        wait_until(lambda: "trying until it does" in process.output)
        own_redis.start()
        with Client(own_redis.url, key_prefix=keys.prefix, pool=keys.pool, timeout_s=PATIENCE_S) as client:
            assert np.shape(client.embed("storm")) == (32,)
        own_redis.stop()
        wait_until(lambda: process.output.count("trying until it does") == 2)
        assert process.terminate() == 0


@pytest.mark.wide
def test_a_worker_serves_many_indexes(start: Start, client: Client, index_folder: Path, tmp_path: Path) -> None:
    for number in range(NUM_INDEXES):
        shutil.copytree(index_folder, tmp_path / "indexes" / f"i{number}")
    with start(FewFiles, index_home=tmp_path / "indexes") as worker:
        wait_until(client.pool.workers)
        (about,) = client.pool.workers().values()
        assert (len(about["indexes"]), about.get("index_errors", {})) == (NUM_INDEXES, {})
        for name in about["indexes"]:
            assert client.search("storm europe", k=1, index=name)[0]["text"] == "storm europe"
        assert worker.terminate() == 0
