"""Prometheus metrics: counters of the API, and the state of the pool at the time of a scrape.

Several API processes count in files of a shared folder (prometheus_client's multiprocess mode), so each of them reports
the sums. The counts of a process stay when it ends.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from shoal import __version__
from shoal.client.redis.client import Client
from shoal.errors import ShoalError
from shoal.queue.lane import LaneLoad
from shoal_api.server.processes import ProcessesCollector
from shoal_api.server.tei_metrics import tei_metrics

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: The counters of a worker: the name in its heartbeat, the metric and its help.
_WORKER_COUNTERS = (
    ("jobs", "shoal_worker_jobs", "Jobs answered."),
    ("failed", "shoal_worker_failed", "Jobs answered with an error."),
    ("texts", "shoal_worker_texts", "Texts embedded."),
    ("tokens", "shoal_worker_tokens", "Tokens embedded."),
    ("batches", "shoal_worker_batches", "Forward passes run."),
    ("queue_s", "shoal_worker_queue_seconds", "Time that jobs waited in their lane."),
    ("tokenize_s", "shoal_worker_tokenize_seconds", "Time spent tokenizing texts."),
    ("encode_s", "shoal_worker_encode_seconds", "Time spent computing vectors."),
    ("search_s", "shoal_worker_search_seconds", "Time spent searching."),
    ("cache_hits", "shoal_worker_cache_hits", "Texts that the worker found in the cache."),
    ("cache_misses", "shoal_worker_cache_misses", "Texts that the worker did not find in the cache."),
    ("cache_refused", "shoal_worker_cache_refused", "Texts that Redis refused to store in the cache."),
)

#: Measurements of a worker: the name in its heartbeat, the metric and its help.
_WORKER_GAUGES = (
    (
        "clock_offset_s",
        "shoal_worker_clock_offset_seconds",
        "Time by which the clock of the worker's machine is ahead of Redis's.",
    ),
    ("clock_error_s", "shoal_worker_clock_error_seconds", "Largest error of that time."),
)


class Metrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self, client: Client):
        self._registry = CollectorRegistry()
        self._registry.register(PoolCollector(client))
        own = _register_processes(self._registry)
        self.requests = Histogram(
            "shoal_http_request_seconds",
            "Time to answer a request.",
            ("route", "method", "status"),
            registry=own,
            buckets=_BUCKETS_S,
        )
        self._series: dict[tuple[str, str, int], Histogram] = {}
        self.batches = Counter(
            "shoal_http_batches",
            "Requests with several texts that their limits let through to be computed or found in the cache.",
            ("route", "status"),
            registry=own,
        )
        self.errors = Counter("shoal_http_errors", "Requests answered with an error.", ("code",), registry=own)
        self._cache_counters = CacheCounters(client, own)
        build = Gauge(
            "shoal_build_info",
            "The version that runs, as a label.",
            ("version",),
            registry=own,
            multiprocess_mode="mostrecent",
        )
        build.labels(__version__).set(1)

    def observe(self, route: str, method: str, status: int, seconds: float, num_texts: int) -> None:
        """Count one answered request, whose job had so many texts."""
        kind = (route, method, status)
        series = self._series.get(kind) or self._series.setdefault(kind, self.requests.labels(*kind))
        series.observe(seconds)
        if num_texts > 1:
            self.batches.labels(route, status).inc()
        self._cache_counters.update()

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        self._cache_counters.update()
        return generate_latest(_WithTei(self._registry))


class _WithTei(Collector):
    """The metrics of a registry, and what Text Embeddings Inference calls them."""

    def __init__(self, registry: CollectorRegistry):
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        families = list(self._registry.collect())
        yield from families
        yield from tei_metrics(families)


def _register_processes(registry: CollectorRegistry) -> CollectorRegistry | None:
    """Register the process metrics; return the registry for the API's own, or None with shared files."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        ProcessCollector(registry=registry)
        return registry
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    registry.register(ProcessesCollector(Path(folder)))
    return None


class CacheCounters:
    """The counters of cache lookups by this process's client, which counts without knowing of Prometheus."""

    def __init__(self, client: Client, registry: CollectorRegistry | None):
        self._lookup = client.cache_lookup
        self._lock = Lock()
        self._num_added = (0, 0)
        self._hits = Counter("shoal_cache_hits", "Texts of embeds that the API found in the cache.", registry=registry)
        self._misses = Counter(
            "shoal_cache_misses",
            "Texts of embeds that the API did not find in the cache and sent to a worker.",
            registry=registry,
        )

    def update(self) -> None:
        """Add the lookups that the client has counted since the last time."""
        with self._lock:
            counted = (self._lookup.num_hits, self._lookup.num_misses)
            if counted != self._num_added:
                self._hits.inc(counted[0] - self._num_added[0])
                self._misses.inc(counted[1] - self._num_added[1])
                self._num_added = counted


class PoolCollector(Collector):
    """The metrics of lanes and workers, read from Redis at each scrape; without Redis, the one that says so."""

    def __init__(self, client: Client):
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        up = GaugeMetricFamily("shoal_redis_up", "1 if Redis answers, else 0.")
        try:
            queue = self._client.queue
            loads, num_dead, workers = queue.loads(), queue.num_dead(), self._client.pool.workers()
            unread = queue.unread.load()
        except ShoalError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from _describe_lanes(loads)
        yield GaugeMetricFamily("shoal_unread_results", "Results that were not read.", unread.num_results)
        yield GaugeMetricFamily(
            "shoal_unread_result_bytes",
            "Size of these results and of idempotency keys, with their keys, in bytes.",
            unread.num_bytes,
        )
        yield GaugeMetricFamily("shoal_dead_letters", "Dead letters: jobs that could not be answered.", num_dead)
        yield from _describe_workers(workers)


def _describe_lanes(loads: dict[str, LaneLoad]) -> Iterator[Metric]:
    for name, text, field in (
        ("shoal_lane_jobs", "Unanswered jobs in the lane.", "num_jobs"),
        ("shoal_lane_texts", "Texts of the unanswered jobs.", "num_texts"),
        ("shoal_lane_bytes", "Size of the unanswered jobs, in bytes.", "num_bytes"),
    ):
        family = GaugeMetricFamily(name, text, labels=("lane",))
        for lane, load in loads.items():
            family.add_metric((lane,), getattr(load, field))
        yield family


def _describe_workers(workers: dict[str, dict[str, object]]) -> Iterator[Metric]:
    ready = sum(about.get("state") == "ready" for about in workers.values())
    yield GaugeMetricFamily("shoal_workers_alive", "Workers with a heartbeat.", len(workers))
    yield GaugeMetricFamily("shoal_workers_ready", "Workers that take jobs.", ready)
    labels = ("worker", "engine", "precision")
    engines = GaugeMetricFamily("shoal_worker_engine_info", "What computes for the worker, as labels.", labels=labels)
    for worker_id, about in workers.items():
        engines.add_metric((worker_id, str(about.get("engine")), str(about.get("precision"))), 1)
    yield engines
    for word, name, text in _WORKER_COUNTERS:
        family = CounterMetricFamily(name, text, labels=("worker",))
        for worker_id, about in workers.items():
            counters = about.get("counters")
            if isinstance(counters, dict) and word in counters:
                family.add_metric((worker_id,), counters[word])
        yield family
    for word, name, text in _WORKER_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=("worker",))
        for worker_id, about in workers.items():
            if isinstance(number := about.get(word), int | float):
                gauge.add_metric((worker_id,), number)
        yield gauge
