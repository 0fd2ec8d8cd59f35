"""Long jobs: any program with access to Redis can submit, read, cancel, retry and delete them."""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from shoal.broker.broker import Broker
from shoal.contract import traceparent, wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, JobNotEnded, MissingExtra, UnknownJob, Unsupported
from shoal.long_jobs.status import ENDED, LongJobStatus
from shoal.long_jobs.submission import JOB_ID, KINDS, LONG, QUEUES, QUICK, Kind, Submission, queue_name
from shoal.process.closing import Closing
from shoal.process.extra import install_command
from shoal.settings import Settings

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

    from shoal.long_jobs.rq_job import LongJob

#: Largest number of jobs that a list returns by default.
LIMIT = 100

#: Largest number of bytes of the arguments of a job. The largest arguments are paths and URLs.
MAX_ARGUMENT_BYTES = 65_536

#: Time for which an idempotency key is remembered, in seconds.
ONCE_S = 86_400

#: The form of a new job's id. The id becomes part of a folder's name, so a value from Redis must have this form.
NEW_ID = re.compile(rb"[0-9a-f]{24}")

#: Largest number of jobs in the list of a client, and in the list of all clients. The newest jobs are kept.
MAX_LISTED = 10_000

#: Time for which a list is kept after a job was last added, in seconds.
LISTED_S = 400 * 86_400

#: Number of jobs that `list` reads in one round trip.
CHUNK = 100


