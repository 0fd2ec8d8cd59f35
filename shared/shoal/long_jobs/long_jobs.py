"""Long jobs: submitted, looked at, paused, resumed, cancelled and deleted by any program that reaches Redis."""

import secrets
import time
from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.broker.broker import Broker
from shoal.contract import traceparent, wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, MissingExtra, UnknownJob
from shoal.long_jobs.kind import KINDS, Kind
from shoal.long_jobs.status import LongJobStatus
from shoal.long_jobs.submission import Submission
from shoal.process.closing import Closing
from shoal.process.extra import install_command
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.long_jobs.rq_jobs import RqJobs

#: Most jobs that are listed, if no other number is asked for.
LIMIT = 100

#: Most bytes of the arguments of a job, of which the largest are paths and URLs.
MAX_ARGUMENT_BYTES = 65_536

#: Longest time for which Redis may list no runner although one is alive, in seconds: it has lost its data, and runners
#: list themselves anew every 2 s.
UNLISTED_S = 4.0

_LOOK_EVERY_S = 0.1


class LongJobs(Closing):
    """The long jobs of a pool. Thread-safe; connects on first use, and needs the `jobs` extra then.

    It uses `broker`, which its owner closes, or one of its own.

    Every method raises Unavailable when Redis does not answer, Overloaded when it is full, and MissingExtra without
    RQ. Those that take an id raise UnknownJob, and MalformedJob for a job that another program wrote into RQ's keys.
    """

    def __init__(self, settings: Settings, kinds: Mapping[str, Kind] = KINDS, broker: Broker | None = None):
        self._kinds = kinds
        self._keys = settings.keys
        self._broker = broker or Broker.connect(settings.redis_address)
        self._owns_broker = broker is None
        self._jobs: RqJobs | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Close the connections, unless they are those of a broker that was given."""
        if self._owns_broker:
            self._broker.close()

    def submit(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        webhook: str | None = None,
        idempotency_key: str | None = None,
        client: str = "",
        job_id: str | None = None,
    ) -> str:
        """Put a job and return its id, of 24 hex digits: a new one, or `job_id`, which `new_job_id` made before.

        `webhook` is a URL that the runner tells of the job's end. Submitting the same again within a day with the same
        `idempotency_key` returns the job that was put first; keys of different clients are different. Raises
        InvalidRequest for an unknown kind, for arguments that JSON cannot hold, for a webhook that is no URL of HTTP,
        and if the key was used for another job.
        """
        found = self._kinds.get(kind)
        if found is None:
            raise InvalidRequest(f"kind is {excerpt(kind)}: it takes one of {', '.join(self._kinds)}")
        check(arguments, webhook)
        jobs = self._rq()
        submission = Submission(kind, dict(arguments), webhook or "", client, traceparent.current())
        once = blake2b(wire.pack({"long": [client, idempotency_key]})).hexdigest() if idempotency_key else ""
        with self._broker.lending():
            return jobs.submit(found, submission, once, job_id or new_job_id())

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job, with its progress, and its result once it is done."""
        jobs = self._rq()
        with self._broker.lending():
            return jobs.status(job_id)

    def list(self, client: str | None = None, limit: int = LIMIT) -> list[LongJobStatus]:
        """Return at most `limit` jobs, the newest first and without results: those of a client, or of all clients.

        Quick jobs, such as the publishing of an index, are not among them.
        """
        jobs = self._rq()
        with self._broker.lending():
            return jobs.newest(client, limit)

    def is_empty(self) -> bool:
        """Return True if no job is listed. This loads no RQ."""
        return not self._broker.execute("ZCARD", self._keys.long_jobs)

    def pause(self, job_id: str) -> str:
        """Pause a job, and return its status: one that runs is `running` until its process has noticed.

        Raises InvalidRequest if it has ended, or is being cancelled.
        """
        jobs = self._rq()
        with self._broker.lending():
            return jobs.pause(job_id)

    def resume(self, job_id: str) -> str:
        """Let a paused job go on where it was, and return its status.

        Raises InvalidRequest if it has ended, or is being cancelled.
        """
        jobs = self._rq()
        with self._broker.lending():
            return jobs.resume(job_id)

    def cancel(self, job_id: str) -> str:
        """Cancel a job unless it has ended, and return its status: one that runs is `running` for another moment."""
        jobs = self._rq()
        with self._broker.lending():
            return jobs.cancel(job_id)

    def retry(self, job_id: str) -> str:
        """Let a job that failed or was cancelled go on where it was, and return its status.

        Raises InvalidRequest if it is in another state.
        """
        jobs = self._rq()
        with self._broker.lending():
            return jobs.retry(job_id)

    def delete(self, job_id: str) -> None:
        """Forget a job that has ended; the files that it has written stay. Raises JobNotEnded for one that has not."""
        jobs = self._rq()
        with self._broker.lending():
            jobs.delete(job_id)

    def is_unwanted_build(self, job_id: str) -> bool:
        """Return True for a build that was cancelled, or was deleted some days ago at most before it was done."""
        jobs = self._rq()
        with self._broker.lending():
            try:
                return jobs.status(job_id).status == "cancelled"
            except UnknownJob:
                return jobs.is_deleted_build(job_id)

    def num_runners(self) -> int:
        """Return how many runners are alive."""
        jobs = self._rq()
        with self._broker.lending():
            return jobs.num_runners()

    def has_runner(self, within_s: float = UNLISTED_S) -> bool:
        """Return True as soon as a runner is alive, and False if none is listed within the time."""
        until_s = time.monotonic() + within_s
        while not self.num_runners():
            if time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def _rq(self) -> "RqJobs":
        """Return the jobs in RQ, which is loaded by the first call."""
        with self._lock:
            if self._jobs is None:
                try:
                    from shoal.long_jobs.rq_jobs import RqJobs
                except ModuleNotFoundError as error:
                    raise MissingExtra(
                        f"long jobs need {error.name!r}, which is not installed: {install_command('jobs')}"
                    ) from error
                self._jobs = RqJobs(self._broker.library_client(), self._keys, self._kinds)
            return self._jobs


def new_job_id() -> str:
    """Return an id for a new job."""
    return secrets.token_hex(12)


def check(arguments: Mapping[str, Any], webhook: str | None) -> None:
    """Raise InvalidRequest for arguments that JSON cannot hold, and for a webhook that is no URL of HTTP."""
    if not wire.is_json(dict(arguments)) or len(wire.pack(dict(arguments))) > MAX_ARGUMENT_BYTES:
        raise InvalidRequest(f"arguments takes values that JSON can hold, of at most {MAX_ARGUMENT_BYTES:,} bytes")
    if webhook is None:
        return
    try:
        parts = urlsplit(webhook)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.username or parts.password)
    except ValueError:
        is_url = False
    if not is_url or len(webhook) > 2_048:
        raise InvalidRequest(f"webhook is {excerpt(webhook)}: it takes an http:// or https:// URL without a password")
