"""Redis gone, full, or back without its data: clients and workers know at once, and go on when it is back."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import RedisServer, wait_until
from queues import Queue, queue_of

from shoal import Client
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import Overloaded, ShoalError, Unavailable, UnknownJob
from shoal.operations import Embed
from shoal.queue.answer import Answer


def test_a_redis_that_came_back_empty_is_used_as_a_new_one(queue: Queue) -> None:
    queue.put("interactive", [Embed(["storm"])])
    taken = queue.take("a", LANES, 1)
    queue.redis.delete(*queue.redis.keys(f"{queue.keys.root}:*".replace("{", "[{]")))
    assert queue.consumer("a").lost(taken) == taken
    assert queue.take("a", LANES, 1) == []
    queue.put("interactive", [Embed(["storm"])])
    (delivery,) = queue.take("a", LANES, 1)
    assert delivery.deaths == 0


def test_without_redis_everything_says_unavailable(own_redis: RedisServer) -> None:
    queue = Queue.connect(own_redis.url, Keys())
    queue.ping()
    own_redis.stop()
    for use in (
        queue.ping,
        queue.backlog,
        lambda: queue.put("interactive", [Embed(["storm"])]),
        lambda: queue.take("a", LANES, 1),
        lambda: queue.inbox("me").wait(),
        lambda: queue.wait_result("x", 1),
        lambda: queue.consumer("a").reclaim(()),
    ):
        with pytest.raises(Unavailable, match="check that it runs"):
            use()
    queue.close()


def test_a_full_redis_refuses_jobs_and_still_answers_those_it_has(own_redis: RedisServer) -> None:
    queue = Queue.connect(own_redis.url, Keys())
    job = Embed(["storm"])
    queue.put("interactive", [job])
    queue.redis.config_set("maxmemory", 1)
    with pytest.raises(Overloaded, match="no memory left"):
        queue.put("interactive", [Embed(["storm"])])
    (delivery,) = queue.take("a", LANES, 1)
    assert queue.start("a", [delivery]) == [True]
    assert queue.reply([Answer(delivery, Reply(job.id), None)]) == 1
    assert queue.status(job.id)[0] == "done"
    queue.close()


def test_a_url_that_cannot_be_read() -> None:
    with pytest.raises(Unavailable, match="write redis://host:port/db"):
        Queue.connect("localhost:6379", Keys())


def test_without_redis_calls_end_and_with_it_they_go_on(own_redis: RedisServer) -> None:
    with Client(own_redis.url) as client:
        with pytest.raises(UnknownJob):
            client.job("nobody").status()
        own_redis.stop()
        for use in (client.embed, client.search, lambda text: client.submit("embed", text)):
            with pytest.raises(Unavailable):
                use("storm")
        own_redis.start()
        assert client.submit("embed", "storm").status() == "queued"


def test_those_who_wait_learn_that_redis_went(own_redis: RedisServer) -> None:
    with Client(own_redis.url) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.embed, "storm")
        wait_until(lambda: queue_of(client).backlog()["interactive"] == 1)
        own_redis.stop()
        error = waiting.exception()
    assert isinstance(error, ShoalError)
    assert error.code == "unavailable"
