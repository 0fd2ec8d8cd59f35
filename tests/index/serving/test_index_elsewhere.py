"""A pool in which some workers serve an index and others do not: no client notices."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from process import Process
from queues import Queue
from service import service

from shoal import Client
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.operations import Embed, Search
from shoal_workers.loop.admission import FIRST_PAUSE_S
from shoal_workers.loop.worker import Worker

#: Number of requests, and of clients that send them at the same time.
NUM_ASKED, NUM_CLIENTS = 300, 8


@pytest.mark.wide
def test_every_search_reaches_a_worker_that_serves_the_index(
    home: Path, tiny_source: Path, redis_url: str, keys: Keys, client: Client, index_folder: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home}
    settings |= {"model": tiny_source, "precision": "f32", "threads": 1}
    with ExitStack() as stack, service(tmp_path, **settings, indexes=index_folder) as pool:
        for n in range(2):
            stack.enter_context(Process(tmp_path / f"bare-{n}.log", "worker", **settings, index_home=tmp_path / "none"))
        wait_until(lambda: len(client.pool.ready()) == 3)

        def search(number: int) -> int:
            return pool.ask("POST", "/search", {"queries": f"storm {number}", "k": 1}).status

        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            assert set(clients.map(search, range(NUM_ASKED))) == {200}
        jobs = [client.submit("search", "storm", k=1) for _ in range(30)]
        assert [job.result().status for job in jobs] == ["done"] * len(jobs)
        assert pool.ask("POST", "/search", {"queries": "storm", "index": "other"}).status == 404


@pytest.mark.parametrize("died_of_it", [False, True])
def test_a_job_that_is_given_back_comes_to_the_next_worker_as_it_was(queue: Queue, died_of_it: bool) -> None:
    job = Search(["storm"] * 33)
    queue.put("bulk", [job], client="web")
    (taken,) = queue.take("a", LANES, 64)
    assert taken.client == "web"
    if died_of_it:
        queue.die()
        (taken,) = queue.take("b", LANES, 64)
        assert taken.deaths == 1
    queue.consumer(taken.worker).give_back([taken])
    assert queue.status(job.id)[0] == "queued"
    (again,) = queue.take("c", LANES, 64)
    assert replace(again, worker=taken.worker) == taken
    queue.consumer(taken.worker).give_back([taken])  # the worker no longer has the job
    assert queue.cancel(job.id) == "cancelled"
    assert queue.consumer("c").lost([again]) == [again]


def test_a_job_that_is_given_back_waits_behind_the_others_of_its_client(queue: Queue) -> None:
    queue.put("bulk", jobs := [Search(["storm"], index=name) for name in ("a", "b", "c")])
    queue.consumer("w").give_back(queue.take("w", ["bulk"], 1))
    assert [one.key for one in queue.take("w", ["bulk"], 9)] == [jobs[n].id for n in (1, 2, 0)]


def test_a_suspect_for_another_worker_keeps_no_job_from_this_one(queue: Queue, worker: Worker) -> None:
    queue.put("interactive", [Embed(["the first pass is slow"])])
    assert worker.step() == 1
    queue.pool.announce("other", {"indexes": {"x": {"count": 1}}})
    queue.put("interactive", [Search(["storm"], index="x")])
    queue.take("dead", LANES, 1)
    queue.die("dead")
    queue.put("interactive", [Embed(["rain"])])
    assert [worker.step(block_s=0) for _ in range(2)] == [0, 1]
    began = time.monotonic()
    assert sum(worker.step() for _ in range(20)) == 0
    assert time.monotonic() - began >= 20 * FIRST_PAUSE_S
