"""An RQ worker for long jobs: a process that takes jobs from its queue and starts a child process for each job.

The worker stops a job by killing its process. Each job saves the data that it needs to continue, so a cancellation, a
stop of the runner and a crash are handled alike. Other programs that write into Redis cannot control the worker as they
can control RQ's: it listens to no commands, calls no callbacks, and sends none of RQ's webhooks.
"""

import logging
import os
import signal
from contextlib import suppress
from typing import Any

from rq.exceptions import StopRequested
from rq.job_lifecycle import format_exc_info
from rq.queue import Queue
from rq.timeouts import JobTimeoutException
from rq.utils import now
from rq.worker import Worker, WorkerStatus
from rq.worker_registration import register

from shoal.broker.broker import Broker
from shoal.contract.traceparent import continued
from shoal.errors import Internal, ShoalError
from shoal.long_jobs.rq_job import CANCEL, RUN, WANTED
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.process import logs
from shoal.process.system_limits import die_with_parent
from shoal_workers.long_jobs.maintenance import Maintenance
from shoal_workers.long_jobs.runnable_job import TEMPORARY_ERRORS, ProgressLog

log = logging.getLogger(__name__)

#: The signals that ask a worker to end.
STOPS = (signal.SIGTERM, signal.SIGINT)

#: Seconds between two heartbeats of a running job, and the age of the last heartbeat from which the job counts as
#: abandoned. At each heartbeat, the worker also checks whether the job should stop.
HEARTBEAT_S, ALIVE_S = 1, 8

#: Seconds that a worker waits for a job before its next heartbeat, and the age of the last heartbeat, in seconds, at
#: which the worker is no longer listed.
TAKE_S, LISTED_S = 2, 15


