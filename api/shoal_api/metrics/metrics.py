"""Prometheus metrics: counters of the API, and the state of the pool at the time of a scrape.

Several API processes count in files of a shared folder (prometheus_client's multiprocess mode), so each process reports
the sums of all processes, and no metrics of a single process. The counts of a process remain after its end.
"""

import os
import time
from collections.abc import Mapping
from functools import partial
from glob import glob

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from shoal import __version__
from shoal.client.redis.async_client import AsyncClient
from shoal_api.metrics import pool as pool_metrics
from shoal_api.pool.pool_snapshot import PoolSnapshot
from shoal_api.request import JsonRequest

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one application, in a registry of its own; `clients` has the client of each pool."""

    def __init__(self, clients: Mapping[str, AsyncClient]):
        self._registry = CollectorRegistry()
        own: CollectorRegistry | None = None  # None: all metrics are collected from shared files
        if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            MultiProcessCollector(self._registry, folder)  # type: ignore[no-untyped-call]
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
        return pool_metrics.render(pool, memory).encode() + (generate_latest(self._registry) if of_api else b"")


def _count_lookup(hits: Counter, misses: Counter, num_hits: int, num_misses: int) -> None:
    """Count the texts of a look-up in the cache. Each process counts its own look-ups."""
    hits.inc(num_hits)
    misses.inc(num_misses)
