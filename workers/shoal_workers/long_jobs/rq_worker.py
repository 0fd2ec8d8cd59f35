"""A worker of RQ for long jobs: a process that takes them from its queue and has each done by a process of its own.

What RQ's worker would do because Redis says so, it does not: it listens to no commands, calls no callbacks, and sends
no webhooks of RQ.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rq.exceptions import NoSuchJobError, StopRequested
from rq.job import JobStatus
from rq.utils import now
from rq.worker import WorkerStatus
from rq.worker_registration import register

from shoal.broker.broker import Broker
from shoal.errors import Internal, ShoalError
from shoal.long_jobs.rq_job import CANCEL, PAUSE, WANTED
from shoal.long_jobs.rq_queue import LongQueue
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal_workers.long_jobs.job_process import STOPS, JobProcess
from shoal_workers.long_jobs.maintenance import Maintenance

if TYPE_CHECKING:
    from shoal.process.spans import Tracer

log = logging.getLogger(__name__)

#: Pause between two signs of life of a job's process, and the time after which it counts as dead.
HEARTBEAT_S, ALIVE_S = 2, 8

#: Time for which a worker is listed that gives no sign of life.
LISTED_S = 15

#: Longest that a job which is told to stop goes on, until its next report; then its process is killed.
STOP_WITHIN_S = 6.0


class LongJobWorker(JobProcess):
    """A worker for some queues, the first before the others.

    It does one job at a time, each in a process that it starts and watches.
    """

    log_result_lifespan = False
    max_connection_wait_time = 2.0

    def __init__(
        self,
        queues: Sequence[LongQueue],
        name: str,
        broker: Broker,
        open_tracer: "Callable[[], Tracer | None]" = lambda: None,
    ):
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
        self.broker, self.open_tracer, self.birth_date = broker, open_tracer, now()
        self._maintenance = [Maintenance(queue) for queue in queues]
        self._told_to_stop_s = 0.0
        self._stop_ignored_since_s = 0.0  # a pause or a cancellation of the job under way
        self._has_killed = False  # the process of the job under way, as it ignored that
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
        """Longest wait for a job, after which the queue is maintained."""
        return HEARTBEAT_S

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Say that the worker is alive, in all the keys that tell it: Redis may have lost them.

        Raises StopRequested if it was told to stop and has no job: logging, for example, swallows what `request_stop`
        raises while it is at work.
        """
        if self._stop_requested and self.get_state() != WorkerStatus.BUSY:
            raise StopRequested
        whole = self.connection.pipeline() if pipeline is None else pipeline
        super().heartbeat(LISTED_S, whole)
        whole.hset(self.key, mapping={**self.serialize(), "state": self.get_state()})
        register(self, whole)
        if pipeline is None:
            whole.execute()

    def register_birth(self) -> None:
        """Say for the first time that the worker is alive."""
        self.heartbeat()

    def run_maintenance_tasks(self) -> None:
        """Maintain the queues; what another program wrote there must not stop this worker."""
        self.last_cleaned_at = now()  # type: ignore[assignment]
        fault = ""
        try:
            with self.broker.translated():
                for maintenance in self._maintenance:
                    maintenance.run()
        except ShoalError as error:
            fault = error.message
        except ValueError as error:
            fault = type(error).__name__
        if fault and fault != self._last_fault:
            log.error("the maintenance of the queue %s failed (%s)", self.queues[0].name, fault)
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
            log.info("the long job begins", extra=job.about)
            super().execute_job(job, queue)

    def get_heartbeat_ttl(self, job: Any, working_time: float = 0.0) -> int:
        """Return the time after which a job counts as abandoned if its worker gives no sign of life."""
        return ALIVE_S

    # Watching the process of a job

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        """Start the process of a job; signals wait until it can handle them."""
        self._stop_ignored_since_s, self._has_killed = 0.0, False
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        super().fork_work_horse(job, queue)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def maintain_heartbeats(self, job: Any, execution: Any) -> None:
        """Say that the process of the job is alive; end it if it does not stop, or if another runner has the job."""
        if self._stop_requested:
            self._tell_process()
            if time.monotonic() - self._told_to_stop_s > STOP_WITHIN_S:
                self.kill_horse()
        with suppress(ShoalError), self.broker.translated():
            super().maintain_heartbeats(job, execution)
            if self.connection.zscore(job.started_job_registry.key, execution.composite_key) is None:
                log.warning("another runner has the long job, as Redis did not hear of this one", extra=job.about)
                self.kill_horse()
            if self._ignores_stop(job):
                self._has_killed = True
                log.warning("the process of the long job is killed, as it did not stop when told to", extra=job.about)
                self.kill_horse()

    def _ignores_stop(self, job: Any) -> bool:
        """Return True if the job was paused or cancelled so long ago that its process should have noticed."""
        if self.connection.hget(job.key, WANTED) not in (PAUSE.encode(), CANCEL.encode()):
            self._stop_ignored_since_s = 0.0
            return False
        self._stop_ignored_since_s = self._stop_ignored_since_s or time.monotonic()
        return time.monotonic() - self._stop_ignored_since_s > STOP_WITHIN_S

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
            if wanted or self._stop_requested or self._has_killed:
                queue.place(job, wanted, pipeline)
                return
            job.retries_left = retries_left
            job.set_error(Internal("the process of the job was killed, perhaps because there was no memory left"))
            queue.retry_or_fail(job, exc_string, pipeline)

        if self.end_run(job, execution, end) and not (self._stop_requested or self._has_killed):
            level, again = (logging.WARNING, ", which is tried again") if retries_left else (logging.ERROR, "")
            log.log(level, "the process of the long job was killed%s", again, extra=job.about)

    # Stopping

    @property
    def is_told_to_stop(self) -> bool:
        """Return True once a signal told the worker to stop."""
        return self._stop_requested

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
        with suppress(ShoalError), self.broker.translated():
            super().teardown()  # type: ignore[no-untyped-call]

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
