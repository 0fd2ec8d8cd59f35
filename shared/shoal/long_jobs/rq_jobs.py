"""The long jobs that RQ keeps for a pool: put, found, and listed with the newest first."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from shoal.contract.excerpt import excerpt
from shoal.contract.keys import Keys
from shoal.errors import InvalidRequest, UnknownJob
from shoal.long_jobs.kind import LONG, QUEUES, QUICK, Kind
from shoal.long_jobs.rq_job import JOB_ID, LongJob, job_class_of, queue_name
from shoal.long_jobs.status import LongJobStatus
from shoal.long_jobs.submission import Submission

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

#: Time for which an idempotency key counts.
ONCE_S = 86_400

#: Most jobs that a list has: the newest.
MAX_LISTED = 10_000

#: Time for which a list is kept after its last job was added, in seconds.
LISTED_S = 400 * 86_400

#: Jobs that are read together.
CHUNK = 100


class RqJobs:
    """The jobs of a pool in RQ. Raises redis-py's errors where Redis fails."""

    def __init__(self, connection: "Redis", keys: Keys, kinds: Mapping[str, Kind]):
        self._connection = connection
        self._keys = keys
        self._job_class = job_class_of(kinds)

    def put(self, submission: Submission, job_id: str, once: str) -> str:
        """Put a job and return its id; that of the first job if the idempotency key `once` was used before.

        Raises InvalidRequest if the first job is of another submission.
        """
        key = self._keys.once(once)

        def attempt(pipeline: Any) -> Any:
            first: Any = once and pipeline.get(key)
            name = _id_in(first or b"") or job_id
            job = self._job_class.new(submission, name, self._keys.root, self._connection)
            pipeline.watch(job.key)
            is_new = not pipeline.exists(job.key)
            pipeline.multi()
            if is_new:
                job.enqueue(pipeline)
                if once:
                    pipeline.set(key, name, ex=ONCE_S)
                if job.kind.queue == LONG:
                    self._list(job, pipeline)
            return name

        job_id = str(self._connection.transaction(attempt, key, value_from_callable=True))
        if self.get(job_id).submission != submission:
            raise InvalidRequest("the idempotency key was used for another long job: take a new key")
        return job_id

    def get(self, job_id: str) -> LongJob:
        """Return the job. Raises UnknownJob."""
        try:
            if JOB_ID.fullmatch(job_id):
                job = self._job_class.fetch(job_id, self._connection)
                if isinstance(job, LongJob) and job.origin in [queue_name(self._keys.root, name) for name in QUEUES]:
                    return job
        except NoSuchJobError:
            pass
        raise _unknown(job_id)

    def change(self, job_id: str, write: "Callable[[LongJob, Pipeline], None]") -> str:
        """Change a job in one transaction; return its status. `write` is called again if the job changes meanwhile."""
        job = self.get(job_id)
        if not job.change(lambda pipeline: write(job, pipeline)):
            raise _unknown(job_id)
        return job.status

    def newest(self, client: str | None, limit: int) -> list[LongJobStatus]:
        """Return the newest jobs of a client, or of all, without their results."""
        key, first = self._keys.long_jobs if client is None else self._list_of(client), 0
        found: list[LongJobStatus] = []
        while len(found) < limit:
            names: Any = self._connection.zrevrange(key, first, first + CHUNK - 1)
            ids = [job_id for name in names if (job_id := _id_in(name))]
            jobs = self._job_class.fetch_many(ids, self._connection)
            found += [job.describe() for job in jobs if isinstance(job, LongJob)]
            unread = [job_id for job_id, job in zip(ids, jobs, strict=True) if job is None]
            gone = [job_id for job_id in unread if not self._connection.exists(Job.key_for(job_id))]
            if gone:
                self._connection.zrem(key, *gone)
            first += len(names) - len(gone)
            if len(names) < CHUNK:
                break
        return found[:limit]

    def unlist(self, job: LongJob, pipeline: "Pipeline") -> None:
        """Add to a transaction that the job is listed no more."""
        for key in self._lists_of(job):
            pipeline.zrem(key, job.id)

    def num_runners(self) -> int:
        """Return how many runners are alive: each has one worker for quick jobs."""
        names = self._connection.smembers(WORKERS_BY_QUEUE_KEY % queue_name(self._keys.root, QUICK))
        return sum(self._connection.exists(name) for name in names)

    def _list(self, job: LongJob, pipeline: "Pipeline") -> None:
        for key in self._lists_of(job):
            pipeline.zadd(key, {job.id: job.created_at.timestamp()})
            pipeline.zremrangebyrank(key, 0, -MAX_LISTED - 1)
            pipeline.expire(key, LISTED_S)

    def _lists_of(self, job: LongJob) -> Iterator[str]:
        yield from (self._keys.long_jobs, self._list_of(job.submission.client))

    def _list_of(self, client: str) -> str:
        return self._keys.long_jobs_of(blake2b(client.encode(), digest_size=16).hexdigest())


def _id_in(name: bytes) -> str:
    """Return the id in the bytes; an empty text if they are none."""
    text = name.decode(errors="replace")
    return text if JOB_ID.fullmatch(text) else ""


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"no long job {excerpt(job_id)}: check the id; an ended job is forgotten after some days")
