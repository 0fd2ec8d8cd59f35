"""Long jobs in RQ: the home of RQ on the clients' side.

RQ keeps a job as a hash with the name of a function, its arguments, and further fields that name more functions. All
of them can be written by any program that reaches these keys of Redis. So a job is read here by its plain fields
alone: its kind and arguments in msgpack, its states, times and progress. Nothing in it is unpickled or imported, the
time limits are those of the kind, and callbacks, webhooks, dependencies and repetitions of RQ do not exist.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus, Retry
from rq.job_lifecycle import record_job_failure
from rq.queue import Queue
from rq.utils import now

from shoal.errors import MalformedJob, ShoalError
from shoal.excerpt import excerpt
from shoal.keys import Keys
from shoal.long_jobs.job_fields import JobFields
from shoal.long_jobs.kind import QUEUES, WEBHOOK, Kind
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import LongJobStatus, Progress, Status
from shoal.long_jobs.submission import Submission

if TYPE_CHECKING:
    from redis.client import Pipeline

#: The field of a job's hash that says what its submitter wants of it: PAUSE or CANCEL.
WANTED = "shoal_wanted"
PAUSE, CANCEL = "pause", "cancel"

#: Longest that the lock of a queue's maintenance is held by a runner that died.
MAINTENANCE_S = 10

#: The state in RQ's words, and in those of clients.
STATUS_OF: Mapping[JobStatus, Status] = {
    JobStatus.QUEUED: "queued",
    JobStatus.SCHEDULED: "queued",
    JobStatus.STARTED: "running",
    JobStatus.DEFERRED: "paused",
    JobStatus.FINISHED: "done",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "failed",
    JobStatus.CANCELED: "cancelled",
}

#: The kind of a job that cannot be read: it fails at once.
_UNKNOWN = Kind("unknown", timeout_s=60, failure_ttl_s=86_400, retry_after_s=())


class LongJob(Job):
    """A long job as RQ handles it."""

    kinds: ClassVar[Mapping[str, Kind]] = {}

    def __init__(self, id: str | None = None, connection: Any = None, serializer: Any = None):
        super().__init__(id, connection=connection, serializer=MsgpackSerializer)

    @property
    def submission(self) -> Submission:
        """The submission; raises MalformedJob, InvalidText or TooLarge if the bytes hold none."""
        return Submission.unpack(self.data)

    @property
    def kind(self) -> Kind:
        """The kind of the job; that of a job which cannot be read is `unknown`."""
        try:
            return self.kinds.get(self.submission.kind, _UNKNOWN)
        except ShoalError:
            return _UNKNOWN

    def refresh(self) -> None:
        """Read the job again. Raises NoSuchJobError if its key is missing, or holds another type than a hash."""
        (values,) = _hashes(self.connection, [self.key])
        self.restore(values)

    @classmethod
    def fetch_many(cls, job_ids: Iterable[str], connection: Any, serializer: Any = None) -> list[Job | None]:
        """Return the jobs with these ids; None for an id without one."""
        jobs: list[Job | None] = [cls(job_id, connection) for job_id in job_ids]
        for n, values in enumerate(_hashes(connection, [job.key for job in jobs if job])):
            try:
                jobs[n].restore(values)  # type: ignore[union-attr]
            except NoSuchJobError:
                jobs[n] = None
        return jobs

    def restore(self, raw_data: Mapping[bytes, bytes]) -> None:
        """Take the fields of the job's hash that long jobs have. Raises NoSuchJobError for a hash without a job."""
        if b"data" not in raw_data:
            raise NoSuchJobError(f"No such job: {self.key}")
        fields = JobFields(raw_data)
        self.data = fields.data()
        self._status = _status(fields.text("status"))
        self.origin, self.worker_name = fields.text("origin"), fields.text("worker_name") or None
        self.created_at = fields.time("created_at") or now()
        self.enqueued_at, self.started_at = fields.time("enqueued_at"), fields.time("started_at")
        self.ended_at, self.last_heartbeat = fields.time("ended_at"), fields.time("last_heartbeat")
        self.meta = fields.meta()
        self._obey(self.kind)
        self.retries_left = min(fields.count("retries_left"), len(self.kind.retry_after_s))

    def _obey(self, kind: Kind) -> None:
        self.timeout, self.result_ttl, self.failure_ttl = kind.timeout_s, kind.result_ttl_s, kind.failure_ttl_s
        self.retry_intervals = list(kind.retry_after_s) or None
        self.description = kind.name

    def _deserialize_data(self) -> None:
        submission = self.submission
        self._func_name, self._instance, self._args = submission.kind, None, []
        self._kwargs = submission.to_map()

    @property
    def func(self) -> None:
        """No function: the runner has a table of them."""
        return

    def exchange(self, worker: str) -> str | None:
        """Save the progress of a job that the worker does; return as `write_while` does."""
        values: Any = {"meta": self.serializer.dumps(self.meta), "retries_left": self.retries_left or 0}
        return self.write_while(
            JobStatus.STARTED, lambda pipeline, _: pipeline.hset(self.key, mapping=values), worker=worker
        )

    def write_while(
        self, status: JobStatus, write: Callable[["Pipeline", str], object], *, worker: str | None = None
    ) -> str | None:
        """Write in one transaction if the job has the status, and is the worker's if one is named.

        `write` adds to the transaction; it takes the pipeline and what the submitter wants: PAUSE, CANCEL or nothing.
        It is called again if the job changes meanwhile. Return what the submitter wants, or None if nothing was
        written. Raises redis-py's errors.
        """

        def attempt(pipeline: "Pipeline") -> Any:
            found: Any = pipeline.hmget(self.key, ["status", "worker_name", WANTED])
            pipeline.multi()
            if found[0] != status.value.encode() or worker not in (None, (found[1] or b"").decode(errors="replace")):
                return None
            wanted = found[2].decode() if found[2] in (PAUSE.encode(), CANCEL.encode()) else ""
            write(pipeline, wanted)
            return wanted

        answer: Any = self.connection.transaction(attempt, self.key, value_from_callable=True)
        return None if answer is None else str(answer)

    def set_error(self, error: ShoalError | None) -> None:
        """Keep the error with the progress; it is saved with it."""
        self.meta.pop("error", None)
        if error is not None:
            self.meta["error"] = {"code": error.code, "message": error.message}

    def renew_retries(self) -> None:
        """Let the job be tried again as often as a new one."""
        self.retries_left = len(self.kind.retry_after_s)

    def retry(self, queue: Any, pipeline: "Pipeline") -> None:
        """Add the next try to the transaction; RQ's own method writes the status before it."""
        pause_s = self.get_retry_interval()
        self.retries_left = (self.retries_left or 0) - 1
        if pause_s:
            queue.schedule_job(self, now() + timedelta(seconds=pause_s), pipeline=pipeline)
        else:
            queue._enqueue_job(self, pipeline=pipeline, at_front=self.enqueue_at_front_on_retry)

    def _handle_success(self, result_ttl: int, pipeline: "Pipeline", *args: Any, **kwargs: Any) -> None:
        super()._handle_success(result_ttl, pipeline, *args, **kwargs)
        self.announce_end(pipeline)

    def _handle_failure(self, exc_string: str, pipeline: "Pipeline", *args: Any, **kwargs: Any) -> None:
        super()._handle_failure(exc_string, pipeline, *args, **kwargs)
        self.announce_end(pipeline)

    def announce_end(self, pipeline: "Pipeline") -> None:
        """Put the job that sends the webhook, if the submitter named one, in the transaction that ends this one."""
        try:
            url = self.submission.webhook
        except ShoalError:
            return
        if url:
            queue = LongQueue(
                f"{self.origin.rpartition(':')[0]}:{WEBHOOK.queue}", self.connection, job_class=type(self)
            )
            queue.add(queue.new_job(WEBHOOK, Submission(WEBHOOK.name, {"url": url, "id": self.id})), pipeline)


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
        job.announce_end(pipeline)

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


