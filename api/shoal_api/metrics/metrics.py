"""Prometheus metrics: counters of the API, and the state of the pool at the time of a scrape.

Several API processes count in files of a shared folder (prometheus_client's multiprocess mode), so each process reports
the sums. The counts of a process remain after its end.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from glob import glob
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from shoal import __version__
from shoal.client.redis.async_client import AsyncClient
from shoal.queue.lane import LaneLimits, LaneLoad
from shoal_api.metrics import workers as worker_metrics
from shoal_api.request import JsonRequest
from shoal_api.viewers.pool_snapshot import PoolSnapshot

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: The lines of Redis's INFO with the memory in use and its limit.
_MEMORY = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)

#: Gauges of a lane: the metric's name, its help, and the function that returns its value.
_LANE_GAUGES: tuple[tuple[str, str, Callable[[LaneLoad, LaneLimits], float]], ...] = (
    ("shoal_lane_jobs", "Unanswered jobs in the lane.", lambda load, _: load.num_jobs),
    ("shoal_lane_texts", "Texts of the unanswered jobs.", lambda load, _: load.num_texts),
    ("shoal_lane_bytes", "Size of the unanswered jobs, in bytes.", lambda load, _: load.num_bytes),
    (
        "shoal_lane_fill_ratio",
        "Largest of three shares: the lane's jobs, texts and bytes, each divided by its limit.",
        lambda load, limits: load.fill(limits),
    ),
    (
        "shoal_lane_oldest_job_age_seconds",
        "Time since the oldest unanswered job was put.",
        lambda load, _: load.oldest_age_s,
    ),
)

#: For these metrics, the smallest value of all processes is reported, and for other metrics the sum.
_MINIMUM = ("process_start_time_seconds", "process_max_fds")


class Metrics:
    """The metrics of one application, in a registry of its own; `clients` has the client of each pool."""

    def __init__(self, clients: Mapping[str, AsyncClient]):
        self._registry = CollectorRegistry()
        own: CollectorRegistry | None = None  # None: all metrics are collected from shared files
        if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            MultiProcessCollector(self._registry, folder)  # type: ignore[no-untyped-call]
            self._registry.register(_ProcessesCollector(Path(folder)))
        else:
            own = self._registry
            ProcessCollector(registry=own)
        self.requests = Histogram(
            "shoal_http_request_seconds",
            "Time to answer a request.",
            ("route", "method", "status"),
            registry=own,
            buckets=_BUCKETS_S,
        )
        self.errors = Counter("shoal_http_errors", "Requests answered with an error.", ("code",), registry=own)
        hits = Counter("shoal_cache_hits", "Texts of embeds that the API found in the cache.", ("pool",), registry=own)
        misses = Counter(
            "shoal_cache_misses",
            "Texts of embeds that the API did not find in the cache and sent to a worker.",
            ("pool",),
            registry=own,
        )
        for pool, client in clients.items():
            client.count_lookup = partial(_count_lookup, hits.labels(pool), misses.labels(pool))
        build = Gauge(
            "shoal_build_info",
            "The version that runs, as a label.",
            ("version",),
            registry=own,
            multiprocess_mode="mostrecent",
        )
        build.labels(__version__).set(1)

    def observe(self, request: JsonRequest, status: int) -> None:
        """Count one answered request."""
        route, method = (request.url_rule.rule, request.method) if request.url_rule else ("unmatched", "")
        self.requests.labels(route, method, status).observe(time.perf_counter() - request.started_s)

    def num_cache_hits(self, pool: str) -> float:
        """Return the number of texts that the processes of this API have found in the cache of a pool."""
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if folder is None:
            return self._registry.get_sample_value("shoal_cache_hits_total", {"pool": pool}) or 0.0
        families = MultiProcessCollector.merge(glob(f"{folder}/counter_*.db"))  # type: ignore[no-untyped-call]
        samples = [sample for family in families if family.name == "shoal_cache_hits" for sample in family.samples]
        return float(sum(sample.value for sample in samples if sample.labels.get("pool") == pool))

    def render(self, pool: PoolSnapshot | None, memory: bytes | None, of_api: bool = True) -> bytes:
        """Return the metrics of a pool and of Redis's memory as text, and with `of_api` also the metrics of the API."""
        families = [*describe(pool, memory), *(self._registry.collect() if of_api else ())]
        text = generate_latest(cast(Any, SimpleNamespace(collect=lambda: families)))
        return text + worker_metrics.render(pool.workers).encode() if pool else text


def _count_lookup(hits: Counter, misses: Counter, num_hits: int, num_misses: int) -> None:
    """Count the texts of a look-up in the cache. Each process counts its own look-ups."""
    hits.inc(num_hits)
    misses.inc(num_misses)


class _ProcessesCollector(Collector):
    """The metrics of all processes that have metric files in a folder and the same parent as this process."""

    def __init__(self, folder: Path):
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield prometheus_client's process metrics: sums over all these processes, or minima for `_MINIMUM`."""
        found: dict[str, list[Metric]] = {}
        pids = {int(file.stem.rpartition("_")[2]) for file in self._folder.glob("*.db")}
        for pid in filter(_is_sibling, pids):
            for metric in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                found.setdefault(metric.name, []).append(metric)
        for name, metrics in found.items():
            together = metrics[0]
            values = [sample.value for metric in metrics for sample in metric.samples]
            together.samples = [together.samples[0]._replace(value=min(values) if name in _MINIMUM else sum(values))]
            yield together


def _is_sibling(pid: int) -> bool:
    """Return True if the process is a living sibling of this process. Another program may have got its process id."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getppid()
    except OSError:
        return False


def describe(pool: PoolSnapshot | None, memory: bytes | None) -> Iterator[Metric]:
    """Yield the metrics of Redis, lanes, results and dead letters; without Redis, only `shoal_redis_up`."""
    yield GaugeMetricFamily("shoal_redis_up", "1 if Redis answers, else 0.", int(pool is not None))
    if pool is None:
        return
    if memory is not None:
        lines = dict(_MEMORY.findall(memory))
        used, most = int(lines[b"used_memory"]), int(lines[b"maxmemory"])
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
        "Size of unread results and idempotency keys, with their keys in Redis, in bytes.",
        pool.unread.num_bytes,
    )
    yield GaugeMetricFamily(
        "shoal_unread_result_fill_ratio",
        "Size of unread results and idempotency keys, as a share of its limit.",
        pool.unread.num_bytes / pool.limits.max_unread_bytes,
    )
    yield GaugeMetricFamily("shoal_dead_letters", "Dead letters: jobs that could not be answered.", pool.num_dead)
