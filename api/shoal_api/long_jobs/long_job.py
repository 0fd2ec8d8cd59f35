"""Long jobs over HTTP: clients submit them with a file that they upload or name, and watch them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flask import Response, request

from shoal.client.text_client import check_key
from shoal.contract.excerpt import excerpt
from shoal.errors import (
    InvalidRequest,
    MissingExtra,
    Overloaded,
    PathNotAllowed,
    ShoalError,
    Unavailable,
    UnknownJob,
    Unsupported,
)
from shoal.job_folders import JOBS
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.status import LongJobStatus, public_map, public_text
from shoal.process.allowed_path import allowed_path
from shoal_api.answers.response import json_response
from shoal_api.context import Context, context
from shoal_api.long_jobs.upload_store import JobFolder, discard_rest
from shoal_api.request import json_request
from shoal_api.schema.indexes import BuildBody, BuildQuery
from shoal_api.schema.long_jobs import BulkBody, BulkQuery

#: The fields of a request. A request with an upload has them in its query, any other request in its body.
Fields = BulkBody | BulkQuery | BuildBody | BuildQuery

#: Least time between two reads of a long job's status while a request waits for the job's end, in seconds.
_LOOK_EVERY_S = 0.05

#: The pause between two reads is at least this many seconds times the number of the client's requests under way. So a
#: client causes at most 100 reads a second. With a fixed pause, 500 waiting requests used a whole processor, not 4 %.
_PAUSE_S = 0.01

#: To find a client's unfinished jobs, at most `_MAX_ENDED` of its ended jobs are read. A client with too many
#: unfinished jobs may try again after `_WAIT_S` seconds.
_MAX_ENDED, _WAIT_S = 1_000, 60


def own_job(job_id: str) -> LongJobStatus:
    """Return a long job that the client of the request may see. Raises UnknownJob, also for another client's job."""
    with suppress(UnknownJob, MissingExtra, Unsupported):  # without RQ, or on a cluster, there are no long jobs
        job = context().long_jobs.status(job_id)
        if json_request().is_admin or job.client == json_request().client_name:
            return job
    raise UnknownJob(f"no job {excerpt(job_id)}: it was never submitted, or its result has expired")


def describe(found: Context, *jobs: LongJobStatus) -> list[dict[str, Any]]:
    """Return a description of each long job."""
    note = _note(found.long_jobs) if any(job.status == "queued" for job in jobs) else None
    return [public_map(job, found.settings) | {"note": note if job.status == "queued" else None} for job in jobs]


def state(job_id: str, status: str) -> dict[str, Any]:
    """Return the id and the status of a long job, with a note if no runner is alive to begin it."""
    return {"id": job_id, "status": status, "note": _note(context().long_jobs) if status == "queued" else None}


def accepted(job_id: str, status: str) -> Response:
    """Return 202 with the state of a long job and its location."""
    return json_response(state(job_id, status), 202, {"Location": f"{json_request().root_path}/v1/jobs/{job_id}"})


async def wait(job_id: str, timeout_s: float) -> LongJobStatus:
    """Return the state of a long job once it has ended, or its state after `timeout_s`."""
    until_s, home = time.monotonic() + timeout_s, context()
    while True:
        job, left_s = await home.in_thread(home.long_jobs.status, job_id), until_s - time.monotonic()
        if job.has_ended or left_s <= 0:
            return job
        pause_s = max(_LOOK_EVERY_S, _PAUSE_S * home.access.num_requests(json_request()))
        await asyncio.sleep(min(left_s, pause_s))


def raise_failure(job: LongJobStatus) -> None:
    """Raise the error of a long job that has failed or was cancelled; do nothing for any other job."""
    if failure := job.failure():
        raise type(failure)(public_text(failure.message, context().settings))


def check_room_for_job() -> None:
    """Raise Overloaded if the client of the current request has reached its limit of unfinished long jobs."""
    most = context().settings.max_long_jobs_per_client
    jobs = context().long_jobs.list(json_request().client_name, most + _MAX_ENDED)
    if sum(not job.has_ended for job in jobs) >= most:
        raise Overloaded(
            f"this client has {most:,} long jobs that have not ended (SHOAL_MAX_LONG_JOBS_PER_CLIENT): wait until one "
            "has, or cancel some",
            _WAIT_S,
        )


def submit_with_file(
    kind: str,
    query: BulkQuery | BuildQuery,
    body: BulkBody | BuildBody,
    arguments: Callable[[JobFolder], dict[str, Any]],
) -> Response:
    """Submit a job whose source is the body, or a file that the body names. `arguments` returns the other arguments."""
    fields, uploads, long_jobs = body if query.name is None else query, context().uploads, context().long_jobs
    client = json_request().client_name
    try:
        job_id = long_jobs.id_of(client, key := idempotency_key())
        with uploads.new(client, job_id) as folder:
            is_known = key is not None and _is_known(job_id)
            if fields is not query and query.model_fields_set:
                raise InvalidRequest(
                    f"{min(query.model_fields_set)} is in the query: put it into the body, or give the `name` of a "
                    "file there and send the file as the body"
                )
            given = arguments(folder) | {"source": _source(fields, folder)}
            size = (request.content_length or 0) if json_request().is_upload else 0
            if not is_known:
                check_room_for_job()
                if "out" in given:
                    uploads.check_results(folder.owner)
                if fields is query:
                    folder.receive(json_request(), query.name or "", context().stopping.is_set)
            folder.is_kept = True
            try:
                long_jobs.submit(kind, given, client=client, job_id=job_id, upload_bytes=size)
            except ShoalError as error:
                folder.is_kept = is_known or isinstance(error, Unavailable)  # in both cases, Redis may have the job
                raise
    finally:
        if json_request().is_upload:  # many clients read no response before they have sent the whole body
            discard_rest(json_request())
    return accepted(job_id, long_jobs.status(job_id).status)


def idempotency_key() -> str | None:
    """Return the idempotency key of the current request, or None. Raises InvalidRequest for a wrong key."""
    key = request.headers.get("Idempotency-Key")
    return None if key is None else check_key(key)


def _is_known(job_id: str) -> bool:
    with suppress(UnknownJob):
        return bool(context().long_jobs.status(job_id))
    return False


def _source(fields: Fields, folder: JobFolder) -> str:
    """Return the source of the job: the path of the upload, or the file that the body names."""
    if isinstance(fields, BulkQuery | BuildQuery):
        return folder.place(fields.name or "")
    if fields.source is None:
        raise InvalidRequest(
            "source is missing: name a file, or send one as the body with its `name` in the query: ?name=news.csv"
        )
    settings = context().settings
    place = allowed_path(fields.source, settings)
    if not json_request().is_admin and Path(place).is_relative_to((settings.files_folder / JOBS).resolve()):
        raise PathNotAllowed(f"{excerpt(fields.source)} is among the files of jobs, which only their own clients read")
    return fields.source


def _note(long_jobs: LongJobs) -> str | None:
    """Return why queued jobs do not begin, or None if a runner is alive."""
    return None if long_jobs.num_runners() else "no runner is alive: start one with `shoal jobs`"
