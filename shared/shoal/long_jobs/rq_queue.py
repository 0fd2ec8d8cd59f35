"""A queue of long jobs in RQ: what may happen to a job, each time in one transaction."""

from typing import TYPE_CHECKING, Any

from rq.job import JobStatus, Retry
from rq.job_lifecycle import record_job_failure
from rq.queue import Queue
from rq.results import Result
from rq.utils import now

from shoal.contract.keys import Keys
from shoal.errors import ShoalError
from shoal.long_jobs.kind import QUEUES, WEBHOOK, Kind
from shoal.long_jobs.rq_job import CANCEL, PAUSE, TOLD_BY, LongJob
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.submission import Submission

if TYPE_CHECKING:
    from redis.client import Pipeline

#: Longest that the lock of a queue's maintenance is held by a runner that died.
MAINTENANCE_S = 10


class LongQueue(Queue):
    """A queue of long jobs. Its methods that take a pipeline add their commands to that transaction."""

    def __init__(self, name: str, connection: Any = None, *, job_class: Any = LongJob, **options: Any):
        options.pop("serializer", None)
        super().__init__(name, connection, job_class=job_class, serializer=MsgpackSerializer, **options)

    def new_job(self, kind: Kind, submission: Submission, job_id: str | None = None) -> LongJob:
        """Return a new job, which is in no queue yet."""
        job: LongJob = self.job_class.create(  # type: ignore[assignment]
            submission.kind,
            kwargs=submission.to_map(),
            connection=self.connection,
            id=job_id or None,
            description=kind.name,
            origin=self.name,
            retry=Retry(max=len(kind.retry_after_s), interval=kind.retry_after_s),
            timeout=kind.timeout_s,
            result_ttl=kind.result_ttl_s,
            failure_ttl=kind.failure_ttl_s,
        )
        return job

    def add(self, job: LongJob, pipeline: "Pipeline | None" = None) -> None:
        """Put a new job. Raises DuplicateJobError if there is a job with its id and no pipeline is given."""
        (self.connection if pipeline is None else pipeline).sadd(self.redis_queues_keys, self.key)
        self._enqueue_job(job, pipeline=pipeline, unique=pipeline is None)

    def put_back(self, job: LongJob, pipeline: "Pipeline", *, at_front: bool = True) -> None:
        """Let the job go on as soon as a runner has time, whatever its state is."""
        self._take_out(job, pipeline)
        self._enqueue_job(job, pipeline=pipeline, at_front=at_front)

    def place(self, job: LongJob, wanted: str, pipeline: "Pipeline") -> None:
        """Cancel or park a job whose process has stopped, if its submitter wants that; else let it go on."""
        {CANCEL: self.drop, PAUSE: self.park}.get(wanted, self.put_back)(job, pipeline)

    def retry_or_fail(self, job: LongJob, reason: str, pipeline: "Pipeline") -> None:
        """Let the job be tried again, or mark it as failed if it has no tries left; `reason` is kept with it then."""
        if job.should_retry:
            job.retry(self, pipeline)
        else:
            pipeline.hset(job.key, "meta", job.serializer.dumps(job.meta))
            record_job_failure(job, reason, pipeline)
            self.announce_end(job, pipeline)

    def park(self, job: LongJob, pipeline: "Pipeline") -> None:
        """Keep the job until it is resumed."""
        self._take_out(job, pipeline)
        job.set_status(JobStatus.DEFERRED, pipeline=pipeline)
        self.deferred_job_registry.add(job, pipeline=pipeline)

    def drop(self, job: LongJob, pipeline: "Pipeline") -> None:
        """Mark the job as cancelled, and forget it after the time for which a failure is kept."""
        self._take_out(job, pipeline)
        job.ended_at = now()
        job.set_status(JobStatus.CANCELED, pipeline=pipeline)
        job.save(pipeline=pipeline, include_meta=False)
        self.canceled_job_registry.add(job, job.kind.failure_ttl_s, pipeline=pipeline)
        pipeline.expire(job.key, job.kind.failure_ttl_s)
        self.announce_end(job, pipeline)

    def forget(self, job: LongJob, pipeline: "Pipeline") -> None:
        """Remove all that is kept of a job that has ended."""
        self._take_out(job, pipeline)
        pipeline.zrem(self.finished_job_registry.key, job.id)
        pipeline.delete(job.key, Result.get_key(job.id), job.execution_registry.key)  # type: ignore[no-untyped-call]

    def announce_end(self, job: LongJob, pipeline: "Pipeline") -> None:
        """Put the job that sends the webhook, if the submitter of the job that ends named one."""
        try:
            url = job.submission.webhook
        except ShoalError:
            return
        if url:
            name = f"{self.name.rpartition(':')[0]}:{WEBHOOK.queue}"
            queue = LongQueue(name, self.connection, job_class=self.job_class)
            sender = queue.new_job(WEBHOOK, Submission(WEBHOOK.name, {"url": url, "id": job.id}))
            queue.add(sender, pipeline)
            pipeline.hset(job.key, TOLD_BY, sender.id)

    def _take_out(self, job: LongJob, pipeline: "Pipeline") -> None:
        """Remove the job from each list and registry in which a job that does not run may be."""
        for key in (self.key, self.intermediate_queue_key):
            pipeline.lrem(key, 0, job.id)
        for registry in (
            self.scheduled_job_registry,
            self.deferred_job_registry,
            self.failed_job_registry,
            self.canceled_job_registry,
        ):
            pipeline.zrem(registry.key, job.id)
        pipeline.persist(job.key)

    # Where RQ would trust what is in Redis, or does more than long jobs need

    @classmethod
    def dequeue_any(cls, queues: Any, timeout: int | None, connection: Any, *args: Any, **options: Any) -> Any:
        """Take the next job of the first queue that has one, or wait for one in the first.

        RQ's own would lose a job of several queues if the worker ended just then.
        """
        for queue in queues:
            while entry := cls.lmove(connection, queue.key, None):
                if found := cls._fetch_dequeued_job(connection, *entry, *args, **options):
                    return found
        return super().dequeue_any(queues[:1], timeout, connection, *args, **options)

    @classmethod
    def lmove(cls, connection: Any, queue_key: str, timeout: int | None) -> Any:
        """Take the next id from the queue, whatever its bytes are."""
        found = super().lmove(connection, queue_key, timeout)
        return found and (queue_key, found[1].decode(errors="replace"))

    @classmethod
    def _fetch_dequeued_job(cls, connection: Any, queue_key: str, job_id: str, *args: Any, **options: Any) -> Any:
        try:
            found = super()._fetch_dequeued_job(connection, queue_key, job_id, *args, **options)
        except ValueError:  # no id of a job
            return None
        if found:
            job, queue = found
            job.origin = queue.name
        return found

    def acquire_maintenance_lock(self) -> bool:
        """Return True if this process may do the queue's maintenance now; RQ's own lock outlives its holder by far."""
        return bool(self.connection.set(self.registry_cleaning_key, 1, nx=True, ex=MAINTENANCE_S))

    def move_dependents_to_ready(self, *args: Any, **kwargs: Any) -> dict[str, list[str]]:
        """Return an empty map: no long job depends on another."""
        return {}

    def enqueue_dependents(self, *args: Any, **kwargs: Any) -> dict[str, list[str]]:
        """Return an empty map: no long job depends on another."""
        return {}


def queue_names(keys: Keys) -> list[str]:
    """Return the names of the pool's queues in RQ, in the order of `QUEUES`."""
    return [f"{keys.root}:{name}" for name in QUEUES]
