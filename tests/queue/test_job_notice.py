"""The notice that a job has come: what ends its read, and what becomes of it where Redis fails or refuses."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from conftest import PATIENCE_S, RedisServer, wait_until
from queues import Queue

from shoal.broker.broker import Broker
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.operations import Embed
from shoal.queue import consumer
from shoal.queue.consumer import JobNotice

INTERACTIVE = "interactive"


@pytest.fixture(autouse=True)
def block_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read ends when a job comes, or Redis goes."""
    monkeypatch.setattr(consumer, "BLOCK_S", PATIENCE_S)


@pytest.fixture
def notice(queue: Queue) -> JobNotice:
    """The notice of the jobs of a lane."""
    return queue.consumer().notice(INTERACTIVE)


def has_ended(notice: JobNotice, within_s: float) -> bool:
    """Return true if the read ends in that time."""
    until = time.monotonic() + within_s
    while not notice.has_come and time.monotonic() < until:
        time.sleep(0.001)
    return notice.has_come


def wait_until_asked(queue: Queue) -> None:
    """Wait until Redis has the read."""
    wait_until(lambda: any(one["cmd"] == "blmove" and "b" in one["flags"] for one in queue.redis.client_list()))


@pytest.fixture
def broker(own_redis: RedisServer) -> Iterator[Broker]:
    """A broker on a Redis of the test's own."""
    with closing(Broker.connect(own_redis.url)) as broker:
        yield broker


def test_a_job_ends_the_read_and_is_not_taken(queue: Queue, notice: JobNotice) -> None:
    notice.ask()
    wait_until_asked(queue)
    assert not has_ended(notice, 0)
    queue.put("interactive", [Embed(["storm"])])
    assert has_ended(notice, PATIENCE_S)
    assert len(queue.take("w", ["interactive"], 10)) == 1


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


def test_a_refused_read_is_said_once_and_is_not_repeated_at_once(
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


def test_where_few_connections_are_allowed_none_is_held(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Broker.connect(f"{own_redis.url}&max_connections=4")) as broker:
        notice = JobNotice(broker, Keys().of_lane("interactive", "wake"))
        notice.ask()
        assert not notice.is_asked
    assert "max_connections" in caplog.text
