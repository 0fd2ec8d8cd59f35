"""A snapshot of a pool: the one reading of Redis for its page, the commands that show it, and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal.queue.lane import LaneLimits, LaneLoad, UnreadLoad
from shoal.queue.producer import Producer


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The state of a pool at a time by Redis's clock, in Unix seconds; `workers` has the heartbeats by worker id."""

    time_s: float
    loads: Mapping[str, LaneLoad]
    limits: LaneLimits
    unread: UnreadLoad
    num_dead: int
    workers: Mapping[str, Mapping[str, Any]]

    @classmethod
    async def take(cls, queue: Producer) -> Self:
        """Read the pool in seven round trips, whatever the number of workers.

        Raises Unavailable if Redis does not answer.
        """
        return cls(
            loads=await queue.loads(),
            limits=await queue.limits(),
            unread=await queue.unread_load(),
            num_dead=await queue.num_dead(),
            workers=await queue.pool.workers(),
            time_s=await queue.now(),
        )
