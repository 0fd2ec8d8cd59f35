"""The number of workers that share processors, and their share of them."""

import pytest
from blocking import Pool
from conftest import wait_until
from queues import Queue

from shoal.settings import Settings
from shoal_workers.process import processors
from shoal_workers.process.heartbeat import Heartbeat
from shoal_workers.service.service import share_of

GROUP = processors.group()


@pytest.fixture
def pool(queue: Queue) -> Pool:
    return Pool(queue.broker, queue.keys, alive_s=3_600)


def test_a_heartbeat_counts_workers_on_the_same_processors_that_start_and_leave(pool: Pool) -> None:
    counts: list[int] = []
    heart = Heartbeat(pool, "this", dict, group=GROUP, note_sharing=counts.append)
    heart.beat()
    pool.announce("other", group=GROUP)
    pool.announce("elsewhere", group="others")
    pool.announce("alone")
    heart.beat()
    assert pool.sharing(GROUP) == {"this", "other"}
    pool.leave("other", GROUP)
    heart.beat()
    assert counts == [1, 2, 1]


def test_a_dead_worker_counts_until_its_heartbeat_expires(pool: Pool) -> None:
    settings = Settings(threads=0)
    alone = share_of(settings, pool).threads
    pool.announce("other", group=GROUP)
    assert share_of(settings, pool).threads == max(1, alone // 2)
    Pool(pool.broker, pool.keys, alive_s=0.05).announce("other", group=GROUP)
    wait_until(lambda: not pool.sharing(GROUP))
    assert share_of(settings, pool).threads == alone
    assert pool.announce("this", group=GROUP) == 1


def test_when_the_clock_of_redis_is_set_back_no_neighbour_counts_for_longer(queue: Queue, pool: Pool) -> None:
    key = pool.keys.processors(GROUP)
    for worker_id in ("this", "other"):
        pool.announce(worker_id, group=GROUP)
        queue.redis.zincrby(key, 20_000, worker_id)
    pool.announce("this", group=GROUP)
    until_ms = dict(queue.redis.zrange(key, 0, -1, withscores=True))
    assert until_ms[b"other"] == until_ms[b"this"]
