"""Idle workers of a large pool: few of them block on the streams, and every job is taken as soon as any is idle."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue

import shoal.queue.consumer
from shoal.jobs import LANES
from shoal.keys import Keys
from shoal.operations import Embed
from shoal.queue.consumer import GROUP, MAX_LISTENING, Consumer
from shoal.queue.delivery import Delivery
from shoal.queue.lane import SOURCES
from shoal.queue.pool import Pool
from shoal_workers.admission import Admission, Limits
from shoal_workers.process.measurements import Measurements

NUM_WORKERS = 3 * MAX_LISTENING

ROOM = dict.fromkeys(SOURCES, 64)

#: Room for one job: a worker that happens to look when many come leaves the others.
ROOM_FOR_ONE = dict.fromkeys(SOURCES, 1)


class Idle:
    """A worker that is announced and waits until it has got jobs."""

    def __init__(self, queue: Queue, name: str):
        Pool(queue.broker, queue.keys, alive_s=2 * PATIENCE_S).announce(name, {})
        self.consumer = queue.consumer(name)
        self.taken: list[Delivery] = []
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self.taken and not self.ending.is_set():
            self.taken = self.consumer.take(ROOM_FOR_ONE, block_s=0.5)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture(autouse=True)
def sleep_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that sleep look for jobs when they are woken only."""
    monkeypatch.setattr(shoal.queue.consumer, "SLEEP_S", 2 * PATIENCE_S)


@contextmanager
def idle_workers(queue: Queue, num_workers: int = NUM_WORKERS) -> Iterator[list[Idle]]:
    """Workers that wait, all of which have begun to."""
    workers = [Idle(queue, f"w{n}") for n in range(num_workers)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: num_waiting(queue, "xreadgroup") + num_waiting(queue, "blpop") == num_workers)
        yield workers
    finally:
        for worker in workers:
            worker.ending.set()
        for worker in workers:
            worker.join()


def num_waiting(queue: Queue, command: str) -> int:
    """The number of connections that a command blocks."""
    return sum(about["cmd"] == command and "b" in about["flags"] for about in queue.redis.client_list())


def put(queue: Queue, num_jobs: int, lane: str = "interactive") -> None:
    """Puts jobs of one text."""
    queue.put(lane, [Embed(["storm"], reply_to="me") for _ in range(num_jobs)])


def sleeper(queue: Queue, name: str) -> Consumer:
    """A worker that has begun to sleep, as one that dies at once would."""
    consumer = queue.consumer(name)
    assert consumer.take(ROOM, block_s=0.001) == []
    assert consumer.is_asleep
    return consumer


def large_pool(queue: Queue, listen_s: float = PATIENCE_S) -> None:
    """Announces more workers than listen, and lets as many as may listen for so long."""
    pool = Pool(queue.broker, queue.keys, alive_s=2 * PATIENCE_S)
    for n in range(MAX_LISTENING + 1):
        pool.announce(f"w{n}", {})
    until_ms = 1_000 * (queue.redis.time()[0] + listen_s)
    queue.redis.zadd(queue.keys.listening, {f"w{n}": until_ms for n in range(MAX_LISTENING)})
    queue.redis.expire(queue.keys.listening, int(PATIENCE_S))


def test_of_many_idle_workers_few_block_on_the_streams(queue: Queue) -> None:
    with idle_workers(queue):
        num_sleeping = NUM_WORKERS - MAX_LISTENING
        wait_until(
            lambda: (num_waiting(queue, "xreadgroup"), num_waiting(queue, "blpop")) == (MAX_LISTENING, num_sleeping)
        )


def test_all_workers_of_a_small_pool_block_on_the_streams(queue: Queue) -> None:
    with idle_workers(queue, MAX_LISTENING):
        wait_until(lambda: num_waiting(queue, "xreadgroup") == MAX_LISTENING)
        assert not queue.redis.exists(queue.keys.listening, queue.keys.sleeping)


@pytest.mark.parametrize("lane", LANES)
def test_as_many_jobs_as_idle_workers_are_taken_by_one_each(queue: Queue, lane: str) -> None:
    with idle_workers(queue) as workers:
        put(queue, NUM_WORKERS, lane)
        for worker in workers:
            worker.join()
        assert [len(worker.taken) for worker in workers] == [1] * NUM_WORKERS


def test_jobs_of_a_program_without_the_script_are_taken_in_the_same_way(queue: Queue) -> None:
    with idle_workers(queue) as workers:
        for _ in workers:
            queue.redis.xadd(queue.keys.lane("interactive"), {"job": Embed(["storm"]).pack()})
        for worker in workers:
            worker.join()
        assert [len(worker.taken) for worker in workers] == [1] * NUM_WORKERS


