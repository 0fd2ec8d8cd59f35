"""Workers that wait for jobs: a job wakes one idle worker, and a worker that computes has a notice of jobs."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue
from tcp_proxy import Proxy

from shoal.broker.broker import Broker
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.operations import Embed
from shoal.queue import consumer
from shoal.queue.consumer import Delivery, JobNotice

NUM_WORKERS = 12


class Idle:
    """A worker that waits for a job in a thread, takes it, and ends."""

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
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextmanager
def idle_workers(queue: Queue) -> Iterator[list[Idle]]:
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
    return sum(about["cmd"] == "blpop" and "b" in about["flags"] for about in queue.redis.client_list())


def put(queue: Queue, num_jobs: int, lane: str = "interactive", num_texts: int = 1) -> None:
    for _ in range(num_jobs):
        queue.put(lane, [Embed(["storm"] * num_texts, reply_to="me")])


def take_one_each(workers: list[Idle]) -> None:
    for worker in workers:
        worker.join()
    assert [len(worker.taken) for worker in workers] == [1] * NUM_WORKERS


def test_pushed_jobs_which_wake_no_worker_are_taken_at_the_next_look(queue: Queue) -> None:
    with idle_workers(queue) as workers:
        queue.redis.script_flush()
        for _ in workers:
            queue.redis.rpush(queue.keys.lane("bulk"), Embed(["storm"]).pack())
        take_one_each(workers)


def test_one_job_wakes_one_worker(own_queue: Queue) -> None:
    marker = own_queue.keys.of_lane("interactive", "wake")
    for number in range(1, 4):
        put(own_queue, 1)
        assert own_queue.redis.llen(marker) == 1
        assert len(own_queue.take(f"w{number}", LANES, 9)) == 1
        assert not own_queue.redis.exists(marker)


@pytest.mark.parametrize("is_full", [False, True])
def test_who_leaves_jobs_behind_wakes_the_next(own_queue: Queue, is_full: bool) -> None:
    put(own_queue, 2, "bulk")
    if is_full:
        own_queue.redis.config_set("maxmemory", 1)
    marker = own_queue.keys.of_lane("bulk", "wake")
    assert own_queue.redis.lpop(marker) == b""  # taken by a worker that dies at once
    assert len(own_queue.take("w", LANES, 1)) == 1
    assert own_queue.redis.llen(marker) == 1
    assert len(own_queue.take("w", LANES, 1)) == 1
    assert not own_queue.redis.exists(marker)


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


# The notice of jobs


@pytest.fixture(autouse=True)
def block_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "BLOCK_S", PATIENCE_S)


@pytest.fixture
def notice(queue: Queue) -> JobNotice:
    return queue.consumer().notice("interactive")


def has_ended(notice: JobNotice, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not notice.has_come and time.monotonic() < until:
        time.sleep(0.001)
    return notice.has_come


def wait_until_asked(queue: Queue) -> None:
    wait_until(lambda: any(one["cmd"] == "blmove" and "b" in one["flags"] for one in queue.redis.client_list()))


@pytest.fixture
def broker(own_redis: RedisServer) -> Iterator[Broker]:
    with closing(Broker.connect(own_redis.url)) as broker:
        yield broker


def test_a_job_ends_the_read_and_is_not_taken(queue: Queue, notice: JobNotice) -> None:
    notice.ask()
    wait_until_asked(queue)
    assert not has_ended(notice, 0)
    queue.put("interactive", [Embed(["storm"])])
    assert has_ended(notice, PATIENCE_S)
    assert len(queue.take("w", ["interactive"], 10)) == 1


def test_a_read_of_a_lane_without_jobs_ends_and_is_repeated(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "BLOCK_S", 0.001)
    notice = queue.consumer().notice("interactive")
    for _ in range(2):
        notice.ask()
        assert has_ended(notice, PATIENCE_S)


def test_an_idle_worker_is_woken_by_the_same_job(queue: Queue, notice: JobNotice) -> None:
    notice.ask()
    wait_until_asked(queue)
    with ThreadPoolExecutor(1) as threads:
        idle = threads.submit(queue.take, "idle", LANES, 1, PATIENCE_S)
        wait_until(lambda: any(one["cmd"] == "blpop" and "b" in one["flags"] for one in queue.redis.client_list()))
        queue.put("interactive", [Embed(["storm"])])
        assert len(idle.result()) == 1
    assert has_ended(notice, PATIENCE_S)


def test_a_redis_that_went_away_is_asked_again_when_it_is_back(
    own_redis: RedisServer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "PAUSE_S", 0.0)
    notice = JobNotice(broker, Keys().of_lane("interactive", "wake"))
    notice.ask()
    own_redis.stop()
    assert has_ended(notice, PATIENCE_S)
    notice.ask()
    assert not notice.is_asked
    own_redis.start()
    broker.ping()
    notice.ask()
    assert notice.is_asked
    assert not has_ended(notice, 0)


def test_a_refused_read_is_logged_once_and_is_not_repeated_at_once(
    own_redis: RedisServer, broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.execute("ACL", "SETUSER", "narrow", "on", "nopass", "~*", "+@all", "-blmove")
    url = urlsplit(own_redis.url)
    with closing(Broker.connect(url._replace(netloc=f"narrow:any@{url.netloc}").geturl())) as narrow:
        notice = JobNotice(narrow, Keys().of_lane("interactive", "wake"))
        for pause_s in (0.0, 3_600.0):
            monkeypatch.setattr(consumer, "PAUSE_S", pause_s)
            notice.ask()
            assert has_ended(notice, PATIENCE_S)
            notice.ask()
            assert not notice.is_asked
        notice.ask()
        assert not notice.is_asked
    assert caplog.text.count("docs/redis-users.acl") == 1


def test_a_read_without_an_answer_ends_when_its_time_is_over(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "BLOCK_S", -PATIENCE_S)  # its time is over at once
    url = "redis://127.0.0.1:{}/0"
    with Proxy(own_redis.port) as link, closing(Broker.connect(url.format(link.port), PATIENCE_S)) as broker:
        broker.ping()
        link.hold()
        notice = JobNotice(broker, Keys().of_lane("interactive", "wake"))
        notice.ask()
        assert has_ended(notice, PATIENCE_S)