def job_class_of(kinds: Mapping[str, Kind], base: type[LongJob] = LongJob, **values: Any) -> type[LongJob]:
    """Return the class of jobs of these kinds, with further values that `base` takes."""
    return type(base.__name__, (base,), {"kinds": kinds, "__module__": base.__module__, **values})


def _hashes(connection: Any, keys: Iterable[str]) -> list[Mapping[bytes, bytes]]:
    """Return the hashes under the keys; an empty one for a key that is missing, or of another type."""
    with connection.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hgetall(key)
        answers = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    return [{} if isinstance(answer, Exception) else answer for answer in answers]


def _status(word: str) -> JobStatus:
    """Return the state that a word stands for; CREATED, which no long job is in, for any other word."""
    try:
        return JobStatus(word)
    except ValueError:
        return JobStatus.CREATED


def describe(job: LongJob, result: Any = None) -> LongJobStatus:
    """Return the state of a job as clients see it.

    Raises MalformedJob, InvalidText or TooLarge for a job that another program wrote.
    """
    submission, status = job.submission, STATUS_OF.get(job.get_status(refresh=False))
    if status is None:
        raise MalformedJob(f"job {excerpt(job.id)} has a status that long jobs do not have")
    error = job.meta.get("error")
    return LongJobStatus(
        job.id,
        submission.kind,
        status,
        submission.arguments,
        job.created_at.timestamp(),
        job.started_at.timestamp() if job.started_at else None,
        job.ended_at.timestamp() if job.ended_at and status not in ("queued", "running") else None,
        Progress.from_map(job.meta.get("progress")),
        result,
        {str(k): str(v) for k, v in error.items()} if isinstance(error, dict) else None,
        job.worker_name or "",
        submission.client,
    )