def test_jobs_of_the_overflow_are_taken_in_the_same_way(queue: Queue) -> None:
    with idle_workers(queue) as workers:
        queue.put("bulk", [Embed(["storm"] * 64, reply_to="me") for _ in workers])
        for worker in workers:
            worker.join()
        assert [len(worker.taken) for worker in workers] == [1] * NUM_WORKERS


def test_after_redis_has_forgotten_its_scripts_workers_are_woken_all_the_same(queue: Queue) -> None:
    with idle_workers(queue) as workers:
        wait_until(lambda: num_waiting(queue, "xreadgroup") == MAX_LISTENING)
        queue.redis.script_flush()
        put(queue, NUM_WORKERS)
        for worker in workers:
            worker.join()


def test_the_place_of_a_worker_that_died_while_it_listened_is_free_after_its_time(queue: Queue) -> None:
    large_pool(queue, listen_s=-1)
    assert not sleeps(queue)


def is_woken(queue: Queue, name: str) -> bool:
    """True if the worker of that name ends its sleep."""
    return bool(queue.redis.exists(queue.keys.wake(name)))


def sleeps(queue: Queue) -> bool:
    """True if a further worker is told to sleep."""
    consumer = queue.consumer("further")
    consumer.take(ROOM, block_s=0.001)
    return consumer.is_asleep


def test_a_worker_that_was_woken_and_takes_jobs_wakes_another(queue: Queue) -> None:
    large_pool(queue)
    first, second = sleeper(queue, "first"), sleeper(queue, "second")
    put(queue, 1)
    assert queue.consumer("w0").take(ROOM)  # it hands its place on to the first
    assert is_woken(queue, "first")
    assert not is_woken(queue, "second")
    put(queue, 1)
    assert first.take(ROOM)
    assert is_woken(queue, "second")
    assert second.take(ROOM, block_s=0.001) == []
    assert not second.is_asleep


def test_a_worker_that_takes_jobs_before_it_was_woken_is_not_woken(queue: Queue) -> None:
    large_pool(queue)
    first = sleeper(queue, "first")
    sleeper(queue, "second")
    put(queue, 2)
    assert len(first.take(ROOM)) == 2
    put(queue, 1)
    assert queue.consumer("w0").take(ROOM)
    assert is_woken(queue, "second")
    assert not is_woken(queue, "first")


def test_after_redis_clock_was_set_back_workers_listen(queue: Queue) -> None:
    large_pool(queue)
    assert sleeps(queue)
    for name, until_ms in queue.redis.zrange(queue.keys.listening, 0, -1, withscores=True):
        queue.redis.zadd(queue.keys.listening, {name: until_ms + 3_600_000 + 2_000 * PATIENCE_S})
    assert not sleeps(queue)


def test_with_the_memory_full_workers_are_woken(own_redis: RedisServer, keys: Keys) -> None:
    queue = Queue.connect(own_redis.url, keys)
    queue.join()
    try:
        large_pool(queue)
        sleeper(queue, "first")
        put(queue, 1)
        queue.redis.config_set("maxmemory", 1)
        assert queue.consumer("w0").take(ROOM)
        assert is_woken(queue, "first")
    finally:
        queue.close()


class TestLeaving:
    """A worker that ends in order has no place any more."""

    def test_one_that_listened_wakes_another(self, queue: Queue) -> None:
        large_pool(queue)
        sleeper(queue, "first")
        queue.consumer("w0").leave()
        assert is_woken(queue, "first")

    def test_one_that_slept_is_not_woken(self, queue: Queue) -> None:
        large_pool(queue)
        first = sleeper(queue, "first")
        sleeper(queue, "second")
        first.leave()
        queue.consumer("w0").leave()
        assert is_woken(queue, "second")
        assert not is_woken(queue, "first")


class TestLostJobs:
    """A job whose delivery did not arrive, as the connection broke."""

    @pytest.fixture
    def admission(self, queue: Queue) -> Admission:
        """The admission of a worker that sleeps and has lost a job."""
        large_pool(queue)
        pool, nothing = Pool(queue.broker, queue.keys), cast(Any, None)
        consumer = sleeper(queue, "first")
        put(queue, 1)
        queue.redis.xreadgroup(GROUP, "first", {queue.keys.lane("interactive"): ">"})
        return Admission(consumer, pool, nothing, {}, Limits(), None, nothing, nothing, Measurements())

    def test_a_worker_that_sleeps_takes_it_back_after_the_outage(self, admission: Admission) -> None:
        admission.distrust_heartbeats()
        assert admission._claim([])

    def test_without_an_outage_it_need_not_look(self, admission: Admission) -> None:
        assert admission._claim([]) is None
