"""The log of jobs: a line for each job that a worker has answered, and the spans of its steps, if spans are on.

Both are made of the times that the job has recorded, after its reply was written.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal import logs, traceparent
from shoal.broker.clock import Clock
from shoal.errors import ShoalError
from shoal.index_job import IndexJob
from shoal.outline import Outline
from shoal.queue.delivery import Delivery
from shoal_workers.work import Work

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from shoal.spans import Tracer, Value

log = logging.getLogger(__name__)


class JobLog:
    """The log of the jobs that one worker answers."""

    def __init__(self, worker_id: str, clock: Clock, tracer: "Tracer | None" = None):
        self._worker_id, self._clock, self._tracer = worker_id, clock, tracer

    def note_answered(self, works: Sequence[Work], replying_at: float) -> None:
        """Note jobs without an error; the worker began to write their replies at `replying_at`, in Unix seconds."""
        if log.isEnabledFor(logging.DEBUG):
            for work in works:
                names = (work.job.id, work.delivery.client, work.job.traceparent)
                facts: dict[str, Any] = _facts(work) | work.timings
                log.debug("job done", extra=logs.about(*names, **facts))
        if self._tracer is None:
            return
        ended_at = time.time()
        for work in works:
            self._record(self._tracer, work, replying_at, ended_at)

    def note_refused(self, delivery: Delivery, job_id: str | None, outline: Outline, error: ShoalError) -> None:
        """Note a job that was answered with an error."""
        facts: dict[str, Any] = {"op": outline.op or "unknown", "texts": outline.num_texts or 0, "error": error.code}
        log.debug("job failed", extra=logs.about(job_id, delivery.client, outline.traceparent, **facts))
        if self._tracer is None:
            return
        span = self._begin(self._tracer, delivery, outline.traceparent, {"job_id": job_id or "", **facts})
        self._tracer.fail(span, error.code)
        span.end()

    def _record(self, tracer: "Tracer", work: Work, replying_at: float, ended_at: float) -> None:
        """Record the spans of a job. A step that was done in pieces has one span, of the time of all its pieces.

        The job's wait, tokenizing and encoding are shown one after the other from when it was put, and its search just
        before its reply.
        """
        span = self._begin(tracer, work.delivery, work.job.traceparent, {"job_id": work.job.id, **_facts(work)})
        if span.is_recording():
            parent, start = traceparent.format_traceparent(span.get_span_context()), self._put_at(work.delivery)
            for name in ("queue", "tokenize", "encode"):
                end = start + work.timings[f"{name}_s"]
                _record_step(tracer, name, parent, start, end)
                start = end
            if isinstance(work.job, IndexJob):
                _record_step(tracer, "search", parent, replying_at - work.timings["search_s"], replying_at)
            _record_step(tracer, "reply", parent, replying_at, ended_at)
        span.end(_ns(ended_at))

    def _begin(self, tracer: "Tracer", delivery: Delivery, parent: str | None, facts: "Mapping[str, Value]") -> "Span":
        """Return the span of a job, which began when it was put."""
        names = {"worker": self._worker_id, "lane": delivery.lane, "client": delivery.client, **facts}
        attributes = {f"shoal.{name}": value for name, value in names.items()}
        return tracer.begin("job", "CONSUMER", parent, _ns(self._put_at(delivery)), attributes)

    def _put_at(self, delivery: Delivery) -> float:
        """Return when the job was put, in Unix seconds by the clock of this machine."""
        return delivery.put_ms / 1000 + self._clock.offset_s


def _facts(work: Work) -> dict[str, Any]:
    num_texts, num_tokens = work.num_computed
    return {"op": work.job.op, "texts": len(work.job.texts), "computed": num_texts, "tokens": num_tokens}


def _record_step(tracer: "Tracer", name: str, parent: str, start: float, end: float) -> None:
    """Record a step of a job between two times in Unix seconds."""
    tracer.begin(name, "INTERNAL", parent, _ns(start)).end(_ns(end))


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
