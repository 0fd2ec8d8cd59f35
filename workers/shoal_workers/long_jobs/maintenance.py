"""The maintenance of a queue of RQ: the jobs of processes that died go on, and what has had its time is forgotten.

RQ's own maintenance would call functions that a job names, and takes up to a minute to notice that a process died.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import JobStatus
from rq.worker_registration import clean_worker_registry

from shoal.errors import Internal
from shoal.long_jobs.kind import LONG
from shoal.long_jobs.rq_job import JOB_ID, LongJob
from shoal.long_jobs.rq_queue import LongQueue

log = logging.getLogger(__name__)

#: Seconds for which a runner watches before it takes a job over from another one: after Redis was away, a runner that
#: is alive gives a sign of life within them.
LOOK_FIRST_S = 4.0

#: Longest that a job is between the queue and a runner; if it is there for longer, its runner died.
BETWEEN_S = 4.0

#: Longest pause between two rounds after which the other runners' signs of life still count as seen.
MAX_GAP_S = 6.0


class Maintenance:
    """The maintenance of a queue by one worker; the workers of a queue take turns."""

    def __init__(self, queue: LongQueue, clock: Callable[[], float] = time.monotonic):
        self._queue = queue
        self._connection: Any = queue.connection
        self._clock = clock
        self._looked_s = -MAX_GAP_S
        self._since_s = 0.0
        self._between: dict[bytes, float] = {}

    def run(self) -> None:
        """Do a round, unless another worker does one. Raises redis-py's errors."""
        now_s = self._clock()
        if now_s - self._looked_s > MAX_GAP_S:
            self._since_s = now_s
        self._looked_s = now_s
        if not self._queue.acquire_maintenance_lock():
            return
        try:
            if now_s - self._since_s >= LOOK_FIRST_S:
                self._resume_abandoned()
            self._resume_between(now_s)
            self._enqueue_due()
            self._forget()
        finally:
            self._queue.release_maintenance_lock()  # type: ignore[no-untyped-call]

    def _resume_abandoned(self) -> None:
        """Let the jobs go on whose process gives no sign of life any more."""
        registry = self._queue.started_job_registry
        for entry in self._connection.zrange(registry.key, 0, -1):
            job_id, _, execution_id = entry.decode(errors="replace").partition(":")
            if self._connection.exists(Execution(execution_id, job_id, self._connection).key):
                continue
            job = self._fetch(job_id)
            with self._connection.pipeline() as pipeline:
                pipeline.zrem(registry.key, entry)
                if job and job.get_status(refresh=False) == JobStatus.STARTED:
                    self._retry(job, pipeline)
                pipeline.execute()

    def _retry(self, job: LongJob, pipeline: Any) -> None:
        log.warning("the process of the long job ended without reporting", extra=job.about)
        error = Internal("the process of the job ended without reporting: the machine or the runner may have stopped")
        job.set_error(error)
        job.enqueue_at_front_on_retry = True
        self._queue.retry_or_fail(job, error.message, pipeline)

    def _resume_between(self, now_s: float) -> None:
        """Put back the jobs that a worker took from the queue, and did not begin with."""
        key = self._queue.intermediate_queue_key
        self._between = {name: self._between.get(name, now_s) for name in self._connection.lrange(key, 0, -1)}
        for name, since_s in self._between.items():
            if now_s - since_s < BETWEEN_S:
                continue
            job = self._fetch(name.decode(errors="replace"))
            with self._connection.pipeline() as pipeline:
                pipeline.lrem(key, 0, name)
                if job and job.get_status(refresh=False) == JobStatus.QUEUED:
                    self._queue.put_back(job, pipeline)
                pipeline.execute()

    def _enqueue_due(self) -> None:
        """Put the jobs into the queue that are to be tried again by now."""
        registry = self._queue.scheduled_job_registry
        until_s = time.time()
        for name in self._connection.zrangebyscore(registry.key, 0, until_s, start=0, num=100):
            job = self._fetch(name.decode(errors="replace"))
            with self._connection.pipeline() as pipeline:
                pipeline.zrem(registry.key, name)
                if job and job.get_status(refresh=False) == JobStatus.SCHEDULED:
                    self._queue._enqueue_job(job, pipeline=pipeline, at_front=job.kind.queue == LONG)
                pipeline.execute()

    def _forget(self) -> None:
        """Remove jobs from the registries of those that ended, and workers from theirs, once they have expired."""
        for registry in (
            self._queue.finished_job_registry,
            self._queue.failed_job_registry,
            self._queue.canceled_job_registry,
        ):
            self._connection.zremrangebyscore(registry.key, 0, time.time())
        clean_worker_registry(self._queue)

    def _fetch(self, job_id: str) -> LongJob | None:
        """Return the job, if there is one, as one of this queue."""
        if not JOB_ID.fullmatch(job_id):
            return None
        try:
            job: LongJob = self._queue.job_class.fetch(job_id, self._connection)  # type: ignore[assignment]
        except NoSuchJobError:
            return None
        job.origin = self._queue.name
        return job
