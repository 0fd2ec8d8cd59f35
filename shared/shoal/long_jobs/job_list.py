"""The lists of long jobs: of all clients, and of each, the newest first."""

from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from shoal.contract.keys import Keys
from shoal.errors import ShoalError
from shoal.long_jobs.rq_job import JOB_ID, LongJob
from shoal.long_jobs.status import LongJobStatus

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

#: Age from which an id without a job is taken off the list, in seconds: an id is listed before its job is put.
LISTED_FIRST_S = 3_600

#: Most jobs that a list has: the newest.
MAX_LISTED = 10_000

#: Time for which a list is kept after its last job was added, in seconds.
LISTED_S = 400 * 86_400

#: Jobs that are read together.
CHUNK = 100


class JobList:
    """The lists from which the newest jobs of a pool are taken. Raises redis-py's errors where Redis fails."""

    def __init__(self, connection: "Redis", keys: Keys, job_class: type[LongJob]):
        self._connection = connection
        self._keys = keys
        self._job_class = job_class

    def add(self, job_id: str, client: str, now_s: float) -> None:
        """List a job that is about to be put."""
        with self._connection.pipeline() as pipeline:
            for key in self._lists_of(client):
                pipeline.zadd(key, {job_id: now_s})
                pipeline.zremrangebyrank(key, 0, -MAX_LISTED - 1)
                pipeline.expire(key, LISTED_S)
            pipeline.execute()

    def remove(self, job_id: str, client: str, pipeline: "Pipeline") -> None:
        """Add to a transaction that the job is listed no more."""
        for key in self._lists_of(client):
            pipeline.zrem(key, job_id)

    def newest(self, client: str | None, limit: int, now_s: float) -> list[LongJobStatus]:
        """Return the newest jobs of a client, or of all, without their results."""
        key, first = self._keys.long_jobs if client is None else self._of(client), 0
        found: list[LongJobStatus] = []
        while len(found) < limit:
            entries: Any = self._connection.zrevrange(key, first, first + CHUNK - 1, withscores=True)
            listed = {job_id: at_s for name, at_s in entries if (job_id := id_in(name))}
            jobs = self._job_class.fetch_many(listed, self._connection)
            for job in jobs:
                with suppress(ShoalError):  # a job that another program wrote is not one
                    found += [job.describe()] if isinstance(job, LongJob) else []
            until_s = now_s - LISTED_FIRST_S
            gone = [name for (name, at_s), job in zip(listed.items(), jobs, strict=True) if not job and at_s < until_s]
            if gone:
                self._connection.zrem(key, *gone)
            first += len(entries) - len(gone)
            if len(entries) < CHUNK:
                break
        return found[:limit]

    def _lists_of(self, client: str) -> Iterator[str]:
        yield from (self._keys.long_jobs, self._of(client))

    def _of(self, client: str) -> str:
        return self._keys.long_jobs_of(blake2b(client.encode(), digest_size=16).hexdigest())


def id_in(name: bytes) -> str:
    """Return the id in the bytes; an empty text if they are none."""
    text = name.decode(errors="replace")
    return text if JOB_ID.fullmatch(text) else ""
