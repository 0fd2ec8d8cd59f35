"""Prometheus metrics: what this process did, and what the pool says of itself at the moment of a scrape."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal import __version__
from shoal.client import Client
from shoal.errors import ShoalError

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: What a worker counts: its word in the heartbeat, the metric, and what that is.
_WORKER_COUNTERS = (
    ("jobs", "shoal_worker_jobs", "Jobs answered."),
    ("failed", "shoal_worker_failed", "Jobs answered with an error."),
    ("texts", "shoal_worker_texts", "Texts embedded."),
    ("tokens", "shoal_worker_tokens", "Tokens embedded."),
    ("batches", "shoal_worker_batches", "Forward passes."),
    ("queue_s", "shoal_worker_queue_seconds", "Time that jobs waited in their lane."),
    ("tokenize_s", "shoal_worker_tokenize_seconds", "Time spent making tokens of texts."),
    ("encode_s", "shoal_worker_encode_seconds", "Time spent making vectors of tokens."),
    ("search_s", "shoal_worker_search_seconds", "Time spent searching."),
)


class Metrics:
    """The metrics of one application, in a registry of their own."""

    def __init__(self, client: Client):
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(PoolCollector(client))
        self.requests = Histogram(
            "shoal_http_request_seconds",
            "Time to answer a request.",
            ("route", "method", "status"),
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self.errors = Counter("shoal_http_errors", "Requests answered with an error.", ("code",), registry=registry)
        build = Gauge("shoal_build_info", "The version that runs, as a label.", ("version",), registry=registry)
        build.labels(__version__).set(1)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        self.requests.labels(route, method, status).observe(seconds)

    def render(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class PoolCollector(Collector):
    """Reads lanes and heartbeats from Redis when it is asked; says only that Redis is away when it is."""

    def __init__(self, client: Client):
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """The metrics of lanes and workers."""
        up = GaugeMetricFamily("shoal_redis_up", "Whether Redis answers: 1 or 0.")
        try:
            backlog, workers = self._client.queue.backlog(), self._client.pool.workers()
        except ShoalError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from _describe_pool(backlog, workers)


def _describe_pool(backlog: dict[str, int], workers: dict[str, dict[str, object]]) -> Iterator[Metric]:
    lanes = GaugeMetricFamily("shoal_lane_jobs", "Unanswered jobs in the lane.", labels=("lane",))
    for lane, count in backlog.items():
        lanes.add_metric((lane,), count)
    ready = sum(about.get("state") == "ready" for about in workers.values())
    yield lanes
    yield GaugeMetricFamily("shoal_workers_alive", "Workers with a heartbeat.", len(workers))
    yield GaugeMetricFamily("shoal_workers_ready", "Workers that take jobs.", ready)
    for word, name, text in _WORKER_COUNTERS:
        family = CounterMetricFamily(name, text, labels=("worker",))
        for worker_id, about in workers.items():
            counters = about.get("counters")
            if isinstance(counters, dict) and word in counters:
                family.add_metric((worker_id,), counters[word])
        yield family
