"""The metrics of a pool: of Redis, lanes, results, dead letters and workers, written in Prometheus's text format.

prometheus_client needs 11 µs to write a line. Hundreds of workers have tens of thousands of lines, and no other thread
of the process could run meanwhile. So this module writes the lines itself.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from shoal.queue.lane import LaneLimits, LaneLoad
from shoal.queue.pool import ANSWERING
from shoal_api.pool.pool_snapshot import PoolSnapshot

#: Heartbeats by the ids of the workers.
Heartbeats = Mapping[str, Mapping[str, Any]]

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


def render(pool: PoolSnapshot | None, memory: bytes | None) -> str:
    """Return the metrics of a pool and of Redis's memory; without a pool, only `shoal_redis_up`."""
    lines = [*_gauge("shoal_redis_up", "1 if Redis answers, else 0.", pool is not None)]
    if pool is not None:
        named = {_label("worker", worker_id): about for worker_id, about in pool.workers.items()}
        lines += [*_redis(pool, memory), *_states(named), *_numbers(named), *_histograms(named)]
    return "\n".join([*lines, ""])


def _redis(pool: PoolSnapshot, memory: bytes | None) -> Iterator[str]:
    if memory is not None:
        found = dict(_MEMORY.findall(memory))
        yield from _gauge("shoal_redis_memory_bytes", "Memory that Redis has in use.", int(found[b"used_memory"]))
        meaning = "Memory that Redis may use; 0: no limit is set."
        yield from _gauge("shoal_redis_max_memory_bytes", meaning, int(found[b"maxmemory"]))
    for name, meaning, value_of in _LANE_GAUGES:
        yield from _head(name, "gauge", meaning)
        for lane, load in pool.loads.items():
            yield f'{name}{{lane="{lane}"}} {float(value_of(load, pool.limits))}'
    unread, most = pool.unread, pool.limits.max_unread_bytes
    yield from _gauge("shoal_unread_results", "Results that were not read.", unread.num_results)
    meaning = "Size of unread results and idempotency keys, with their keys in Redis, in bytes."
    yield from _gauge("shoal_unread_result_bytes", meaning, unread.num_bytes)
    meaning = "Size of unread results and idempotency keys, as a share of its limit."
    yield from _gauge("shoal_unread_result_fill_ratio", meaning, unread.num_bytes / most)
    yield from _gauge("shoal_dead_letters", "Dead letters: jobs that could not be answered.", pool.num_dead)


def _states(workers: Heartbeats) -> Iterator[str]:
    ready = sum(about.get("state") in ANSWERING for about in workers.values())
    yield from _gauge("shoal_workers_alive", "Workers with a heartbeat.", len(workers))
    yield from _gauge("shoal_workers_ready", "Workers that take jobs.", ready)
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


def _gauge(name: str, meaning: str, number: float) -> Iterator[str]:
    yield from _head(name, "gauge", meaning)
    yield f"{name} {float(number)}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPED)}"'
