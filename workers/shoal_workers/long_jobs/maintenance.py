"""The maintenance of an RQ queue: puts back the jobs of dead processes, enqueues due retries, forgets expired jobs.

RQ's own maintenance would call functions that a job names, and needs up to a minute to notice that a process died.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import JobStatus
from rq.queue import Queue
from rq.worker_registration import clean_worker_registry

from shoal.errors import Internal
from shoal.long_jobs.submission import LONG
from shoal_workers.long_jobs.runnable_job import RunnableJob

log = logging.getLogger(__name__)

#: Seconds for which a runner watches the queue before it takes over a job. After Redis was away, a live runner renews
#: the keys of its job within this time.
LOOK_FIRST_S = 4.0

#: Time within which a worker that has taken a job begins the run, in seconds. A worker that needs longer has died.
BETWEEN_S = 4.0

#: Longest pause between two rounds, in seconds. After a longer one, the runner watches for `LOOK_FIRST_S` again.
MAX_GAP_S = 6.0

#: Longest time for which a dead runner keeps the lock of the maintenance, in seconds.
LOCK_S = 10


class Maintenance:
    """Maintains a queue in rounds. Only one of the queue's workers does a round at a time."""

    def __init__(self, queue: Queue, clock: Callable[[], float] = time.monotonic):
        self._queue = queue
        self._connection: Any = queue.connection
        self._clock = clock
        self._looked_s = -MAX_GAP_S
        self._since_s = 0.0
        self._between: dict[bytes, float] = {}

    def run(self) -> None:
        """Do one round, unless another worker is doing one. Raises redis-py's errors."""
        now_s = self._clock()
        if now_s - self._looked_s > MAX_GAP_S:
            self._since_s = now_s
        self._looked_s = now_s
        if not self._connection.set(self._queue.registry_cleaning_key, 1, nx=True, ex=LOCK_S):
            return
        try:
            if now_s - self._since_s >= LOOK_FIRST_S:
                self._resume_abandoned()
            self._resume_between(now_s)
            self._enqueue_due()
            for registry in ("finished", "failed", "canceled"):
                expired = getattr(self._queue, f"{registry}_job_registry")
                self._connection.zremrangebyscore(expired.key, 0, time.time())
            clean_worker_registry(self._queue)
        finally:
            self._queue.release_maintenance_lock()  # type: ignore[no-untyped-call]

    def _resume_abandoned(self) -> None:
        """Put back the running jobs whose process no longer renews the key of its execution in Redis."""
        key = self._queue.started_job_registry.key
        for entry in self._connection.zrange(key, 0, -1):
            job_id, _, execution_id = entry.decode(errors="replace").partition(":")
            execution = Execution(execution_id, job_id, self._connection)
            if self._connection.exists(execution.key):
                continue
            job = self._fetch(job_id)
            error = Internal("the process of the job ended without reporting: its machine may have stopped")
            if job and job.worker_name and job.break_off(job.worker_name, execution, error):
                log.warning("the process of the long job ended without reporting", extra=job.about)
            self._connection.zrem(key, entry)

    def _resume_between(self, now_s: float) -> None:
        """Put back jobs that a worker took from the queue but did not begin within `BETWEEN_S`."""
        key = self._queue.intermediate_queue_key
        self._between = {name: self._between.get(name, now_s) for name in self._connection.lrange(key, 0, -1)}
        for name, since_s in self._between.items():
            if now_s - since_s >= BETWEEN_S and not self._enqueue(name, JobStatus.QUEUED, at_front=True):
                self._connection.lrem(key, 0, name)

    def _enqueue_due(self) -> None:
        """Put the jobs whose retry is due into the queue."""
        key, is_long = self._queue.scheduled_job_registry.key, self._queue.name.endswith(LONG)
        for name in self._connection.zrangebyscore(key, 0, time.time(), start=0, num=100):
            if not self._enqueue(name, JobStatus.SCHEDULED, at_front=is_long):
                self._connection.zrem(key, name)

    def _enqueue(self, name: bytes, status: JobStatus, *, at_front: bool) -> bool:
        """Put a job that has the status into the queue; return False if there is no such job."""
        job = self._fetch(name.decode(errors="replace"))
        if job is None:
            log.warning("an entry of the queue %s that names no long job is dropped", self._queue.name)
            return False
        return job.change(lambda pipeline: job.enqueue(pipeline, at_front=at_front), status)

    def _fetch(self, job_id: str) -> RunnableJob | None:
        """Return the job, or None if this queue has no job with that id."""
        with suppress(NoSuchJobError, ValueError):  # no job has this id, or the id is not valid
            job: Any = self._queue.job_class.fetch(job_id, self._connection)
            if job.origin == self._queue.name:
                return job  # type: ignore[no-any-return]
        return None