class LongJobWorker(Worker):
    """A worker of one queue. It starts and watches a process for one job at a time."""

    max_connection_wait_time = 2.0
    dequeue_timeout = TAKE_S
    connection_timeout = 2 * TAKE_S  # RQ's 12 s are longer than `ALIVE_S`

    def __init__(self, queue: Queue, name: str, broker: Broker):
        super().__init__(
            [queue],
            name=name,
            connection=queue.connection,
            job_class=queue.job_class,
            serializer=MsgpackSerializer,
            job_monitoring_interval=HEARTBEAT_S,
            maintenance_interval=1,
            log_job_description=False,
        )
        self._broker, self.birth_date = broker, now()
        self._maintenance = Maintenance(queue)
        self._has_killed = False  # True if this worker has killed the process of its job
        self._last_fault = ""

    # Taking jobs

    def run(self) -> None:
        """Run jobs until a signal asks the worker to end. Raises redis-py's errors, after which a new worker is needed.

        RQ's own loop would end with a traceback when Redis is full. Its start would listen to commands, by which any
        program with access to Redis could end this worker or its jobs.
        """
        for name in ("rq", "rq.worker"):  # this worker itself logs the start and the end of a job
            logging.getLogger(name).setLevel(logging.ERROR)
        self.heartbeat()
        self._install_signal_handlers()  # type: ignore[no-untyped-call]
        with suppress(StopRequested):
            try:
                while not self._stop_requested:
                    self.check_for_suspension(burst=False)
                    try:
                        found = self.dequeue_job_and_maintain_ttl(self.dequeue_timeout)
                    except ValueError:  # the entry is not an id of a job; the maintenance drops it
                        continue
                    if found:
                        self.execute_job(*found)
            finally:
                with suppress(ShoalError), self._broker.translated():
                    self.teardown()  # type: ignore[no-untyped-call]

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Renew all keys that list the worker as alive, because Redis may have lost some."""
        if self._stop_requested and self.get_state() != WorkerStatus.BUSY:
            raise StopRequested  # again, because logging drops an exception that `request_stop` raises in a log call
        whole = self.connection.pipeline() if pipeline is None else pipeline
        super().heartbeat(LISTED_S, whole)
        whole.hset(self.key, mapping={**self.serialize(), "state": self.get_state()})
        register(self, whole)
        if pipeline is None:
            whole.execute()

    def run_maintenance_tasks(self) -> None:
        """Maintain the queue; errors, also from entries that other programs wrote, are logged once."""
        self.last_cleaned_at = now()  # type: ignore[assignment]
        fault = ""
        try:
            with self._broker.translated():
                self._maintenance.run()
        except (ShoalError, ValueError) as error:
            fault = str(error)
        if fault and fault != self._last_fault:
            log.error("the maintenance of the queue %s failed (%s)", self.queues[0].name, fault)
        self._last_fault = fault

    def request_stop(self, signum: Any, frame: Any) -> None:
        """End the worker, at once if it has no job, else when the process of its job has ended."""
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise StopRequested

    # Watching the process of a job

    def execute_job(self, job: Any, queue: Queue) -> None:
        """Run the job in a process of its own, unless it no longer waits, for example because it was queued twice."""
        execution = job.begin(self.name, ALIVE_S) if job.origin == queue.name else None
        if execution is None:
            self.connection.lrem(queue.intermediate_queue_key, 0, job.id)
            return
        log.info("the long job begins", extra=job.about)
        self.executions[execution.id], self._has_killed = execution, False
        self.set_state(WorkerStatus.BUSY)
        self.fork_work_horse(job, queue)
        self.monitor_work_horse(job, queue, execution)
        self.set_state(WorkerStatus.IDLE)

    def fork_work_horse(self, job: Any, queue: Queue) -> None:
        """Start the process of a job; signals wait until the process has set its handlers."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        super().fork_work_horse(job, queue)
        with suppress(OSError):  # so that a kill of the process's group never hits this worker
            os.setpgid(self.horse_pid, self.horse_pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def get_heartbeat_ttl(self, job: Any, working_time: float = 0.0) -> int:
        """Return the seconds without a heartbeat after which a running job counts as abandoned."""
        return ALIVE_S

    def maintain_heartbeats(self, job: Any, execution: Any) -> None:
        """Renew the heartbeat of the job; kill its process if the job must stop or belongs to another run."""
        is_to_stop = self._stop_requested
        with suppress(ShoalError), self._broker.translated():
            super().maintain_heartbeats(job, execution)
            run, wanted = self.connection.hmget(job.key, RUN, WANTED)
            is_to_stop = is_to_stop or run != execution.id.encode() or wanted == CANCEL.encode()
        if is_to_stop:
            self._has_killed = True
            self.kill_horse()
        if self.should_run_maintenance_tasks:  # maintained here too, because all workers may have long jobs
            self.run_maintenance_tasks()

    def handle_job_failure(
        self, job: Any, queue: Queue, started_job_registry: Any = None, exc_string: str = "", execution: Any = None
    ) -> None:
        """End the run of a job whose process was killed. That is an error unless this worker killed the process."""
        with self._broker.translated():
            if self._has_killed:
                job.break_off(self.name, execution, None)
                log.info("the long job is stopped", extra=job.about)
                return
            error = Internal("the process of the job was killed, perhaps because there was no memory left")
            if job.break_off(self.name, execution, error, trace=exc_string):
                self._log_failure(job, "the process of the long job was killed")

    # In the process of a job

    def setup_work_horse_signals(self) -> None:
        """Let the process of a job end at a signal, and when its worker ends."""
        die_with_parent(signal.SIGKILL, self.pid or 0)
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def perform_job(self, job: Any, queue: Queue, execution: Any) -> bool:
        """Run the job, and write its result or error. Raises Unavailable or Overloaded if that cannot be written."""
        progress = ProgressLog(job, execution.id, self._broker.translated)
        with continued(job.submission.traceparent), self._broker.translated():
            try:
                with self.death_penalty_class(job.timeout, JobTimeoutException, job_id=job.id):
                    result = job.do(progress.report)
                progress.save()
            except ShoalError as error:
                progress.save()
                trace = format_exc_info((type(error), error, error.__traceback__))
                if job.break_off(self.name, execution, error, isinstance(error, TEMPORARY_ERRORS), trace):
                    where = f" ({logs.places(error)})" if error.code == Internal.code else ""
                    self._log_failure(job, f"the long job failed: {error.message}{where} [{error.code}]")
            else:
                if job.succeed(self.name, execution, result):
                    log.info("the long job is done", extra=job.about)
        return True

    def _log_failure(self, job: Any, words: str) -> None:
        """Log a failure, as an error if the job has ended with it."""
        if job.status in ("failed", "cancelled"):
            log.error(words, extra=job.about)
        else:
            log.warning("%s, which is tried again", words, extra=job.about)

    def _set_ip_address(self, connection: Any) -> None:
        self.ip_address = "unknown"
