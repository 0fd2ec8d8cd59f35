"""A worker of RQ for long jobs: a process that takes them from its queue and has each done by a process of its own.

What RQ's worker would do because Redis says so, it does not: it listens to no commands, calls no callbacks, and sends
no webhooks of RQ.
"""

import logging
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeAlias

from rq.exceptions import NoSuchJobError, StopRequested
from rq.job import JobStatus
from rq.job_lifecycle import format_exc_info
from rq.timeouts import JobTimeoutException
from rq.utils import now
from rq.worker import Worker, WorkerStatus

from shoal.broker.broker import Broker
from shoal.errors import (
    DiskFull,
    Expired,
    FileError,
    FolderBusy,
    IndexBusy,
    Internal,
    MalformedJob,
    NotReady,
    Overloaded,
    Paused,
    ShoalError,
    Timeout,
    Unavailable,
)
from shoal.excerpt import excerpt
from shoal.long_jobs.rq_queue import LongJob, LongQueue
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_task import Report
from shoal.parent_death import die_with_parent
from shoal_workers.long_jobs.control import JobControl
from shoal_workers.long_jobs.maintenance import Maintenance

log = logging.getLogger(__name__)

#: The function of a kind of job: takes the arguments, the id of the job and the call to report progress; returns the
#: result, a map.
Task: TypeAlias = Callable[[Mapping[str, Any], str, Report], Any]

#: Pause between two signs of life of a job's process, and the time after which it counts as dead.
HEARTBEAT_S, ALIVE_S = 2, 8

#: Time for which a worker is listed that gives no sign of life.
LISTED_S = 15

#: Longest that a job which is told to stop goes on, until its next report; then its process is killed.
STOP_WITHIN_S = 6.0

#: Errors that pass by themselves: after one of them a job is tried again. A folder may still be locked by a process of
#: the same job that was slow to notice that it had lost it.
PASSING = (Unavailable, Overloaded, NotReady, Timeout, Expired, FolderBusy, IndexBusy)

_STOPS = (signal.SIGTERM, signal.SIGINT)


class RunnableJob(LongJob):
    """A long job in a runner, which has a table of functions."""

    functions: ClassVar[Mapping[str, Task]] = {}
    control: JobControl

    def _execute(self) -> Any:
        """Do the job. Raises ShoalErrors alone, with their messages and without what they were caused by."""
        submission = self.submission
        function = self.functions.get(submission.kind)
        if function is None:
            raise MalformedJob(f"there is no long job called {excerpt(submission.kind)}")
        self.set_error(None)
        try:
            result = function(submission.arguments, self.id, self.control.report)
        except (Exception, JobTimeoutException) as error:
            raise _translated(error, self).with_traceback(error.__traceback__) from None
        self.control.save()
        return result