class LongJobs(Closing):
    """The long jobs of a pool, which RQ keeps in Redis. Thread-safe. The first use connects and needs the extra `jobs`.

    Every method raises Unavailable if Redis does not answer, Overloaded if Redis is full, Unsupported if Redis is a
    cluster, and MissingExtra without RQ. Methods with a job's id raise UnknownJob, also for a job that another program
    wrote into RQ's keys.
    """

    def __init__(self, settings: Settings, kinds: Mapping[str, Kind] = KINDS):
        self._kinds = kinds
        self._settings, self._keys = settings, settings.keys

    @cached_property
    def _broker(self) -> Broker:
        return Broker.connect(self._settings.long_jobs_redis_address)

    @cached_property
    def _connection(self) -> "Redis":
        return self._broker.library_client()

    @cached_property
    def _job_class(self) -> "type[LongJob]":
        """The class of the pool's jobs. Getting it loads RQ."""
        try:
            from shoal.long_jobs.rq_job import job_class_of
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"long jobs need {error.name!r}, which is not installed: {install_command('jobs')}"
            ) from error
        return job_class_of(self._kinds)

    def close(self) -> None:
        """Close the connections."""
        if "_broker" in vars(self):
            self._broker.close()

    def submit(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        client: str = "",
        job_id: str | None = None,
        upload_bytes: int = 0,
    ) -> str:
        """Put a job into its queue and return its id, 24 hex digits: `job_id`, or else a new id.

        A second call within a day with the same `idempotency_key` and `client`, or with the same `job_id`, returns the
        id of the first job. Raises InvalidRequest for an unknown kind, for arguments that JSON cannot express, and for
        a key or an id used for another job.
        """
        if kind not in self._kinds:
            raise InvalidRequest(f"kind is {excerpt(kind)}: it takes one of {', '.join(self._kinds)}")
        if not _are_sound(dict(arguments)):
            raise InvalidRequest(f"arguments takes JSON with 64-bit numbers, of at most {MAX_ARGUMENT_BYTES:,} bytes")
        submission = Submission(kind, dict(arguments), client, upload_bytes, traceparent.current())
        job_id = job_id or self.id_of(client, idempotency_key)
        with self._broker.translated():
            self._put(submission, job_id)
            if self._get(job_id).submission != submission:
                raise InvalidRequest("the idempotency key was used for another long job: take a new key")
        return job_id

    def id_of(self, client: str, idempotency_key: str | None) -> str:
        """Return the job id that the client's idempotency key stands for during a day; without a key, a new id."""
        new = secrets.token_hex(12)
        if not idempotency_key:
            return new
        name = self._keys.once(blake2b(wire.pack({"long": [client, idempotency_key]})).hexdigest())
        with self._broker.translated():
            self._connection.set(name, new, nx=True, ex=ONCE_S)
            found: Any = self._connection.get(name)
        return found.decode() if NEW_ID.fullmatch(found or b"") else new

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job with its progress, and with its result once the job is done."""
        with self._broker.translated():
            job = self._get(job_id)
            return replace(job.describe(), result=job.result_if_done())

    def list(self, client: str | None = None, limit: int = LIMIT) -> list[LongJobStatus]:
        """Return at most `limit` jobs of a client or of all clients, newest first, without quick jobs and results."""
        key, first = self._keys.long_jobs if client is None else self._list_of(client), 0
        found: list[LongJobStatus] = []
        with self._broker.translated():
            while len(found) < limit:
                names: Any = self._connection.zrevrange(key, first, first + CHUNK - 1)
                ids = [job_id for name in names if JOB_ID.fullmatch(job_id := name.decode(errors="replace"))]
                jobs = dict(zip(ids, self._job_class.fetch_many(ids, self._connection), strict=True))
                found += [job.describe() for job in jobs.values() if job]
                if gone := [job_id for job_id, job in jobs.items() if job is None]:
                    self._connection.zrem(key, *gone)
                first += len(names) - len(gone)
                if len(names) < CHUNK:
                    break
        return found[:limit]

    def is_empty(self) -> bool:
        """Return True if no job is listed, or if Redis is a cluster, which has no long jobs. Does not load RQ."""
        try:
            return not self._broker.execute("ZCARD", self._keys.long_jobs)
        except Unsupported:
            return True

    def cancel(self, job_id: str) -> str:
        """Cancel a job that has not ended, and return its status. A running job stops a moment later."""
        return self._change(job_id, lambda job, pipeline: job.request_cancel(pipeline))

    def retry(self, job_id: str) -> str:
        """Let a failed or cancelled job continue, and return its status. Raises InvalidRequest for other jobs."""
        return self._change(job_id, lambda job, pipeline: job.request_retry(pipeline))

    def delete(self, job_id: str) -> None:
        """Delete the record of an ended job, but not the files that the job wrote. Raises JobNotEnded."""

        def change(job: "LongJob", pipeline: "Pipeline") -> None:
            if job.status not in ENDED:
                raise JobNotEnded(f"job {job.id} is {job.status}: wait until it has ended, or cancel it first")
            job.forget(pipeline)
            for listed in self._lists_of(job):
                pipeline.zrem(listed, job.id)

        self._change(job_id, change)

    def num_runners(self) -> int:
        """Return the number of live runners. It counts workers for quick jobs: each runner has one of them."""
        with self._broker.translated():
            workers = self._connection.smembers(self._job_class.workers_key % queue_name(self._keys.root, QUICK))
            return sum(self._connection.exists(name) for name in workers)

    def _put(self, submission: Submission, job_id: str) -> None:
        """Put a job, unless there is one with this id."""
        job = self._job_class.new(submission, job_id, self._keys.root, self._connection)

        def attempt(pipeline: Any) -> None:
            is_new = not pipeline.exists(job.key)
            pipeline.multi()
            if is_new:
                job.enqueue(pipeline)
                for listed in self._lists_of(job) if job.kind.queue == LONG else ():
                    pipeline.zadd(listed, {job_id: job.created_at.timestamp()})
                    pipeline.zremrangebyrank(listed, 0, -MAX_LISTED - 1)
                    pipeline.expire(listed, LISTED_S)

        self._connection.transaction(attempt, job.key)

    def _get(self, job_id: str) -> "LongJob":
        """Return the job. Raises UnknownJob."""
        if JOB_ID.fullmatch(job_id):
            (job,) = self._job_class.fetch_many([job_id], self._connection)
            if job and job.origin in [queue_name(self._keys.root, name) for name in QUEUES]:
                return job
        raise _unknown(job_id)

    def _change(self, job_id: str, write: "Callable[[LongJob, Pipeline], None]") -> str:
        """Change a job in one transaction and return its status. `write` runs again if the job changes meanwhile."""
        with self._broker.translated():
            job = self._get(job_id)
            if not job.change(lambda pipeline: write(job, pipeline)):
                raise _unknown(job_id)
            return job.status

    def _list_of(self, client: str) -> str:
        return self._keys.long_jobs_of(blake2b(client.encode(), digest_size=16).hexdigest())

    def _lists_of(self, job: "LongJob") -> tuple[str, str]:
        return self._keys.long_jobs, self._list_of(job.submission.client)


def _are_sound(arguments: dict[str, Any]) -> bool:
    """Return True if JSON can hold the arguments, and they are not too large."""
    try:
        is_json = wire.is_json(arguments) and bool(json.dumps(arguments, allow_nan=False))
        return is_json and len(wire.pack(arguments)) <= MAX_ARGUMENT_BYTES
    except (ValueError, OverflowError):  # for NaN, infinity, and numbers of over 64 bits
        return False


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"no long job {excerpt(job_id)}: check the id; an ended job is forgotten after some days")
