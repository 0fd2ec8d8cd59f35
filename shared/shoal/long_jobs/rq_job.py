"""A long job as RQ keeps it.

RQ keeps a job as a hash with the name of a function, its arguments, and further fields that name more functions. All
of them can be written by any program that reaches these keys of Redis. So a job is read here by its plain fields
alone: its kind and arguments in msgpack, its states, times and progress. Nothing in it is unpickled or imported, the
time limits are those of the kind, and callbacks, webhooks, dependencies and repetitions of RQ do not exist.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.utils import now

from shoal.contract.excerpt import excerpt
from shoal.errors import MalformedJob, ShoalError
from shoal.long_jobs.job_fields import JobFields
from shoal.long_jobs.kind import Kind
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import ENDED, LongJobStatus, Progress, Status
from shoal.long_jobs.submission import Submission
from shoal.process import logs

if TYPE_CHECKING:
    from redis.client import Pipeline

#: An id of a long job, as RQ takes it.
JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

#: The field of a job's hash that says what its submitter wants of it: PAUSE or CANCEL.
WANTED = "shoal_wanted"
PAUSE, CANCEL = "pause", "cancel"

#: The field that has the id of the job which sends the webhook of the job's end.
TOLD_BY = "shoal_told_by"

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
    #: What the submitter wants of the job: PAUSE, CANCEL or nothing.
    wanted: str = ""
    #: The id of the job that sends the webhook, once the job has ended.
    told_by: str = ""

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
        self.meta, self.wanted, self.told_by = fields.meta(), fields.text(WANTED), fields.text(TOLD_BY)
        self._obey(self.kind)
        self.retries_left = min(fields.count("retries_left"), len(self.kind.retry_after_s))

    @property
    def about(self) -> dict[str, Any]:
        """The job as a log line says which it is; of a job that cannot be read, its id alone."""
        try:
            given = self.submission
        except ShoalError:
            return logs.about(self.id)
        return logs.about(self.id, given.client, given.traceparent, kind=self.kind.name)

    @property
    def traceparent(self) -> str | None:
        """The trace that the job belongs to."""
        try:
            return self.submission.traceparent
        except ShoalError:
            return None

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

    def describe(self, result: Any = None) -> LongJobStatus:
        """Return the state of a job as clients see it.

        Raises MalformedJob, InvalidText or TooLarge for a job that another program wrote.
        """
        submission, status = self.submission, STATUS_OF.get(self.get_status(refresh=False))
        if status is None:
            raise MalformedJob(f"job {excerpt(self.id)} has a status that long jobs do not have")
        error = self.meta.get("error")
        return LongJobStatus(
            self.id,
            submission.kind,
            status,
            submission.arguments,
            self.created_at.timestamp(),
            self.started_at.timestamp() if self.started_at else None,
            self.ended_at.timestamp() if self.ended_at and status in ENDED else None,
            Progress.from_map(self.meta.get("progress")),
            result,
            {str(k): str(v) for k, v in error.items()} if isinstance(error, dict) else None,
            self.worker_name or "",
            submission.client,
        )


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