def _translated(error: Exception, job: LongJob) -> ShoalError:
    """Return the error that is kept: no message of another library, which may repeat a text."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, JobTimeoutException):
        return Timeout(f"the job took longer than {job.timeout} s, the limit of its kind")
    if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
        return DiskFull(f"no room to write {error.filename or 'the output'}: make some, and retry the job")
    if isinstance(error, OSError) and error.filename:
        return FileError(f"{error.filename} cannot be used ({error.strerror}): check its name and permissions")
    return Internal(f"{type(error).__name__} in the job: the log of the runner has its traceback")


class LongJobWorker(Worker):
    """A worker for some queues, the first before the others.

    It does one job at a time, each in a process that it starts and watches.
    """

    log_result_lifespan = False
    max_connection_wait_time = 2.0

    def __init__(self, queues: Sequence[LongQueue], name: str, broker: Broker):
        super().__init__(
            queues,
            name=name,
            connection=queues[0].connection,
            job_class=queues[0].job_class,
            queue_class=LongQueue,
            serializer=MsgpackSerializer,
            job_monitoring_interval=HEARTBEAT_S,
            maintenance_interval=1,
            log_job_description=False,
        )
        self._broker = broker
        self._maintenance = [Maintenance(queue) for queue in queues]
        self._told_to_stop_s = 0.0
        self._last_fault = ""

    # Taking jobs

    def run(self) -> None:
        """Do jobs until the worker is told to stop. Raises redis-py's errors, after which it can do no more.

        RQ's own loop would end with a traceback when Redis is full.
        """
        self.bootstrap("ERROR")
        self._install_signal_handlers()  # type: ignore[no-untyped-call]
        with suppress(StopRequested):
            try:
                while not self._stop_requested:
                    self.check_for_suspension(burst=False)
                    if found := self.dequeue_job_and_maintain_ttl(self.dequeue_timeout):
                        self.execute_job(*found)
            finally:
                self.teardown()

    @property
    def dequeue_timeout(self) -> int:
        """Longest wait for a job, after which the queue is cared for."""
        return HEARTBEAT_S

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Say that the worker is alive.

        Raises StopRequested if it was told to stop and has no job: logging, for example, swallows what `request_stop`
        raises while it is at work.
        """
        if self._stop_requested and self.get_state() != WorkerStatus.BUSY:
            raise StopRequested
        super().heartbeat(LISTED_S, pipeline)

    def run_maintenance_tasks(self) -> None:
        """Care for the queue; what another program wrote there must not stop this worker."""
        self.last_cleaned_at = now()  # type: ignore[assignment]
        fault = ""
        try:
            with self._broker.translated():
                for maintenance in self._maintenance:
                    maintenance.run()
        except ShoalError as error:
            fault = error.message
        except ValueError as error:
            fault = type(error).__name__
        if fault and fault != self._last_fault:
            log.error("the queue %s cannot be cared for (%s)", self.queues[0].name, fault)
        self._last_fault = fault

    def execute_job(self, job: Any, queue: Any) -> None:
        """Have the job done, unless it is to be paused or cancelled, or does not wait: it may be queued twice."""

        def obey(pipeline: Any, wanted: str) -> None:
            if wanted:
                queue.place(job, wanted, pipeline)

        wanted = job.write_while(JobStatus.QUEUED, obey)
        if wanted is None:
            self.connection.lrem(queue.intermediate_queue_key, 0, job.id)
        elif not wanted:
            log.info("job %s (%s) begins", job.id, job.kind.name)
            super().execute_job(job, queue)

    def get_heartbeat_ttl(self, job: Any, working_time: float = 0.0) -> int:
        """Return the time after which a job counts as abandoned if its worker gives no sign of life."""
        return ALIVE_S

    # Watching the process of a job

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        """Start the process of a job; signals wait until it can handle them."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        super().fork_work_horse(job, queue)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def maintain_heartbeats(self, job: Any, execution: Any) -> None:
        """Say that the process of the job is alive; end it if it does not stop, or if another runner has the job."""
        if self._stop_requested:
            self._tell_process()
            if time.monotonic() - self._told_to_stop_s > STOP_WITHIN_S:
                self.kill_horse()
        with suppress(ShoalError), self._broker.translated():
            super().maintain_heartbeats(job, execution)
            if self.connection.zscore(job.started_job_registry.key, execution.composite_key) is None:
                log.warning("job %s: another runner has it, as Redis did not hear of this one", job.id)
                self.kill_horse()

    def handle_job_failure(
        self, job: Any, queue: Any, started_job_registry: Any = None, exc_string: str = "", execution: Any = None
    ) -> None:
        """Let a job whose process died go on, be tried again or fail, if it is still this worker's."""
        try:
            job.refresh()
        except NoSuchJobError:
            return
        job.origin, job.ended_at, job.enqueue_at_front_on_retry = queue.name, now(), True
        retries_left = job.retries_left

        def end(pipeline: Any, wanted: str) -> None:
            if wanted or self._stop_requested:
                queue.place(job, wanted, pipeline)
                return
            job.retries_left = retries_left
            job.set_error(Internal("the process of the job was killed, perhaps because there was no memory left"))
            queue.retry_or_fail(job, exc_string, pipeline)

        if self._end(job, execution, end) and not self._stop_requested:
            log.error("job %s (%s): its process was killed", job.id, job.kind.name)

    def _end(self, job: Any, execution: Any, write: Callable[[Any, str], None]) -> bool:
        """End this run of the job in one transaction; return False if the job is not this worker's any more.

        `write` is as `write_while` takes it. Raises Unavailable or Overloaded.
        """

        def end(pipeline: Any, wanted: str) -> None:
            self.cleanup_execution(job, pipeline, execution)
            write(pipeline, wanted)

        with self._broker.translated():
            if job.write_while(JobStatus.STARTED, end, worker=self.name) is not None:
                return True
            with self.connection.pipeline() as pipeline:
                self.cleanup_execution(job, pipeline, execution)
                pipeline.execute()
        log.warning("job %s: this run of it ends without a word, as the job is not its worker's any more", job.id)
        return False

    # Stopping

    def request_stop(self, signum: Any, frame: Any) -> None:
        """End the worker: at once if it has no job, else when the job has stopped at its next report."""
        self._stop_requested = True
        self._told_to_stop_s = self._told_to_stop_s or time.monotonic()
        if self.get_state() != WorkerStatus.BUSY:
            raise StopRequested
        self._tell_process()

    def _tell_process(self) -> None:
        if self.horse_pid:
            with suppress(ProcessLookupError):
                os.kill(self.horse_pid, signal.SIGTERM)

    def teardown(self) -> None:
        """Take the worker off the list, if Redis is there."""
        with suppress(ShoalError), self._broker.translated():
            super().teardown()  # type: ignore[no-untyped-call]

    # The process of a job

    def main_work_horse(self, job: Any, queue: Any) -> None:
        """Do the job in the process that was started for it."""
        die_with_parent(signal.SIGKILL, self.pid or 0)
        job.control = JobControl(job, self.name, self._broker.translated)
        self._control = job.control
        super().main_work_horse(job, queue)

    def setup_work_horse_signals(self) -> None:
        """Have the job stop at its next report when the process is told to end."""

        def stop(*_: object) -> None:
            self._control.is_told_to_stop = True

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def prepare_job_execution(self, job: Any, remove_from_intermediate_queue: bool = False) -> None:
        """Make the job this worker's. Raises Paused if it does not wait any more, as when it was cancelled just now."""

        def begin(pipeline: Any, wanted: str) -> None:
            self.heartbeat(pipeline=pipeline)
            job.prepare_for_execution(self.name, pipeline)
            pipeline.persist(job.key)
            pipeline.lrem(LongQueue(job.origin, self.connection).intermediate_queue_key, 1, job.id)

        with self._broker.translated():
            if job.write_while(JobStatus.QUEUED, begin) is None:
                self._control.reason = "lost"
                raise Paused("the job does not wait any more")

    def _finalize_success(self, job: Any, queue: Any, execution: Any, return_value: Any) -> None:
        """End a run that returned. Raises Unavailable or Overloaded, after which the run counts as failed."""
        job.ended_at, job._result = now(), return_value

        def succeed(pipeline: Any, wanted: str) -> None:
            self.increment_successful_job_count(pipeline)
            self.increment_total_working_time(job.ended_at - job.started_at, pipeline)
            job._handle_success(job.result_ttl, pipeline, self.name, execution.id, execution.created_at, job.ended_at)
            job.cleanup(job.result_ttl, pipeline, remove_from_queue=False)

        if self._end(job, execution, succeed):
            log.info("job %s (%s) is done", job.id, job.kind.name)

    def _finalize_failure(self, job: Any, queue: Any, execution: Any, exc_info: Any) -> None:
        """End a run that raised: the job was stopped, or it failed. Raises Unavailable or Overloaded."""
        if self._control.reason:
            log.info("job %s (%s) is stopped (%s)", job.id, job.kind.name, self._control.reason)
            self._end(job, execution, lambda pipeline, wanted: queue.place(job, wanted, pipeline))
            return
        error = exc_info[1] if isinstance(exc_info[1], ShoalError) else Internal(f"{type(exc_info[1]).__name__}")
        retries_left = job.retries_left if isinstance(error, PASSING) else 0
        job.ended_at = now()
        job.set_error(error)

        def fail(pipeline: Any, wanted: str) -> None:
            job.retries_left = retries_left
            self.increment_failed_job_count(pipeline)
            self.increment_total_working_time(job.ended_at - job.started_at, pipeline)
            queue.retry_or_fail(job, format_exc_info(exc_info), pipeline)

        if self._end(job, execution, fail):
            self.handle_exception(job, *exc_info)

    def handle_exception(self, job: Any, *exc_info: Any) -> None:
        """Log the error; of one that is none of Shoal's, the place and no message, which may repeat a text."""
        error = job.meta.get("error", {})
        log.error("job %s (%s) failed: %s [%s]", job.id, job.kind.name, error.get("message"), error.get("code"))
        if error.get("code") == Internal.code:
            log.error("".join(traceback.format_tb(exc_info[2])))

    # What RQ would do, and long jobs do without

    def subscribe(self) -> None:
        """Listen to nothing: any program that reaches Redis could end this worker or its jobs."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed to."""

    def clean_group_registries(self) -> None:
        """There are no groups."""

    def procline(self, message: Any) -> None:
        """Leave the name of the process as it is."""

    def _set_ip_address(self, connection: Any) -> None:
        self.ip_address = "unknown"
