"""Redis gone, full, or back without its data: clients and workers know at once, and go on when it is back."""

import pytest
from conftest import RedisServer
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.errors import Unavailable
from shoal.operations import Embed


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
