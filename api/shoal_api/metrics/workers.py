"""The metrics of workers, made from their heartbeats and written in Prometheus's text format.

prometheus_client needs 11 µs to write a line. Hundreds of workers have tens of thousands of lines, and no other thread
of the process could run meanwhile. So this module writes the lines itself.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from shoal.queue.pool import ANSWERING

#: Heartbeats by the ids of the workers.
Heartbeats = Mapping[str, Mapping[str, Any]]

#: The counters of a worker: the name in its heartbeat, the metric and its help.
_COUNTERS = (
    ("jobs", "shoal_worker_jobs", "Jobs answered, without refused jobs."),
    ("failed", "shoal_worker_failed", "Jobs answered with an error, refused jobs included."),
    ("texts", "shoal_worker_texts", "Texts embedded."),
    ("tokens", "shoal_worker_tokens", "Tokens embedded."),
    ("batches", "shoal_worker_batches", "Number of forward passes."),
    ("busy_s", "shoal_worker_busy_seconds", "Time during which the engine ran forward passes."),
    ("cpu_s", "shoal_worker_cpu_seconds", "Processor time that the process of the worker took."),
    ("queue_s", "shoal_worker_queue_seconds", "Time that jobs waited in their lane."),
    ("tokenize_s", "shoal_worker_tokenize_seconds", "Time spent tokenizing texts."),
    ("encode_s", "shoal_worker_encode_seconds", "Time spent computing vectors."),
    ("search_s", "shoal_worker_search_seconds", "Time spent searching."),
    ("claims", "shoal_worker_claims", "Jobs of dead workers that the worker has put back into their lanes."),
    ("redeliveries", "shoal_worker_redeliveries", "Suspects that the worker got: jobs that may have ended a worker."),
    ("cache_hits", "shoal_worker_cache_hits", "Texts that the worker found in the cache."),
    ("cache_misses", "shoal_worker_cache_misses", "Texts that the worker did not find in the cache."),
    ("cache_refused", "shoal_worker_cache_refused", "Texts that Redis refused to store in the cache."),
)

#: Gauges of a worker: the name in its heartbeat, the metric and its help.
_GAUGES = (
    (
        "clock_offset_s",
        "shoal_worker_clock_offset_seconds",
        "Time by which the clock of the worker's machine is ahead of Redis's clock.",
    ),
    ("clock_error_s", "shoal_worker_clock_error_seconds", "Largest error of the measured clock offset."),
    ("memory_bytes", "shoal_worker_resident_memory_bytes", "Resident memory of the process of the worker."),
)

#: Histograms of a worker's passes: the name in its heartbeat, the metric and its help.
_BATCHES = (
    ("texts", "shoal_worker_batch_texts", "Texts of a forward pass."),
    ("tokens", "shoal_worker_batch_tokens", "Tokens of a forward pass."),
    ("fill", "shoal_worker_batch_fill_ratio", "Tokens of a forward pass, as a share of the most that are allowed."),
)

_WAITS = (
    "shoal_worker_wait_seconds",
    "Time that jobs waited in the lane until the worker began with them or refused them.",
)

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def render(workers: Heartbeats) -> str:
    """Return the metrics in Prometheus's text format."""
    named = {_label("worker", worker_id): about for worker_id, about in workers.items()}
    return "\n".join([*_states(named), *_numbers(named), *_histograms(named), ""])


def _states(workers: Heartbeats) -> Iterator[str]:
    ready = sum(about.get("state") in ANSWERING for about in workers.values())
    yield from _head("shoal_workers_alive", "gauge", "Workers with a heartbeat.")
    yield f"shoal_workers_alive {len(workers)}"
    yield from _head("shoal_workers_ready", "gauge", "Workers that take jobs.")
    yield f"shoal_workers_ready {ready}"
    yield from _head("shoal_worker_engine_info", "gauge", "Engine and precision of the worker, as labels.")
    for worker, about in workers.items():
        labels = ",".join(_label(name, str(about.get(name))) for name in ("engine", "precision"))
        yield f"shoal_worker_engine_info{{{labels},{worker}}} 1"


def _numbers(workers: Heartbeats) -> Iterator[str]:
    for word, name, meaning in _COUNTERS:
        yield from _head(f"{name}_total", "counter", meaning)
        for worker, about in workers.items():
            if word in (counters := about.get("counters", {})):
                yield f"{name}_total{{{worker}}} {float(counters[word])}"
    for word, name, meaning in _GAUGES:
        yield from _head(name, "gauge", meaning)
        for worker, about in workers.items():
            if isinstance(number := about.get(word), int | float):
                yield f"{name}{{{worker}}} {float(number)}"


def _histograms(workers: Heartbeats) -> Iterator[str]:
    name, meaning = _WAITS
    yield from _head(name, "histogram", meaning)
    for worker, about in workers.items():
        for lane, wait in about.get("waits", {}).items():
            yield from _samples(name, f"{_label('lane', lane)},{worker}", wait)
    for word, name, meaning in _BATCHES:
        yield from _head(name, "histogram", meaning)
        for worker, about in workers.items():
            if found := about.get("batches", {}).get(word):
                yield from _samples(name, worker, found)


def _samples(name: str, labels: str, histogram: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a histogram from a heartbeat. Prometheus needs cumulative counts."""
    limits = [*map(float, histogram["limits"]), "+Inf"]
    counts = list(accumulate(histogram["counts"]))
    for limit, count in zip(limits, counts, strict=True):
        yield f'{name}_bucket{{{labels},le="{limit}"}} {count:d}'
    yield f"{name}_count{{{labels}}} {counts[-1]:d}"
    yield f"{name}_sum{{{labels}}} {float(histogram['sum'])}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPED)}"'
