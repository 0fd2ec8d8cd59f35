"""Prometheus metrics: counters of the API, and the state of the pool at the time of a scrape.

Several API processes count in files of a shared folder (prometheus_client's multiprocess mode), so each of them reports
the sums. The counts of a process stay when it ends.
"""

import os
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from shoal import __version__
from shoal.client.redis.async_client import AsyncClient
from shoal.viewers.pool_snapshot import PoolSnapshot
from shoal_api.metrics import workers as worker_metrics
from shoal_api.metrics.pool import describe
from shoal_api.metrics.processes import ProcessesCollector
from shoal_api.metrics.tei import tei_metrics

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one application, in a registry of its own; `clients` has the client of each pool."""

    def __init__(self, clients: Mapping[str, AsyncClient]):
        self._registry = CollectorRegistry()
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
        self._clients = clients
        self._lock = Lock()
        self._num_counted = dict.fromkeys(clients, (0, 0))
        self._cache_hits = Counter(
            "shoal_cache_hits", "Texts of embeds that the API found in the cache.", ("pool",), registry=own
        )
        self._cache_misses = Counter(
            "shoal_cache_misses",
            "Texts of embeds that the API did not find in the cache and sent to a worker.",
            ("pool",),
            registry=own,
        )
        for pool in clients:
            self._cache_hits.labels(pool)
            self._cache_misses.labels(pool)
        build = Gauge(
            "shoal_build_info",
            "The version that runs, as a label.",
            ("version",),
            registry=own,
            multiprocess_mode="mostrecent",
        )
        build.labels(__version__).set(1)

    def observe(self, route: str, method: str, status: int, seconds: float, num_texts: int) -> None:
        """Count one answered request, whose job had `num_texts` texts."""
        kind = (route, method, status)
        series = self._series.get(kind) or self._series.setdefault(kind, self.requests.labels(*kind))
        series.observe(seconds)
        if num_texts > 1:
            self.batches.labels(route, status).inc()
        self._count_lookups()

    def num_cache_hits(self, pool: str) -> float:
        """Return how many texts the processes of this API have found in the cache of a pool."""
        self._count_lookups()
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if folder is None:
            return self._num_counted[pool][0]
        families = MultiProcessCollector.merge(glob(f"{folder}/counter_*.db"))  # type: ignore[no-untyped-call]
        samples = [sample for family in families if family.name == "shoal_cache_hits" for sample in family.samples]
        return float(sum(sample.value for sample in samples if sample.labels.get("pool") == pool))

    def _count_lookups(self) -> None:
        """Count the lookups since the last time; each client counts its own, without knowing of Prometheus."""
        with self._lock:
            for pool, client in self._clients.items():
                counted, before = client.num_cached, self._num_counted[pool]
                self._num_counted[pool] = counted
                if counted != before:
                    self._cache_hits.labels(pool).inc(counted[0] - before[0])
                    self._cache_misses.labels(pool).inc(counted[1] - before[1])

    def render(self, pool: PoolSnapshot | None, memory: Mapping[bytes, bytes] | None, of_api: bool = True) -> bytes:
        """Return what was read of a pool and of Redis's memory in Prometheus's text format, and the API's own metrics.

        Without `of_api` the API's own are left out, as where the path names one of several pools.
        """
        self._count_lookups()
        families = [*describe(pool, memory), *(self._registry.collect() if of_api else ())]
        text = generate_latest(_Families([*families, *tei_metrics(families)]))
        return text + worker_metrics.render(pool.workers).encode() if pool else text


class _Families(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: Sequence[Metric]):
        self._families = families

    def collect(self) -> Sequence[Metric]:
        """Return the metrics."""
        return self._families


def _register_processes(registry: CollectorRegistry) -> CollectorRegistry | None:
    """Register the process metrics; return the registry for the API's own, or None with shared files."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        ProcessCollector(registry=registry)
        return registry
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    registry.register(ProcessesCollector(Path(folder)))
    return None
