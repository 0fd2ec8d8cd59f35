"""The metrics of a pool as Redis has it at the time of a scrape: its lanes, its results, and Redis itself."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from prometheus_client.core import GaugeMetricFamily, Metric

from shoal.client.redis.async_client import AsyncClient
from shoal.errors import ShoalError
from shoal.queue.lane import LaneLimits, LaneLoad
from shoal.queue.unread import UnreadLoad
from shoal_api.metrics.workers import Heartbeats

#: The lines of Redis's INFO that are of interest.
_MEMORY = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)

#: Measurements of a lane: the metric, its help, and its value.
_LANE_GAUGES: tuple[tuple[str, str, Callable[[LaneLoad, LaneLimits], float]], ...] = (
    ("shoal_lane_jobs", "Unanswered jobs in the lane.", lambda load, _: load.num_jobs),
    ("shoal_lane_texts", "Texts of the unanswered jobs.", lambda load, _: load.num_texts),
    ("shoal_lane_bytes", "Size of the unanswered jobs, in bytes.", lambda load, _: load.num_bytes),
    (
        "shoal_lane_fill_ratio",
        "Share of the lane's limit on jobs, texts or bytes that is taken, whichever is the largest.",
        lambda load, limits: load.fill(limits),
    ),
    (
        "shoal_lane_oldest_job_age_seconds",
        "Time since the oldest of the jobs was put that workers hold or take next.",
        lambda load, _: load.oldest_age_s,
    ),
)


@dataclass(frozen=True, slots=True)
class PoolReading:
    """The state of a pool, as Redis has it at one moment.

    `memory` has lines of Redis's INFO; it is None where the user may not ask. A reading takes seven round trips,
    whatever the number of workers.
    """

    loads: Mapping[str, LaneLoad]
    limits: LaneLimits
    unread: UnreadLoad
    num_dead: int
    memory: Mapping[bytes, bytes] | None
    workers: Heartbeats

    @classmethod
    async def take(cls, client: AsyncClient) -> Self | None:
        """Read the pool; return None if Redis does not answer."""
        queue = client.queue
        try:
            return cls(
                await queue.loads(),
                await queue.limits(),
                await queue.unread_load(),
                await queue.num_dead(),
                await _memory(client),
                await queue.pool.workers(),
            )
        except ShoalError:
            return None


def describe(pool: PoolReading | None) -> Iterator[Metric]:
    """Yield the metrics of Redis and of the lanes and results; without Redis, the one that says so."""
    yield GaugeMetricFamily("shoal_redis_up", "1 if Redis answers, else 0.", int(pool is not None))
    if pool is None:
        return
    yield from _describe_memory(pool.memory)
    yield from _describe_lanes(pool.loads, pool.limits)
    yield GaugeMetricFamily("shoal_unread_results", "Results that were not read.", pool.unread.num_results)
    yield GaugeMetricFamily(
        "shoal_unread_result_bytes",
        "Size of these results and of idempotency keys, with their keys, in bytes.",
        pool.unread.num_bytes,
    )
    yield GaugeMetricFamily(
        "shoal_unread_result_fill_ratio",
        "This size, of the most that is accepted.",
        pool.unread.num_bytes / pool.limits.max_unread_bytes,
    )
    yield GaugeMetricFamily("shoal_dead_letters", "Dead letters: jobs that could not be answered.", pool.num_dead)


async def _memory(client: AsyncClient) -> dict[bytes, bytes] | None:
    try:
        return dict(_MEMORY.findall(await client.queue.commands.execute("INFO", "memory")))
    except ShoalError:
        return None


def _describe_memory(memory: Mapping[bytes, bytes] | None) -> Iterator[Metric]:
    if memory is None:
        return
    yield GaugeMetricFamily("shoal_redis_memory_bytes", "Memory that Redis has in use.", int(memory[b"used_memory"]))
    yield GaugeMetricFamily(
        "shoal_redis_max_memory_bytes", "Memory that Redis may use; 0: no limit is set.", int(memory[b"maxmemory"])
    )


def _describe_lanes(loads: Mapping[str, LaneLoad], limits: LaneLimits) -> Iterator[Metric]:
    for name, text, value_of in _LANE_GAUGES:
        family = GaugeMetricFamily(name, text, labels=("lane",))
        for lane, load in loads.items():
            family.add_metric((lane,), value_of(load, limits))
        yield family
