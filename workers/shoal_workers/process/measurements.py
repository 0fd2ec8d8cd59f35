"""Measurements of a worker since its start, such as its throughput; its last jobs, and the log of answered jobs."""

import logging
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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

#: Bucket limits of histograms: seconds that a job waited, and texts, tokens and fill (share of the room) of a pass.
WAIT_LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0)
TEXTS_LIMITS = (1, 4, 16, 64)
TOKENS_LIMITS = (64, 256, 1_024, 4_096)
FILL_LIMITS = (0.1, 0.25, 0.5, 0.75)

#: Factor by which each round reduces the weight of earlier rounds. The last 1,000 have two thirds of the weight.
KEPT = 0.999


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
        #: The number of rounds with a pass, and the sums of tokens, tokens squared, seconds, and tokens times seconds.
        self.rounds = [0.0] * 5
        #: The number of answered texts, and the seconds of the loop's work, while the worker had jobs.
        self.num_texts, self.work_s = 0, 0.0

    @property
    def num_tokens(self) -> float:
        """The number of tokens of all passes that have begun."""
        return self._batches["tokens"].sum

    def add_round(self, num_tokens: float, seconds: float) -> None:
        """Count a round of the worker's loop, which computed `num_tokens`. Earlier rounds lose weight."""
        new = (1.0, num_tokens, num_tokens**2, seconds, num_tokens * seconds)
        self.rounds = [KEPT * total + one for total, one in zip(self.rounds, new, strict=True)]

    def add_batch(self, num_texts: int, num_tokens: int, max_tokens: int) -> None:
        """Count a pass with these numbers of texts and tokens, and room for `max_tokens`."""
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
            "rounds": self.rounds,
            "texts_per_s": self.num_texts / self.work_s if self.work_s else 0.0,
            "memory_bytes": resident_bytes(),
        }


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, or None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


#: Number of recent jobs in a heartbeat. Each takes some 250 bytes, and every reader of the pool reads all heartbeats.
MAX_JOBS = 8


@dataclass(frozen=True, slots=True)
class EndedJob:
    """An answered job, without its texts. If a job was refused before the worker began with it, it has no timings."""

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
            "client": self.delivery.client,
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
        self.measurements = Measurements()
        #: The last jobs, the newest first, as maps for the heartbeat.
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=MAX_JOBS)

    def note(self, jobs: Sequence[EndedJob], replying_at: float) -> None:
        """Count and log jobs. The worker began to write their replies at `replying_at`, in Unix seconds."""
        ended_at, now_s, counters = time.time(), self._clock.now(), self.measurements.counters
        self.recent.extendleft(job.to_heartbeat(now_s) for job in jobs[-MAX_JOBS:])
        for job in jobs:
            wait_s = job.timings["queue_s"] if job.timings else job.delivery.queued_s(now_s)
            self.measurements.waits[job.delivery.lane].add(wait_s)
            counters["failed"] += job.error is not None
            if job.timings:  # otherwise the job was refused before the worker began with it
                counters["jobs"] += 1
                counters["texts"] += job.num_computed
                counters["tokens"] += job.num_tokens or 0
                self.measurements.num_texts += job.num_lane_texts
                for name, seconds in job.timings.items():
                    counters[name] += seconds  # type: ignore[assignment]
            if log.isEnabledFor(logging.DEBUG):
                facts = {**_facts(job), **job.timings}
                message = "job failed" if job.error else "job done"
                log.debug(message, extra=logs.about(job.id, job.delivery.client, job.traceparent, **facts))
            if self._tracer:
                self._record(self._tracer, job, replying_at, ended_at)

    def _record(self, tracer: Tracer, job: EndedJob, replying_at: float, ended_at: float) -> None:
        """Record the span of a job and one span for each step, even if the step was done in several pieces."""
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
