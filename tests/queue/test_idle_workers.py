"""Idle workers: one job wakes one of them, and every job is taken as soon as any is idle."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.operations import Embed
from shoal.queue.delivery import Delivery

NUM_WORKERS = 12


class Idle:
    """A worker that waits until it has got a job. It takes one: others are left to the others."""

    def __init__(self, queue: Queue, name: str):
        self.consumer = queue.consumer(name)
        self.taken: list[Delivery] = []
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.start = self._thread.start

    def _run(self) -> None:
        while not self.taken and not self.ending.is_set():
            self.taken = self.consumer.take(dict.fromkeys(LANES, 1), 0.5, takes_suspects=True)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextmanager
def idle_workers(queue: Queue) -> Iterator[list[Idle]]:
    """Workers that wait, all of which have begun to."""
    workers = [Idle(queue, f"w{n}") for n in range(NUM_WORKERS)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: num_waiting(queue) == NUM_WORKERS)
        yield workers
    finally:
        for worker in workers:
            worker.ending.set()
        for worker in workers:
            worker.join()


def num_waiting(queue: Queue) -> int:
    """The number of connections that block."""
    return sum(about["cmd"] == "blpop" and "b" in about["flags"] for about in queue.redis.client_list())


def put(queue: Queue, num_jobs: int, lane: str = "interactive", num_texts: int = 1) -> None:
    """Put jobs, one after the other."""
    for _ in range(num_jobs):
        queue.put(lane, [Embed(["storm"] * num_texts, reply_to="me")])


def take_one_each(workers: list[Idle]) -> None:
    """Fail unless each of the workers gets one job."""
    for worker in workers:
        worker.join()
    assert [len(worker.taken) for worker in workers] == [1] * NUM_WORKERS


def test_jobs_that_are_pushed_and_wake_no_worker_are_taken_by_those_that_look(queue: Queue) -> None:
    with idle_workers(queue) as workers:
        queue.redis.script_flush()
        for _ in workers:
            queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"]).pack())
        take_one_each(workers)


def test_one_job_wakes_one_worker(own_redis: RedisServer, keys: Keys) -> None:
    queue = Queue.connect(own_redis.url, keys)
    for number in range(1, 4):
        put(queue, 1)
        assert queue.redis.llen(keys.of_lane("interactive", "wake")) == 1
        assert len(queue.take(f"w{number}", LANES, 9)) == 1
        assert not queue.redis.exists(keys.of_lane("interactive", "wake"))
    queue.close()


@pytest.mark.parametrize("is_full", [False, True])
def test_who_leaves_jobs_behind_wakes_the_next(own_redis: RedisServer, keys: Keys, is_full: bool) -> None:
    queue = Queue.connect(own_redis.url, keys)
    put(queue, 2, "bulk")
    if is_full:
        queue.redis.config_set("maxmemory", 1)
    marker = keys.of_lane("bulk", "wake")
    assert queue.redis.lpop(marker) == b""  # by a worker that dies at once
    assert len(queue.take("w", LANES, 1)) == 1
    assert queue.redis.llen(marker) == 1
    assert len(queue.take("w", LANES, 1)) == 1
    assert not queue.redis.exists(marker)
    queue.close()


def test_a_worker_that_waits_is_given_a_suspect(queue: Queue) -> None:
    put(queue, 1)
    queue.take("dead", LANES, 1)
    with idle_workers(queue) as workers:
        queue.die()
        wait_until(lambda: any(worker.taken for worker in workers))
        assert [one.deaths for worker in workers for one in worker.taken] == [1]


@pytest.mark.parametrize(("lane", "num_texts"), [("interactive", 1), ("bulk", 64)])
def test_as_many_jobs_as_idle_workers_are_taken_by_one_each(queue: Queue, lane: str, num_texts: int) -> None:
    with idle_workers(queue) as workers:
        queue.put(lane, [Embed(["storm"] * num_texts, reply_to="me") for _ in workers])
        take_one_each(workers)
