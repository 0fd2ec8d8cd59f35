"""A pool in which some workers serve an index and others do not: no client notices."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from index_versions import publish_version
from process import Process
from queues import Queue
from service import Service, service

from shoal import Client
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.operations import Search

#: Requests of each kind, and clients that send them at a time.
NUM_ASKED, NUM_CLIENTS = 300, 8


@pytest.fixture
def settings(home: Path, tiny_source: Path, redis_url: str, keys: Keys) -> dict[str, Any]:
    """The settings that all workers share."""
    shared = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    return shared | {"home": home, "model": tiny_source, "precision": "f32", "threads": 1}


def outcomes(ask: Callable[[int], object]) -> Counter[object]:
    """Return how many of the requests had each outcome."""
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        return Counter(clients.map(ask, range(NUM_ASKED)))


def search(service: Service, index: str) -> Callable[[int], object]:
    """Return a function that searches on a connection of its own, and returns the status or the error."""

    def ask(n: int) -> object:
        status, body, _ = service.ask("POST", "/search", {"queries": f"storm {n}", "k": 1, "index": index})
        return status if status == 200 else (status, body["error"]["message"])

    return ask


@pytest.mark.wide
def test_every_search_reaches_a_worker_that_serves_the_index(
    settings: dict[str, Any], client: Client, index_folder: Path, tmp_path: Path
) -> None:
    indexed = settings | {"indexes": index_folder, "index_home": tmp_path / "indexes"}
    with ExitStack() as stack, service(tmp_path, **indexed) as pool:
        for n in range(2):
            stack.enter_context(Process(tmp_path / f"bare-{n}.log", "worker", **settings, index_home=tmp_path / "none"))
        wait_until(lambda: len(client.pool.ready()) == 3)
        assert outcomes(search(pool, "default")) == {200: NUM_ASKED}
        jobs = [client.submit("search", "storm", k=1) for _ in range(30)]
        assert [job.result().status for job in jobs] == ["done"] * len(jobs)
        publish_version(tmp_path / "indexes" / "news", index_folder, "v1")
        wait_until(lambda: pool.ask("GET", "/ready?index=news").status == 200)
        assert outcomes(search(pool, "news")) == {200: NUM_ASKED}
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
    queue.consumer(taken.worker).give_back([taken])  # it has it no more
    assert queue.cancel(job.id) == "cancelled"
    assert queue.consumer("c").lost([again]) == [again]


def test_a_job_that_is_given_back_waits_behind_the_others_of_its_client(queue: Queue) -> None:
    queue.put("bulk", jobs := [Search(["storm"], index=name) for name in ("a", "b", "c")])
    queue.consumer("w").give_back(queue.take("w", ["bulk"], 1))
    assert [one.key for one in queue.take("w", ["bulk"], 9)] == [jobs[n].id for n in (1, 2, 0)]
