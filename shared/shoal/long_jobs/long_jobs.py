"""Long jobs: submitted, looked at, paused, resumed, cancelled and deleted by any program that reaches Redis."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.broker.broker import Broker
from shoal.contract import traceparent, wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, JobNotEnded, MissingExtra, UnknownJob, Unsupported
from shoal.long_jobs.kind import BUILD, KINDS, Kind
from shoal.long_jobs.status import ENDED, LongJobStatus
from shoal.long_jobs.submission import Submission
from shoal.process.closing import Closing
from shoal.process.extra import install_command
from shoal.process.private_network import without_query
from shoal.settings import Settings

if TYPE_CHECKING:
    from redis.client import Pipeline

    from shoal.long_jobs.rq_job import LongJob
    from shoal.long_jobs.rq_jobs import RqJobs

#: Most jobs that are listed, if no other number is asked for.
LIMIT = 100

#: Most bytes of the arguments of a job, of which the largest are paths and URLs.
MAX_ARGUMENT_BYTES = 65_536

#: Time for which a deleted build is known as such: a runner removes what it has left within seconds, if one is alive.
DELETED_S = 30 * 86_400

#: Longest time for which Redis may list no runner although one is alive, in seconds: it has lost its data, and runners
#: list themselves anew every 2 s.
UNLISTED_S = 4.0

_LOOK_EVERY_S = 0.1


class LongJobs(Closing):
    """The long jobs of a pool, which RQ keeps. Thread-safe; connects on first use, and needs the `jobs` extra then.

    It uses `broker`, which its owner closes, or one of its own.

    Every method raises Unavailable when Redis does not answer, Overloaded when it is full, Unsupported where it is a
    cluster, and MissingExtra without RQ. Those that take an id raise UnknownJob, also for a job that another program
    wrote into RQ's keys.
    """

    def __init__(self, settings: Settings, kinds: Mapping[str, Kind] = KINDS, broker: Broker | None = None):
        self._kinds = kinds
        self._settings = settings
        self._keys = settings.keys
        self._given = broker

    @cached_property
    def _broker(self) -> Broker:
        return self._given or Broker.connect(self._settings.long_jobs_redis_address)

    def close(self) -> None:
        """Close the connections, unless they are those of a broker that was given."""
        if not self._given and "_broker" in vars(self):
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
        if kind not in self._kinds:
            raise InvalidRequest(f"kind is {excerpt(kind)}: it takes one of {', '.join(self._kinds)}")
        check(arguments, webhook)
        submission = Submission(kind, dict(arguments), webhook or "", client, traceparent.current())
        once = blake2b(wire.pack({"long": [client, idempotency_key]})).hexdigest() if idempotency_key else ""
        with self._broker.lending():
            return self._rq.put(submission, job_id or new_job_id(), once)

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job, with its progress, and its result once it is done."""
        with self._broker.lending():
            job = self._rq.get(job_id)
            status = replace(job.describe(), result=job.result_if_done())
            return replace(status, webhook=self._webhook(job)) if job.submission.webhook else status

    def list(self, client: str | None = None, limit: int = LIMIT) -> list[LongJobStatus]:
        """Return at most `limit` jobs, the newest first and without results: those of a client, or of all clients.

        Quick jobs, such as the publishing of an index, are not among them.
        """
        with self._broker.lending():
            return self._rq.newest(client, limit)

    def is_empty(self) -> bool:
        """Return True if no job is listed, or where there can be none. This loads no RQ."""
        try:
            return not self._broker.execute("ZCARD", self._keys.long_jobs)
        except Unsupported:
            return True

    def pause(self, job_id: str) -> str:
        """Pause a job, and return its status: one that runs is `running` until its process has ended.

        Raises InvalidRequest if it has ended, or is being cancelled.
        """

        def change(job: "LongJob", pipeline: "Pipeline") -> None:
            _refuse_end(job, "paused")
            if job.status == "running":
                job.want("pause", pipeline)
            elif job.status == "queued":
                job.park(pipeline)

        return self._change(job_id, change)

    def resume(self, job_id: str) -> str:
        """Let a paused job go on where it was, and return its status.

        Raises InvalidRequest if it has ended, or is being cancelled.
        """

        def change(job: "LongJob", pipeline: "Pipeline") -> None:
            _refuse_end(job, "resumed")
            if job.status == "running":
                job.want("", pipeline)
            elif job.status == "paused":
                _go_on(job, pipeline)

        return self._change(job_id, change)

    def cancel(self, job_id: str) -> str:
        """Cancel a job unless it has ended, and return its status: one that runs is `running` for another moment."""

        def change(job: "LongJob", pipeline: "Pipeline") -> None:
            if job.status == "running":
                job.want("cancel", pipeline)
            elif job.status not in ENDED:
                job.drop(pipeline)

        return self._change(job_id, change)

    def retry(self, job_id: str) -> str:
        """Let a job that failed or was cancelled go on where it was, and return its status.

        Raises InvalidRequest if it is in another state.
        """

        def change(job: "LongJob", pipeline: "Pipeline") -> None:
            if job.status not in ("failed", "cancelled"):
                raise InvalidRequest(f"job {job.id} is {job.status}: it cannot be retried")
            _go_on(job, pipeline)

        return self._change(job_id, change)

    def delete(self, job_id: str) -> None:
        """Forget a job that has ended; the files that it has written stay. Raises JobNotEnded for one that has not."""

        def change(job: "LongJob", pipeline: "Pipeline") -> None:
            if job.status not in ENDED:
                raise JobNotEnded(f"job {job.id} is {job.status}: wait until it has ended, or cancel it first")
            job.forget(pipeline)
            self._rq.unlist(job, pipeline)
            if job.submission.kind == BUILD and job.status != "done":
                pipeline.set(self._keys.deleted_build(job.id), "", ex=DELETED_S)

        self._change(job_id, change)

    def is_unwanted_build(self, job_id: str) -> bool:
        """Return True for a build that was cancelled, or was deleted some days ago at most before it was done."""
        try:
            return self.status(job_id).status == "cancelled"
        except UnknownJob:
            return bool(self._broker.execute("EXISTS", self._keys.deleted_build(job_id)))

    def num_runners(self) -> int:
        """Return how many runners are alive."""
        with self._broker.lending():
            return self._rq.num_runners()

    def has_runner(self, within_s: float = UNLISTED_S) -> bool:
        """Return True as soon as a runner is alive, and False if none is listed within the time."""
        until_s = time.monotonic() + within_s
        while not self.num_runners():
            if time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    @cached_property
    def _rq(self) -> "RqJobs":
        """The jobs in RQ, which the first use loads."""
        try:
            from shoal.long_jobs.rq_jobs import RqJobs
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"long jobs need {error.name!r}, which is not installed: {install_command('jobs')}"
            ) from error
        return RqJobs(self._broker.library_client(), self._keys, self._kinds)

    def _change(self, job_id: str, change: "Callable[[LongJob, Pipeline], None]") -> str:
        """Change a job in one transaction, and return its status; `change` is called again if the job changes."""
        with self._broker.lending():
            return self._rq.change(job_id, change)

    def _webhook(self, job: "LongJob") -> dict[str, Any] | None:
        """Return what became of the webhook of a job; None if that is not known any more."""
        url = without_query(job.submission.webhook)
        told: dict[str, Any] = {"url": url, "status": "pending", "answer": None, "error": None}
        if job.status not in ENDED:
            return told
        try:
            sender = self._rq.get(job.webhook_id)
        except UnknownJob:
            return None
        if isinstance(result := sender.result_if_done(), dict):
            return told | {"status": "sent", "answer": result.get("status")}
        return told | {"status": "failed" if sender.status in ENDED else "pending", "error": sender.describe().error}


def new_job_id() -> str:
    """Return an id for a new job."""
    return secrets.token_hex(12)


def _go_on(job: "LongJob", pipeline: "Pipeline") -> None:
    """Put a job that no process does into its queue, as new."""
    job.renew_retries()
    job.enqueue(pipeline)


def _refuse_end(job: "LongJob", done: str) -> None:
    """Raise InvalidRequest if the job has ended, or will because it was cancelled."""
    if job.status in ENDED or job.wanted == "cancel":
        state = job.status if job.status in ENDED else "being cancelled"
        raise InvalidRequest(f"job {job.id} is {state}: it cannot be {done}")


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
