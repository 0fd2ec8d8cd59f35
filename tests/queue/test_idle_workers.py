"""Workers that wait for jobs: a job wakes one idle worker, and a worker that computes looks for jobs."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.operations import Embed
from shoal.queue.consumer import Delivery

NUM_WORKERS = 12


@contextmanager
def idle_workers(queue: Queue) -> Iterator[list[Future[list[Delivery]]]]:
    """Start workers that wait for a job, each in a thread; yield the futures of the jobs that they take."""
    ending = threading.Event()

    def take(name: str) -> list[Delivery]:
        consumer, taken = queue.consumer(name), list[Delivery]()
        while not taken and not ending.is_set():
            taken = consumer.take(dict.fromkeys(LANES, 1), 0.5, takes_suspects=True)
        return taken

    with ThreadPoolExecutor(NUM_WORKERS) as threads:
        workers = [threads.submit(take, f"w{n}") for n in range(NUM_WORKERS)]
        try:
            wait_until(lambda: num_waiting(queue) == NUM_WORKERS)
            yield workers
        finally:
            ending.set()


def num_waiting(queue: Queue) -> int:
    return sum(about["cmd"] == "blpop" and "b" in about["flags"] for about in queue.redis.client_list())


def put(queue: Queue, num_jobs: int, lane: str = "interactive", num_texts: int = 1) -> None:
    queue.put(lane, [Embed(["storm"] * num_texts, reply_to="me") for _ in range(num_jobs)])


def take_one_each(workers: list[Future[list[Delivery]]]) -> None:
    assert [len(worker.result(PATIENCE_S)) for worker in workers] == [1] * NUM_WORKERS


def test_pushed_jobs_that_wake_no_worker_are_taken_at_the_next_look(queue: Queue) -> None:
    with idle_workers(queue) as workers:
        queue.redis.script_flush()
        for _ in workers:
            queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"]).pack())
        take_one_each(workers)


@pytest.mark.parametrize("is_full", [False, True])
def test_one_job_wakes_one_worker_and_a_worker_that_leaves_jobs_wakes_the_next(own_queue: Queue, is_full: bool) -> None:
    for _ in range(2):
        put(own_queue, 1, "bulk")
    if is_full:
        own_queue.redis.config_set("maxmemory", 1)
    marker = own_queue.keys.of_lane("bulk", "wake")
    assert own_queue.redis.lpop(marker, 2) == [b""]  # taken by a worker that dies at once
    for num_markers in (1, 0):
        assert len(own_queue.take("w", LANES, 1)) == 1
        assert own_queue.redis.llen(marker) == num_markers
    assert own_queue.take("w", LANES, 1, block_s=1e-4) == []  # Redis would block for ever at 0.000


def test_a_worker_that_waits_is_given_a_suspect(queue: Queue) -> None:
    put(queue, 1)
    queue.take("dead", LANES, 1)
    with idle_workers(queue) as workers:
        queue.die()
        wait_until(lambda: any(worker.done() for worker in workers))
        assert [one.deaths for worker in workers if worker.done() for one in worker.result()] == [1]


@pytest.mark.parametrize(("lane", "num_texts"), [("interactive", 1), ("bulk", 64)])
def test_as_many_jobs_as_idle_workers_are_taken_by_one_each(queue: Queue, lane: str, num_texts: int) -> None:
    with idle_workers(queue) as workers:
        put(queue, NUM_WORKERS, lane, num_texts)
        take_one_each(workers)


def test_a_job_is_noticed_and_not_taken(own_queue: Queue, own_redis: RedisServer) -> None:
    consumer = own_queue.consumer("w")
    put(own_queue, 1)
    assert [consumer.has_jobs(lane) for lane in LANES] == [True, False]
    assert len(consumer.take({"interactive": 1})) == 1
    assert not consumer.has_jobs("interactive")
    own_redis.stop()
    assert not consumer.has_jobs("interactive")
