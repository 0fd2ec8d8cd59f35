"""The metrics of a pool as Redis has it at the time of a scrape: its lanes, its results, and Redis itself."""

import re
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from shoal.queue.lane import LaneLimits, LaneLoad
from shoal.queue.producer import Producer
from shoal.viewers.pool_snapshot import PoolSnapshot

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


async def read_memory(queue: Producer) -> dict[bytes, bytes]:
    """Return the lines of Redis's INFO that tell its memory. Raises a ShoalError where the user may not ask."""
    return dict(_MEMORY.findall(await queue.commands.execute("INFO", "memory")))


def describe(pool: PoolSnapshot | None, memory: Mapping[bytes, bytes] | None) -> Iterator[Metric]:
    """Yield the metrics of Redis and of the lanes and results; without Redis, the one that says so."""
    yield GaugeMetricFamily("shoal_redis_up", "1 if Redis answers, else 0.", int(pool is not None))
    if pool is None:
        return
    if memory is not None:
        used, most = int(memory[b"used_memory"]), int(memory[b"maxmemory"])
        yield GaugeMetricFamily("shoal_redis_memory_bytes", "Memory that Redis has in use.", used)
        meaning = "Memory that Redis may use; 0: no limit is set."
        yield GaugeMetricFamily("shoal_redis_max_memory_bytes", meaning, most)
    for name, text, value_of in _LANE_GAUGES:
        family = GaugeMetricFamily(name, text, labels=("lane",))
        for lane, load in pool.loads.items():
            family.add_metric((lane,), value_of(load, pool.limits))
        yield family
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
