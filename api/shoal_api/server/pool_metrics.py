"""The metrics of a pool as Redis has it at the time of a scrape: its lanes, results and workers."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from shoal.client.redis.client import Client
from shoal.errors import ShoalError
from shoal.histogram import Histogram
from shoal.queue.lane import LaneLimits, LaneLoad

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

#: The counters of a worker: the name in its heartbeat, the metric and its help.
_COUNTERS = (
    ("jobs", "shoal_worker_jobs", "Jobs answered, refused ones aside."),
    ("failed", "shoal_worker_failed", "Jobs answered with an error, refused ones included."),
    ("texts", "shoal_worker_texts", "Texts embedded."),
    ("tokens", "shoal_worker_tokens", "Tokens embedded."),
    ("batches", "shoal_worker_batches", "Forward passes run."),
    ("busy_s", "shoal_worker_busy_seconds", "Time during which the engine ran forward passes."),
    ("cpu_s", "shoal_worker_cpu_seconds", "Processor time that the process of the worker took."),
    ("queue_s", "shoal_worker_queue_seconds", "Time that jobs waited in their lane."),
    ("tokenize_s", "shoal_worker_tokenize_seconds", "Time spent tokenizing texts."),
    ("encode_s", "shoal_worker_encode_seconds", "Time spent computing vectors."),
    ("search_s", "shoal_worker_search_seconds", "Time spent searching."),
    ("claims", "shoal_worker_claims", "Jobs claimed: those of a dead worker, and those lost on a broken connection."),
    ("redeliveries", "shoal_worker_redeliveries", "Those of the claimed jobs that may have ended a worker."),
    ("cache_hits", "shoal_worker_cache_hits", "Texts that the worker found in the cache."),
    ("cache_misses", "shoal_worker_cache_misses", "Texts that the worker did not find in the cache."),
    ("cache_refused", "shoal_worker_cache_refused", "Texts that Redis refused to store in the cache."),
)

#: Measurements of a worker: the name in its heartbeat, the metric and its help.
_GAUGES = (
    (
        "clock_offset_s",
        "shoal_worker_clock_offset_seconds",
        "Time by which the clock of the worker's machine is ahead of Redis's.",
    ),
    ("clock_error_s", "shoal_worker_clock_error_seconds", "Largest error of that time."),
    ("memory_bytes", "shoal_worker_resident_memory_bytes", "Resident memory of the process of the worker."),
)

#: Histograms of a worker's passes: the name in its heartbeat, the metric and its help.
_BATCHES = (
    ("texts", "shoal_worker_batch_texts", "Texts of a forward pass."),
    ("tokens", "shoal_worker_batch_tokens", "Tokens of a forward pass."),
    ("fill", "shoal_worker_batch_fill_ratio", "Tokens of a forward pass, of the most that it may have."),
)

#: Heartbeats by the ids of the workers.
Heartbeats = Mapping[str, Mapping[str, Any]]


class PoolCollector(Collector):
    """The metrics of Redis, lanes and workers, read at each scrape; without Redis, the one that says so.

    A scrape takes six round trips to Redis, whatever the number of workers.
    """

    def __init__(self, client: Client):
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        queue = self._client.queue
        try:
            loads, num_dead, workers = queue.loads(), queue.num_dead(), self._client.pool.workers()
            unread = queue.unread.load()
        except ShoalError:
            yield GaugeMetricFamily("shoal_redis_up", "1 if Redis answers, else 0.", 0)
            return
        yield GaugeMetricFamily("shoal_redis_up", "1 if Redis answers, else 0.", 1)
        yield from self._describe_memory()
        yield from _describe_lanes(loads, queue.limits)
        yield GaugeMetricFamily("shoal_unread_results", "Results that were not read.", unread.num_results)
        yield GaugeMetricFamily(
            "shoal_unread_result_bytes",
            "Size of these results and of idempotency keys, with their keys, in bytes.",
            unread.num_bytes,
        )
        yield GaugeMetricFamily(
            "shoal_unread_result_fill_ratio",
            "This size, of the most that is accepted.",
            unread.num_bytes / queue.limits.max_unread_bytes,
        )
        yield GaugeMetricFamily("shoal_dead_letters", "Dead letters: jobs that could not be answered.", num_dead)
        yield GaugeMetricFamily(
            "shoal_clock_offset_seconds",
            "Time by which the clock of the API's machine is ahead of Redis's.",
            queue.clock.offset_s,
        )
        yield from _describe_workers(workers)

    def _describe_memory(self) -> Iterator[Metric]:
        try:
            found = dict(_MEMORY.findall(self._client.queue.broker.execute("INFO", "memory")))
        except ShoalError:  # the user of this API may not ask
            return
        yield GaugeMetricFamily("shoal_redis_memory_bytes", "Memory that Redis has in use.", int(found[b"used_memory"]))
        yield GaugeMetricFamily(
            "shoal_redis_max_memory_bytes", "Memory that Redis may use; 0: no limit is set.", int(found[b"maxmemory"])
        )


def _describe_lanes(loads: Mapping[str, LaneLoad], limits: LaneLimits) -> Iterator[Metric]:
    for name, text, value_of in _LANE_GAUGES:
        family = GaugeMetricFamily(name, text, labels=("lane",))
        for lane, load in loads.items():
            family.add_metric((lane,), value_of(load, limits))
        yield family


def _describe_workers(workers: Heartbeats) -> Iterator[Metric]:
    ready = sum(about.get("state") == "ready" for about in workers.values())
    yield GaugeMetricFamily("shoal_workers_alive", "Workers with a heartbeat.", len(workers))
    yield GaugeMetricFamily("shoal_workers_ready", "Workers that take jobs.", ready)
    labels = ("worker", "engine", "precision")
    engines = GaugeMetricFamily("shoal_worker_engine_info", "What computes for the worker, as labels.", labels=labels)
    for worker_id, about in workers.items():
        engines.add_metric((worker_id, str(about.get("engine")), str(about.get("precision"))), 1)
    yield engines
    yield from _numbers(workers)
    yield from _histograms(workers)


def _numbers(workers: Heartbeats) -> Iterator[Metric]:
    for word, name, text in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=("worker",))
        for worker_id, about in workers.items():
            if word in (counters := about.get("counters", {})):
                counter.add_metric((worker_id,), counters[word])
        yield counter
    for word, name, text in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=("worker",))
        for worker_id, about in workers.items():
            if isinstance(number := about.get(word), int | float):
                gauge.add_metric((worker_id,), number)
        yield gauge


def _histograms(workers: Heartbeats) -> Iterator[Metric]:
    waits = HistogramMetricFamily(
        "shoal_worker_wait_seconds",
        "Time that jobs waited in the lane until the worker began with them or refused them.",
        labels=("worker", "lane"),
    )
    for worker_id, about in workers.items():
        for lane, wait in about.get("waits", {}).items():
            waits.add_metric((worker_id, lane), *_of_prometheus(wait))
    yield waits
    for word, name, text in _BATCHES:
        family = HistogramMetricFamily(name, text, labels=("worker",))
        for worker_id, about in workers.items():
            if found := about.get("batches", {}).get(word):
                family.add_metric((worker_id,), *_of_prometheus(found))
        yield family


def _of_prometheus(found: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of a histogram, whose counts are cumulative in Prometheus, and the sum of what it counts."""
    histogram = Histogram.from_map(found)
    names = [*map(floatToGoString, histogram.limits), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True)), histogram.sum
