"""The log of answered jobs: counters, log lines, spans, and notes for the heartbeat."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from shoal.broker.clock import Clock
from shoal.contract import traceparent
from shoal.contract.outline import Outline
from shoal.contract.replies import Reply
from shoal.errors import ShoalError
from shoal.process import logs
from shoal.queue.consumer import Delivery
from shoal_workers.process.measurements import MAX_CLIENT_CHARS, MAX_JOBS, Measurements, RecentJobs, Throughput

if TYPE_CHECKING:
    from shoal.process.spans import Tracer

log = logging.getLogger(__name__)


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

    def __init__(self, worker_id: str, clock: Clock, tracer: "Tracer | None" = None):
        self._worker_id, self._clock, self._tracer = worker_id, clock, tracer
        self.measurements, self.throughput, self.recent = Measurements(), Throughput(), RecentJobs()

    def note(self, jobs: Sequence[EndedJob], replying_at: float) -> None:
        """Log jobs. The worker began to write their replies at `replying_at`, in Unix seconds."""
        ended_at, now_s = time.time(), self._clock.now()
        self.recent.add([job.to_heartbeat(now_s) for job in jobs[-MAX_JOBS:]])
        for job in jobs:
            self._count(job, now_s)
            if log.isEnabledFor(logging.DEBUG):
                facts = {**_facts(job), **job.timings}
                message = "job failed" if job.error else "job done"
                log.debug(message, extra=logs.about(job.id, job.delivery.client, job.traceparent, **facts))
            if self._tracer:
                self._record(self._tracer, job, replying_at, ended_at)

    def _count(self, job: EndedJob, now_s: float) -> None:
        counters = self.measurements.counters
        wait_s = job.timings["queue_s"] if job.timings else job.delivery.queued_s(now_s)
        self.recent.add_wait(job.delivery.lane, wait_s, now_s)
        self.measurements.waits[job.delivery.lane].add(wait_s)
        if job.error:
            counters["failed"] += 1
        if not job.timings:  # the job was refused before its begin
            return
        counters["jobs"] += 1
        counters["texts"] += job.num_computed
        counters["tokens"] += job.num_tokens or 0
        self.throughput.add_texts(job.num_lane_texts)
        for name, seconds in job.timings.items():
            counters[name] += seconds  # type: ignore[assignment]

    def _record(self, tracer: "Tracer", job: EndedJob, replying_at: float, ended_at: float) -> None:
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
