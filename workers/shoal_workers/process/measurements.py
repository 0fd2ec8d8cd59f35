"""Measurements of a worker since its start, its throughput, its last jobs, and the log of the jobs that it answers."""

import logging
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Self

from shoal.broker.clock import Clock
from shoal.contract import traceparent
from shoal.contract.histogram import Histogram
from shoal.contract.jobs import LANES
from shoal.contract.outline import Outline
from shoal.contract.replies import TIMINGS, Reply
from shoal.errors import ShoalError
from shoal.process import logs
from shoal.process.tracing import Tracer
from shoal.queue.consumer import Delivery

log = logging.getLogger(__name__)

#: The names of all counters. Each begins at 0, because Prometheus sees no increase in the first value of a counter.
COUNTERS = (
    *("jobs", "failed", "texts", "tokens", "batches", *TIMINGS, "busy_s", "claims", "redeliveries"),
    *("cache_hits", "cache_misses", "cache_refused"),
)

#: Limits of the histograms of the seconds that a job waited, and of the texts, the tokens and the fill of a pass.
WAIT_LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0)
TEXTS_LIMITS = (1, 4, 16, 64)
TOKENS_LIMITS = (64, 256, 1_024, 4_096)
FILL_LIMITS = (0.1, 0.25, 0.5, 0.75)


class Measurements:
    """The counters of a worker, histograms of its passes, and for each lane a histogram of the `waits` of jobs."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.waits = {lane: Histogram(WAIT_LIMITS_S) for lane in LANES}
        self._batches = {
            "texts": Histogram(TEXTS_LIMITS),
            "tokens": Histogram(TOKENS_LIMITS),
            "fill": Histogram(FILL_LIMITS),
        }

    def add_batch(self, num_texts: int, num_tokens: int, max_tokens: int) -> None:
        """Count a forward pass with these numbers of texts and tokens. It had room for `max_tokens`."""
        self.counters["batches"] += 1
        self._batches["texts"].add(num_texts)
        self._batches["tokens"].add(num_tokens)
        self._batches["fill"].add(num_tokens / max_tokens)

    def to_heartbeat(self) -> dict[str, Any]:
        """Return the measurements as fields of the heartbeat."""
        return {
            "counters": dict(self.counters) | {"cpu_s": time.process_time()},
            "waits": {lane: wait.to_map() for lane, wait in self.waits.items()},
            "batches": {name: sizes.to_map() for name, sizes in self._batches.items()},
            "memory_bytes": _resident_bytes(),
        }


def _resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, or None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


#: Seconds of work after which the weight of a measurement has halved.
HALF_LIFE_S = 10.0


class Throughput:
    """Texts answered per second of work. Older measurements have less weight."""

    def __init__(self) -> None:
        #: The number of texts that were answered.
        self.num_texts = 0.0
        self._busy_s = 0.0

    def add_busy(self, seconds: float) -> None:
        """Count seconds of work."""
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self.num_texts *= kept
        self._busy_s = kept * self._busy_s + seconds

    @property
    def texts_per_s(self) -> float:
        """Texts per second; 0 before the first text."""
        return self.num_texts / self._busy_s if self._busy_s else 0.0


#: Number of recent jobs in a heartbeat. Each takes some 250 bytes, and every reader of the pool reads all heartbeats.
MAX_JOBS = 8

#: Largest length of a client's name in a heartbeat, in characters. Longer names are cut.
MAX_CLIENT_CHARS = 256

#: Time over which the longest wait of a lane is measured, and the length of its parts, which expire one by one, in
#: seconds.
WINDOW_S, PART_S = 60.0, 5.0


class RecentJobs:
    """The last jobs of a worker, and the longest wait of each lane in the last minute. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: deque[Mapping[str, Any]] = deque(maxlen=MAX_JOBS)
        self._longest: dict[tuple[str, int], float] = {}
        self._lock = Lock()

    def add(self, jobs: Sequence[Mapping[str, Any]], waits: Iterable[tuple[str, float]], now_s: float) -> None:
        """Add answered jobs, as maps for the heartbeat, and for each job its lane and its wait in seconds."""
        with self._lock:
            self._jobs.extend(jobs)
            for lane, wait_s in waits:
                part = (lane, int(now_s / PART_S))
                self._longest[part] = max(wait_s, self._longest.get(part, 0.0))

    def newest(self) -> list[Mapping[str, Any]]:
        """Return the jobs, the newest first."""
        with self._lock:
            return list(reversed(self._jobs))

    def longest_waits(self, now_s: float) -> dict[str, float]:
        """Return, by lane, the longest wait of a job that was answered in the last minute, in seconds."""
        found: dict[str, float] = {}
        with self._lock:
            # Old parts are forgotten, and so are parts in the future, which exist if the clock was set back.
            first, last = int((now_s - WINDOW_S) / PART_S), int(now_s / PART_S)
            self._longest = {part: wait_s for part, wait_s in self._longest.items() if first < part[1] <= last}
            for (lane, _), wait_s in self._longest.items():
                found[lane] = max(wait_s, found.get(lane, 0.0))
        return found


