"""The long jobs that RQ keeps, as clients change them and look at them."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rq.exceptions import DuplicateJobError, NoSuchJobError
from rq.job import JobStatus
from rq.results import Result
from rq.utils import now
from rq.worker_registration import get_keys

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.keys import Keys
from shoal.errors import InvalidRequest, JobNotEnded, ShoalError, UnknownJob
from shoal.long_jobs.job_list import JobList, id_in
from shoal.long_jobs.kind import BUILD, LONG, Kind
from shoal.long_jobs.rq_job import CANCEL, JOB_ID, PAUSE, WANTED, LongJob, job_class_of
from shoal.long_jobs.rq_queue import LongQueue, queue_names
from shoal.long_jobs.serializer import MsgpackSerializer
from shoal.long_jobs.status import ENDED, LongJobStatus
from shoal.long_jobs.submission import Submission
from shoal.process.private_network import without_query

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

#: Time for which an idempotency key counts.
ONCE_S = 86_400

#: Time for which a deleted build is known as such: a runner removes what it has left within seconds, if one is alive.
DELETED_S = 30 * 86_400


class RqJobs:
    """The long jobs of a pool in RQ, for `LongJobs`: see there. Raises redis-py's errors where Redis fails."""

    def __init__(self, connection: "Redis", keys: Keys, kinds: Mapping[str, Kind]):
        self._connection = connection
        self._keys = keys
        self._job_class = job_class_of(kinds)
        self._list = JobList(connection, keys, self._job_class)
        self._queues = {name: LongQueue(name, connection, job_class=self._job_class) for name in queue_names(keys)}

    def submit(self, kind: Kind, submission: Submission, once: str, job_id: str) -> str:
        """Put a job and return its id; that of the first job if the idempotency key `once` was used before."""
        queue = self._queues[f"{self._keys.root}:{kind.queue}"]
        if once and not self._connection.set(key := self._keys.once(once), job_id, nx=True, ex=ONCE_S):
            first: Any = self._connection.get(key)
            job_id = id_in(first or b"") or job_id
        if kind.queue == LONG:
            self._list.add(job_id, submission.client, now().timestamp())
        try:
            queue.add(queue.new_job(kind, submission, job_id))
        except DuplicateJobError:
            if self.fetch(job_id).submission != submission:
                raise InvalidRequest("the idempotency key was used for another long job: take a new key") from None
        return job_id

    def fetch(self, job_id: str) -> LongJob:
        """Return the job. Raises UnknownJob."""
        if not JOB_ID.fullmatch(job_id):
            raise _unknown(job_id)
        try:
            job: LongJob = self._job_class.fetch(job_id, self._connection)  # type: ignore[assignment]
        except NoSuchJobError:
            raise _unknown(job_id) from None
        if job.origin not in self._queues:
            raise _unknown(job_id)
        return job

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job, with its result if it is done."""
        job = self.fetch(job_id)
        is_done = job.get_status(refresh=False) == JobStatus.FINISHED
        status = job.describe(_result(self._connection, job_id) if is_done else None)
        return replace(status, webhook=self._webhook(job, status.has_ended)) if job.submission.webhook else status

    def _webhook(self, job: LongJob, has_ended: bool) -> dict[str, Any] | None:
        """Return what became of the webhook of a job; None if that is not known any more."""
        told: dict[str, Any] = {
            "url": without_query(job.submission.webhook),
            "status": "pending",
            "answer": None,
            "error": None,
        }
        if not has_ended:
            return told
        try:
            sender = self.fetch(job.told_by).describe()
        except ShoalError:
            return None
        told["error"] = sender.error
        if sender.status == "done" and isinstance(result := _result(self._connection, sender.id), dict):
            return told | {"status": "sent", "answer": result.get("status"), "error": None}
        return told | ({"status": "failed"} if sender.has_ended else {})

    def newest(self, client: str | None, limit: int) -> list[LongJobStatus]:
        """Return the newest jobs of a client, or of all, without their results."""
        return self._list.newest(client, limit, now().timestamp())

    def pause(self, job_id: str) -> str:
        """Keep the job until it is resumed; return its status."""

        def change(queue: LongQueue, job: LongJob, status: str, pipeline: "Pipeline") -> None:
            _refuse_end(job, status, "paused")
            if status != "paused":
                pipeline.hset(job.key, WANTED, PAUSE)
            if status == "queued":
                queue.park(job, pipeline)

        self._change(job_id, change)
        return self.status(job_id).status

    def resume(self, job_id: str) -> str:
        """Put a paused job into its queue, or let its process go on; return its status."""

        def change(queue: LongQueue, job: LongJob, status: str, pipeline: "Pipeline") -> None:
            _refuse_end(job, status, "resumed")
            if status == "paused":
                _go_on(queue, job, pipeline)
            else:
                pipeline.hdel(job.key, WANTED)

        self._change(job_id, change)
        return self.status(job_id).status

    def cancel(self, job_id: str) -> str:
        """Mark a job that no process does as cancelled, or have its process do so; return its status."""

        def change(queue: LongQueue, job: LongJob, status: str, pipeline: "Pipeline") -> None:
            if status not in ENDED:
                pipeline.hset(job.key, WANTED, CANCEL)
            if status in ("queued", "paused"):
                queue.drop(job, pipeline)

        self._change(job_id, change)
        return self.status(job_id).status

    def retry(self, job_id: str) -> str:
        """Put a job that failed or was cancelled into its queue; return its status."""

        def change(queue: LongQueue, job: LongJob, status: str, pipeline: "Pipeline") -> None:
            if status not in ("failed", "cancelled"):
                raise InvalidRequest(f"job {job_id} is {status}: it cannot be retried")
            _go_on(queue, job, pipeline)

        self._change(job_id, change)
        return self.status(job_id).status

    def delete(self, job_id: str) -> None:
        """Forget a job that has ended."""

        def change(queue: LongQueue, job: LongJob, status: str, pipeline: "Pipeline") -> None:
            if status not in ENDED:
                raise JobNotEnded(f"job {job_id} is {status}: wait until it has ended, or cancel it first")
            queue.forget(job, pipeline)
            if job.kind.name == BUILD and status != "done":
                pipeline.set(self._keys.deleted_build(job_id), "", ex=DELETED_S)
            self._list.remove(job_id, job.submission.client, pipeline)

        self._change(job_id, change)

    def is_deleted_build(self, job_id: str) -> bool:
        """Return True for a build that was deleted within `DELETED_S`, and was not done."""
        return bool(JOB_ID.fullmatch(job_id) and self._connection.exists(self._keys.deleted_build(job_id)))

    def _change(self, job_id: str, change: Callable[[LongQueue, LongJob, str, "Pipeline"], None]) -> None:
        """Change the job in one transaction.

        `change` adds to the transaction; it is called again with the new status if the job changes meanwhile.
        """
        job = self.fetch(job_id)
        queue = self._queues[job.origin]
        version = queue.get_redis_server_version()  # asked for here, as the transaction has the only connection

        def attempt(pipeline: "Pipeline") -> None:
            found: Any = pipeline.hgetall(job.key)
            job.restore(found)
            job.redis_server_version = version
            pipeline.multi()
            change(queue, job, job.describe().status, pipeline)

        try:
            self._connection.transaction(attempt, job.key)
        except NoSuchJobError:
            raise _unknown(job_id) from None

    def num_runners(self) -> int:
        """Return how many runners are alive: each has one worker for quick jobs."""
        names = get_keys(self._queues[queue_names(self._keys)[1]])
        return sum(self._connection.exists(name) for name in names)


def _go_on(queue: LongQueue, job: LongJob, pipeline: "Pipeline") -> None:
    """Put a job that no process does into its queue, as new."""
    job.renew_retries()
    pipeline.hdel(job.key, WANTED)
    queue.put_back(job, pipeline, at_front=False)


def _refuse_end(job: LongJob, status: str, done: str) -> None:
    """Raise InvalidRequest if the job has ended, or will because it was cancelled."""
    if status in ENDED or job.wanted == CANCEL:
        state = status if status in ENDED else "being cancelled"
        raise InvalidRequest(f"job {job.id} is {state}: it cannot be {done}")


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"no long job {excerpt(job_id)}: check the id; an ended job is forgotten after some days")


def _result(connection: "Redis", job_id: str) -> Any:
    """Return the newest result of a job; None if another program wrote it."""
    entries: Any = connection.xrevrange(Result.get_key(job_id), count=1)  # type: ignore[no-untyped-call]
    try:
        value = MsgpackSerializer.loads(b64decode(entries[0][1][b"return_value"]))
    except (ShoalError, ValueError, LookupError):
        return None
    return value if wire.is_json(value) else None
