"""The part of a worker that runs in the process of a job: it begins with the job, does it, and writes how it ended."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from rq.job import JobStatus
from rq.job_lifecycle import format_exc_info
from rq.utils import now
from rq.worker import Worker

from shoal.broker.broker import Broker
from shoal.contract.traceparent import continued, format_traceparent
from shoal.errors import Internal, Paused, ShoalError
from shoal.long_jobs.rq_queue import LongQueue
from shoal.process import logs
from shoal.process.parent_death import die_with_parent
from shoal_workers.long_jobs.control import JobControl
from shoal_workers.long_jobs.runnable_job import TEMPORARY_ERRORS

if TYPE_CHECKING:
    from shoal.process.spans import Tracer

log = logging.getLogger(__name__)

#: The signals that tell a worker and the process of its job to end.
STOPS = (signal.SIGTERM, signal.SIGINT)


class JobProcess(Worker):
    """A worker of RQ, as far as it runs in the process that is started for a job."""

    broker: Broker
    open_tracer: "Callable[[], Tracer | None]"
    _control: JobControl

    def main_work_horse(self, job: Any, queue: Any) -> None:
        """Do the job in the process that was started for it."""
        die_with_parent(signal.SIGKILL, self.pid or 0)
        job.control = JobControl(job, self.name, self.broker.translated)
        self._control = job.control
        super().main_work_horse(job, queue)

    def perform_job(self, job: Any, *where: Any) -> bool:
        """Do the job as a part of the trace that it belongs to; return True if it is done."""
        with self._traced(job):
            return super().perform_job(job, *where)

    @contextmanager
    def _traced(self, job: Any) -> Iterator[None]:
        """Have what the job does belong to the trace of its submitter, with a span of this run if spans are on."""
        tracer = self.open_tracer()
        if tracer is None:
            with continued(job.traceparent):
                yield
            return
        with closing(tracer):
            facts = {"shoal.job_id": job.id, "shoal.kind": job.kind.name}
            span = tracer.begin("long job", "CONSUMER", job.traceparent, time.time_ns(), facts)
            with continued(format_traceparent(span.get_span_context())):
                yield
            if isinstance(error := job.meta.get("error"), dict):
                tracer.fail(span, str(error.get("code")))
            span.end()

    def setup_work_horse_signals(self) -> None:
        """Have the job stop at its next report when the process is told to end."""

        def stop(*_: object) -> None:
            self._control.is_told_to_stop = True

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def prepare_job_execution(self, job: Any, remove_from_intermediate_queue: bool = False) -> None:
        """Make the job this worker's. Raises Paused if it does not wait any more, as when it was cancelled just now."""

        def begin(pipeline: Any, wanted: str) -> None:
            self.heartbeat(pipeline=pipeline)
            job.prepare_for_execution(self.name, pipeline)
            pipeline.persist(job.key)
            pipeline.lrem(LongQueue(job.origin, self.connection).intermediate_queue_key, 1, job.id)

        with self.broker.translated():
            if job.write_while(JobStatus.QUEUED, begin) is None:
                self._control.reason = "lost"
                raise Paused("the job does not wait any more")

    def _finalize_success(self, job: Any, queue: Any, execution: Any, return_value: Any) -> None:
        """End a run that returned. Raises Unavailable or Overloaded, after which the run counts as failed."""
        job.ended_at, job._result = now(), return_value

        def succeed(pipeline: Any, wanted: str) -> None:
            pipeline.hset(job.key, "meta", job.serializer.dumps(job.meta))  # without the error of an earlier try
            self.increment_successful_job_count(pipeline)
            self.increment_total_working_time(job.ended_at - job.started_at, pipeline)
            job._handle_success(job.result_ttl, pipeline, self.name, execution.id, execution.created_at, job.ended_at)
            queue.announce_end(job, pipeline)
            job.cleanup(job.result_ttl, pipeline, remove_from_queue=False)

        if self.end_run(job, execution, succeed):
            log.info("the long job is done", extra=job.about)

    def _finalize_failure(self, job: Any, queue: Any, execution: Any, exc_info: Any) -> None:
        """End a run that raised: the job was stopped, or it failed. Raises Unavailable or Overloaded."""
        if self._control.reason:
            log.info("the long job is stopped (%s)", self._control.reason, extra=job.about)
            self.end_run(job, execution, lambda pipeline, wanted: queue.place(job, wanted, pipeline))
            return
        error = exc_info[1] if isinstance(exc_info[1], ShoalError) else Internal(f"{type(exc_info[1]).__name__}")
        retries_left = job.retries_left if isinstance(error, TEMPORARY_ERRORS) else 0
        job.ended_at = now()
        job.set_error(error)

        def fail(pipeline: Any, wanted: str) -> None:
            job.retries_left = retries_left
            self.increment_failed_job_count(pipeline)
            self.increment_total_working_time(job.ended_at - job.started_at, pipeline)
            queue.retry_or_fail(job, format_exc_info(exc_info), pipeline)

        if self.end_run(job, execution, fail):
            where = f" ({logs.places(exc_info[1])})" if error.code == Internal.code else ""
            level, again = (logging.WARNING, " and is tried again") if retries_left else (logging.ERROR, "")
            log.log(level, "the long job failed%s: %s%s [%s]", again, error.message, where, error.code, extra=job.about)

    def end_run(self, job: Any, execution: Any, write: Callable[[Any, str], None]) -> bool:
        """End this run of the job in one transaction; return False if the job is not this worker's any more.

        `write` is as `write_while` takes it. Raises Unavailable or Overloaded.
        """

        def end(pipeline: Any, wanted: str) -> None:
            self.cleanup_execution(job, pipeline, execution)
            write(pipeline, wanted)

        with self.broker.translated():
            if job.write_while(JobStatus.STARTED, end, worker=self.name) is not None:
                return True
            with self.connection.pipeline() as pipeline:
                self.cleanup_execution(job, pipeline, execution)
                pipeline.execute()
        log.warning("the end of this run is not written, as the job is not its worker's any more", extra=job.about)
        return False