@dataclass(frozen=True, slots=True)
class EndedJob:
    """An answered job, without its texts. A job that was refused before its begin has no timings."""

    delivery: Delivery
    id: str | None
    op: str | None
    traceparent: str | None
    num_texts: int | None
    num_computed: int = 0
    num_tokens: int | None = None
    num_cached: int | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    num_lane_texts: int = 0
    error: ShoalError | None = None

    @classmethod
    def refused(cls, delivery: Delivery, outline: Outline, error: ShoalError) -> Self:
        """Return the refused job, with the values of its outline."""
        job_id = delivery.put_as or outline.id
        return cls(delivery, job_id, outline.op, outline.traceparent, outline.num_texts, error=error)

    def to_heartbeat(self, now_s: float) -> dict[str, Any]:
        """Return the map for the heartbeat about the job, which was answered at `now_s`."""
        return {
            "id": self.id,
            "op": self.op,
            "lane": self.delivery.lane,
            "client": self.delivery.client[:MAX_CLIENT_CHARS],
            "num_texts": self.num_texts,
            "num_tokens": self.num_tokens,
            "num_cached": self.num_cached,
            "status": Reply.failure("", self.error).status if self.error else "done",
            "error": self.error.code if self.error else None,
            "ended_at": round(now_s, 3),
            "total_s": round(self.delivery.queued_s(now_s), 6),
            "timings": {name: round(seconds, 6) for name, seconds in self.timings.items()},
        }


class JobLog:
    """The log of the jobs that one worker answers."""

    def __init__(self, worker_id: str, clock: Clock, tracer: Tracer | None = None):
        self._worker_id, self._clock, self._tracer = worker_id, clock, tracer
        self.measurements, self.throughput, self.recent = Measurements(), Throughput(), RecentJobs()

    def note(self, jobs: Sequence[EndedJob], replying_at: float) -> None:
        """Count and log jobs. The worker began to write their replies at `replying_at`, in Unix seconds."""
        ended_at, now_s, counters = time.time(), self._clock.now(), self.measurements.counters
        waits = [job.timings["queue_s"] if job.timings else job.delivery.queued_s(now_s) for job in jobs]
        by_lane = zip((job.delivery.lane for job in jobs), waits, strict=True)
        self.recent.add([job.to_heartbeat(now_s) for job in jobs[-MAX_JOBS:]], by_lane, now_s)
        for job, wait_s in zip(jobs, waits, strict=True):
            self.measurements.waits[job.delivery.lane].add(wait_s)
            counters["failed"] += job.error is not None
            if job.timings:  # otherwise the job was refused before its begin
                counters["jobs"] += 1
                counters["texts"] += job.num_computed
                counters["tokens"] += job.num_tokens or 0
                self.throughput.num_texts += job.num_lane_texts
                for name, seconds in job.timings.items():
                    counters[name] += seconds  # type: ignore[assignment]
            if log.isEnabledFor(logging.DEBUG):
                facts = {**_facts(job), **job.timings}
                message = "job failed" if job.error else "job done"
                log.debug(message, extra=logs.about(job.id, job.delivery.client, job.traceparent, **facts))
            if self._tracer:
                self._record(self._tracer, job, replying_at, ended_at)

    def _record(self, tracer: Tracer, job: EndedJob, replying_at: float, ended_at: float) -> None:
        """Record the span of a job and one span for each step. A step done in several pieces has one span."""
        start = job.delivery.put_ms / 1000 + self._clock.offset_s
        names = {"worker": self._worker_id, "lane": job.delivery.lane, "client": job.delivery.client}
        facts = {f"shoal.{name}": value for name, value in {"job_id": job.id or "", **names, **_facts(job)}.items()}
        span = tracer.begin("job", "CONSUMER", job.traceparent, _ns(start), facts)
        if job.error:
            tracer.fail(span, job.error.code)
            return span.end()
        if span.is_recording():
            parent = traceparent.format_traceparent(span.get_span_context())

            def record(step: str, begun: float, ended: float) -> None:
                tracer.begin(step, "INTERNAL", parent, _ns(begun)).end(_ns(ended))

            for name in ("queue", "tokenize", "encode"):
                end = start + job.timings[f"{name}_s"]
                record(name, start, end)
                start = end
            if search_s := job.timings["search_s"]:
                record("search", replying_at - search_s, replying_at)
            record("reply", replying_at, ended_at)
        span.end(_ns(ended_at))


def _facts(job: EndedJob) -> dict[str, Any]:
    facts = {"op": job.op or "unknown", "texts": job.num_texts or 0}
    if job.error:
        return facts | {"error": job.error.code}
    return facts | {"computed": job.num_computed, "tokens": job.num_tokens or 0}


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
