"""A long job as it is kept in RQ's keys, and its changes from one state to another.

Any program with access to Redis may have written RQ's keys. So only the fields of long jobs are read, and a hash with a
wrong field is not a job. Nothing is unpickled or imported. The kind of the job sets time limits and retries. RQ's
callbacks, webhooks, dependencies and repetitions are ignored.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.results import Result
from rq.utils import now, str_to_date
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from shoal.contract import wire
from shoal.errors import InvalidRequest, ShoalError
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import ENDED, LongJobStatus, Status
from shoal.long_jobs.submission import Kind, Submission, queue_name
from shoal.process import logs
from shoal.task_progress import TaskProgress

if TYPE_CHECKING:
    from redis.client import Pipeline

#: Size limit of a submission, in bytes.
MAX_BYTES = 2**20

#: The field of a running job's hash that contains CANCEL once a client wants the job to end.
WANTED, CANCEL = "shoal_wanted", "cancel"

#: The field of a running job's hash with the id of its execution, which identifies the run of the job.
RUN = "shoal_run"

#: The status that clients see for each of RQ's statuses.
STATUS_OF: Mapping[JobStatus, Status] = {
    JobStatus.QUEUED: "queued",
    JobStatus.SCHEDULED: "queued",
    JobStatus.STARTED: "running",
    JobStatus.DEFERRED: "cancelled",  # earlier releases could pause a job, which a retry continues
    JobStatus.FINISHED: "done",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "failed",
    JobStatus.CANCELED: "cancelled",
}


class LongJob(Job):
    """A long job for RQ. Methods with a `pipeline` add their commands to that transaction."""

    kinds: ClassVar[Mapping[str, Kind]] = {}
    #: The key of the set of a queue's workers, with a placeholder for the queue's name.
    workers_key: ClassVar[str] = WORKERS_BY_QUEUE_KEY
    submission: Submission
    kind: Kind
    #: CANCEL if the running job must end.
    wanted = ""
    #: The id of the running job's execution; empty if a runner of an earlier release began the run.
    run = ""

    def __init__(self, id: str | None = None, connection: Any = None, serializer: Any = None):
        super().__init__(id, connection=connection, serializer=MsgpackSerializer)

    @classmethod
    def new(cls, submission: Submission, job_id: str, root: str, connection: Any) -> Self:
        """Return a new job, not yet in a queue, of the pool whose Redis keys begin with `root`."""
        job = cast(Self, cls.create(submission.kind, kwargs=submission.to_map(), connection=connection, id=job_id))
        job._set_submission(submission)
        job.origin = queue_name(root, job.kind.queue)
        job.renew_retries()
        return job

    # Reading

    def refresh(self) -> None:
        """Read the job again. Raises NoSuchJobError if its key is missing or does not contain a long job."""
        (values,) = _hashes(self.connection, [self.key])
        if not self._load(values):
            raise NoSuchJobError(f"{self.key} has no long job")

    @classmethod
    def fetch_many(  # type: ignore[override]
        cls, job_ids: Iterable[str], connection: Any, serializer: Any = None
    ) -> list[Self | None]:
        """Return the job with each id, or None for an id without a job."""
        jobs = [cls(job_id, connection) for job_id in job_ids]
        found = _hashes(connection, [job.key for job in jobs])
        return [job if job._load(values) else None for job, values in zip(jobs, found, strict=True)]

    def _load(self, values: Any) -> bool:
        """Set this job from the fields of a hash, and return True; return False if they are not a long job."""
        try:
            texts = {name: values.get(name.encode(), b"").decode() for name in _TEXTS}
            times = {name: str_to_date(texts[name]) if texts[name] else None for name in _TIMES}
            self.data = zlib.decompressobj().decompress(values[b"data"], MAX_BYTES)
            self._set_submission(Submission.unpack(self.data))
            self.meta = MsgpackSerializer.loads(meta) if (meta := values.get(b"meta")) else {}
            self.retries_left = min(int(texts["retries_left"] or 0), len(self.kind.retry_after_s))
            self._status = JobStatus(texts["status"])
        except (ShoalError, LookupError, ValueError, zlib.error):
            return False
        self.created_at = times["created_at"] or now()
        self.enqueued_at, self.started_at, self.ended_at = (times[name] for name in _TIMES[1:])
        self.origin, self.worker_name, self.wanted = texts["origin"], texts["worker_name"] or None, texts[WANTED]
        self.run = texts[RUN]
        return self._status in STATUS_OF and isinstance(self.meta, dict) and wire.is_json(self.meta)

    def _set_submission(self, submission: Submission) -> None:
        """Set the submission and the limits of its kind. A job of an unknown kind fails when a runner starts it."""
        self.submission, self.description = submission, submission.kind
        self.kind = kind = self.kinds.get(submission.kind, Kind(submission.kind))
        self.timeout, self.result_ttl, self.failure_ttl = kind.timeout_s, kind.result_ttl_s, kind.failure_ttl_s
        self.retry_intervals = list(kind.retry_after_s)

    @property
    def status(self) -> Status:
        """The status that clients see."""
        return STATUS_OF[self._status]

    @property
    def about(self) -> dict[str, Any]:
        """The facts that identify the job in a log line, for the argument `extra` of a logger's methods."""
        given = self.submission
        return logs.about(self.id, given.client, given.traceparent, kind=given.kind)

    def describe(self) -> LongJobStatus:
        """Return the job for clients, without its result."""
        found, ended_at = self.meta.get("error"), self.ended_at if self.status in ENDED else None
        error = {name: str(found.get(name, "")) for name in ("code", "message")} if isinstance(found, dict) else None
        return LongJobStatus(
            self.id,
            self.submission.kind,
            self.status,
            self.submission.arguments,
            self.created_at.timestamp(),
            self.started_at.timestamp() if self.started_at else None,
            ended_at.timestamp() if ended_at else None,
            TaskProgress.from_map(self.meta.get("progress")),
            error=error,
            worker=self.worker_name or "",
            client=self.submission.client,
        )

    def result_if_done(self) -> Any:
        """Return the newest result of a done job, or None if the job is not done or the result cannot be read."""
        try:
            value = self.return_value(refresh=True) if self.status == "done" else None
        except (ShoalError, LookupError, ValueError, OverflowError, zlib.error):
            return None
        return value if wire.is_json(value) else None

    # Steps from one state to another

    def change(
        self, write: Callable[["Pipeline"], object], status: JobStatus | None = None, run: str | None = None
    ) -> bool:
        """Read the job and call `write`, in one transaction.

        Return True, or False without a call of `write` if the job has another status or belongs to another run.
        """

        def attempt(pipeline: "Pipeline") -> Any:
            values = pipeline.hgetall(self.key)
            pipeline.multi()
            if not self._load(values) or status not in (None, self._status):
                return False
            if run is not None and self.run not in ("", run):
                return False
            write(pipeline)
            return True

        return bool(self.connection.transaction(attempt, self.key, value_from_callable=True))

    def request_cancel(self, pipeline: "Pipeline") -> None:
        """Cancel a job that has not ended. The worker of a running job does that a moment later."""
        if self.status == "running":
            pipeline.hset(self.key, WANTED, CANCEL)
        elif self.status == "queued":
            self.mark_cancelled(pipeline)

    def request_retry(self, pipeline: "Pipeline") -> None:
        """Put a failed or cancelled job into its queue, with all its retries. Raises InvalidRequest for other jobs."""
        if self.status not in ("failed", "cancelled"):
            raise InvalidRequest(f"job {self.id} is {self.status}: it cannot be retried")
        self.renew_retries()
        self.enqueue(pipeline)

    def enqueue(self, pipeline: "Pipeline", *, at_front: bool = False) -> None:
        """Put a job that is not running into its queue."""
        queue = self._leave(pipeline)
        self.enqueued_at, self._status = now(), JobStatus.QUEUED
        self.save(pipeline)
        pipeline.sadd(queue.redis_queues_keys, queue.key)
        queue.push_job_id(self.id, pipeline, at_front)

    def renew_retries(self) -> None:
        """Give the job the number of retries of a new job."""
        self.retries_left = len(self.kind.retry_after_s)

    def try_later(self, pipeline: "Pipeline") -> None:
        """Let the job run again after a pause. RQ's `retry` would write the status before the transaction."""
        pause_s = self.get_retry_interval()
        self.retries_left = (self.retries_left or 0) - 1
        if pause_s:
            self._leave(pipeline).schedule_job(self, now() + timedelta(seconds=pause_s), pipeline)
        else:
            self.enqueue(pipeline, at_front=True)

    def mark_cancelled(self, pipeline: "Pipeline") -> None:
        """Mark a job that is not running as cancelled. Redis then keeps it as long as a failed job."""
        queue = self._leave(pipeline)
        self.ended_at, self._status = now(), JobStatus.CANCELED
        self.save(pipeline)
        queue.canceled_job_registry.add(self, self.kind.failure_ttl_s, pipeline)
        pipeline.expire(self.key, self.kind.failure_ttl_s)

    def forget(self, pipeline: "Pipeline") -> None:
        """Delete everything about an ended job."""
        self._leave(pipeline)
        pipeline.delete(self.key, Result.get_key(self.id), self.execution_registry.key)  # type: ignore[no-untyped-call]

    def _leave(self, pipeline: "Pipeline") -> Queue:
        """Remove the job from its queue and from the registry for its status; return its queue."""
        queue = Queue(self.origin, self.connection, job_class=type(self), serializer=MsgpackSerializer)
        for key in (queue.key, queue.intermediate_queue_key):
            pipeline.lrem(key, 0, self.id)
        if (registry := getattr(queue, f"{self._status.value}_job_registry", None)) is not None:
            pipeline.zrem(registry.key, self.id)
        pipeline.hdel(self.key, WANTED, RUN)
        pipeline.persist(self.key)
        return queue


def job_class_of(kinds: Mapping[str, Kind], base: type[LongJob] = LongJob, **values: Any) -> type[LongJob]:
    """Return a subclass of `base` for jobs of these kinds, with further class attributes."""
    return type(base.__name__, (base,), {"kinds": kinds, "__module__": base.__module__, **values})


def _hashes(connection: Any, keys: Iterable[str]) -> list[Mapping[bytes, bytes]]:
    """Return the hashes under the keys, and an empty one for a key that is missing or has another type."""
    with connection.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hgetall(key)
        answers = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    return [{} if isinstance(answer, Exception) else answer for answer in answers]


_TIMES = ("created_at", "enqueued_at", "started_at", "ended_at")
_TEXTS = (*_TIMES, "status", "origin", "worker_name", "retries_left", WANTED, RUN)
