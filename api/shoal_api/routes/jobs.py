"""/v1/jobs: jobs and long jobs, submitted, watched, fetched, cancelled and retried. POST /v1/bulk: files to embed."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from flask import Response

from shoal.bulk.vector_folder import BAD_ROWS
from shoal.contract.excerpt import excerpt
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import UnknownFile, UnknownJob
from shoal.job_folders import RESULT
from shoal.long_jobs.status import public_text
from shoal.process.allowed_path import allowed_path
from shoal_api.answers.response import (
    LARGE_BYTES,
    FileResponse,
    bytes_response,
    json_response,
    result_fields,
    search_fields,
)
from shoal_api.answers.vector_format import RAW, accepted_type, output_response, output_type, vectors_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.enqueue import FINGERPRINT, IDEMPOTENCY_KEY, submit, wanted_fingerprint
from shoal_api.long_jobs.long_job import (
    check_room_for_job,
    describe,
    own_job,
    raise_failure,
    state,
    submit_with_file,
    wait,
)
from shoal_api.long_jobs.upload_store import JobFolder
from shoal_api.request import PIECE_BYTES, json_request
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.schema.long_jobs import BulkBody, BulkQuery, FilePath
from shoal_api.schema.requests import JobBody, JobPath, ListQuery, ResultQuery, submitted_job
from shoal_api.schema.responses import AnyJobResult, DocumentedAnswer, JobState, JobStatus, Submitted

api = Blueprint("jobs", __name__, "submit and fetch", ErrorBody)
long_jobs_api = Blueprint("bulk", __name__, "long jobs", ErrorBody)

_RESULT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_FILE: dict[Any, Any] = {200: {"content": {RAW: {"schema": {"type": "string", "format": "binary"}}}}}


@api.post("/v1/jobs", responses={202: Submitted}, openapi_extensions={"x-headers": [IDEMPOTENCY_KEY, FINGERPRINT]})
async def submit_job(body: JobBody) -> Response:
    """Submit a job; its result can be fetched until it expires."""
    return await submit(submitted_job(body), body.lane)


@api.get("/v1/jobs", responses={200: DocumentedAnswer})
def long_jobs(query: ListQuery) -> Response:
    """List long jobs, the newest first: the jobs of the request's key, or, for the key of an admin, all jobs."""
    client = None if json_request().is_admin else json_request().client_name
    jobs = context().long_jobs.list(client, query.limit)
    return json_response({"jobs": describe(context(), *jobs)})


@api.get("/v1/jobs/<id>", responses={200: JobStatus})
async def job_status(path: JobPath) -> Response:
    """Return the status of a job, with its timings once it is done, or the status and progress of a long job."""
    try:
        status, timings = await context().client.queue.status(path.id)
    except UnknownJob:
        return json_response(await context().in_thread(lambda: describe(context(), own_job(path.id))[0]))
    return json_response({"id": path.id, "status": status, "timings": timings})


@api.get(
    "/v1/jobs/<id>/result",
    responses={200: AnyJobResult, 202: JobState},
    openapi_extensions={"x-headers": [FINGERPRINT]},
)
async def job_result(path: JobPath, query: ResultQuery) -> Response:
    """Fetch the result of a job. If there is none after `wait` seconds, the answer is 202 with the job's status."""
    media_type, pin, client = accepted_type(), wanted_fingerprint(), context().client
    try:
        reply = await client.dispatcher.wait_result(path.id, query.wait)
    except UnknownJob:
        job_id = (await context().in_thread(own_job, path.id)).id
        job = await wait(job_id, query.wait)
        if job.status == "done":
            return json_response((await context().in_thread(describe, context(), job))[0])
        raise_failure(job)
        return json_response(await context().in_thread(state, job_id, job.status), 202)
    if reply is None:
        return json_response({"id": path.id, "status": (await client.queue.status(path.id))[0]}, 202)
    reply = Reply.join([reply.of_pinned(pin)])
    if reply.scores is not None:
        return json_response({**result_fields(reply), "scores": reply.scores})
    if reply.sparse is not None or reply.multivectors is not None:
        return output_response(reply, output_type(query.output_dtype), result_fields(reply))
    if reply.vectors is None:
        return json_response({**result_fields(reply), **search_fields(reply)})
    return vectors_response(reply, media_type, query.output_dtype, fields=result_fields(reply))


@api.post("/v1/jobs/<id>/cancel", responses={200: JobState})
async def cancel_job(path: JobPath) -> Response:
    """Cancel a job that is not answered yet, or a long job that waits or runs; return its new status."""
    try:
        return json_response({"id": path.id, "status": await context().client.queue.cancel(path.id)})
    except UnknownJob:
        status = await context().in_thread(lambda: context().long_jobs.cancel(own_job(path.id).id))
        return json_response(await context().in_thread(state, path.id, status))


@api.delete("/v1/jobs/<id>", responses={200: JobState})
async def delete_job(path: JobPath) -> Response:
    """Delete a long job that has ended, with its files; cancel a job that is not answered yet."""
    try:
        return json_response({"id": path.id, "status": await context().client.queue.cancel(path.id)})
    except UnknownJob:
        return json_response(await context().in_thread(_deleted, path.id))


@api.post("/v1/jobs/<id>/retry", responses={200: JobState})
def retry_job(path: JobPath) -> Response:
    """Let a failed or cancelled long job go on where it stopped; return its new status."""
    job = own_job(path.id)
    check_room_for_job()
    return json_response(state(job.id, context().long_jobs.retry(job.id)))


@long_jobs_api.post("/v1/bulk", responses={202: Submitted}, openapi_extensions={"x-headers": [IDEMPOTENCY_KEY]})
def submit_bulk(query: BulkQuery, body: BulkBody) -> Response:
    """Embed a file below a root or, with `name`, a file in the body."""
    fields = body if query.name is None else query

    def arguments(folder: JobFolder) -> dict[str, object]:
        Options(**fields.options())  # raises InvalidRequest for conflicting options
        columns = {"text_column": fields.text_column, "id_column": fields.id_column}
        return {**columns, "format": fields.format, "options": fields.options(), "out": folder.place(RESULT)}

    return submit_with_file("embed_file", query, body, arguments)


@long_jobs_api.get("/v1/jobs/<id>/files/<name>", responses=_FILE)
async def result_file(path: FilePath) -> Response:
    """Fetch a file of the result of a finished bulk embedding: `manifest.json`, or a file that the manifest names."""
    file = await context().in_thread(_open, path.id, path.name)
    size = os.fstat(file.fileno()).st_size
    if size <= LARGE_BYTES:
        with file:
            return bytes_response(await context().in_thread(file.read), RAW)
    response = FileResponse(file, {"Content-Type": RAW, "Content-Length": f"{size}"})
    response.call_on_close(context().access.count_transfer(json_request()))
    return response


def _open(job_id: str, name: str) -> BinaryIO:
    """Open a file of a job's result. Raises UnknownFile. In the list of bad rows, the server's folders are left out."""
    job = own_job(job_id)
    if job.kind != "embed_file" or job.status != "done":
        raise UnknownFile(
            f"job {job.id} ({job.kind}) is {job.status}: only an embed_file job that is done has files to fetch"
        )
    settings = context().settings
    file = open_result(Path(allowed_path(str(job.arguments.get("out")), settings)), name)
    if name != BAD_ROWS:
        return file
    copy = cast(BinaryIO, TemporaryFile())  # noqa: SIM115 - the response closes it
    with file:
        while lines := file.readlines(PIECE_BYTES):
            copy.write(public_text(b"".join(lines).decode(), settings).encode())
    copy.seek(0)
    return copy


def open_result(folder: Path, name: str) -> BinaryIO:
    """Open a file in the folder of a job's result. Raises UnknownFile if the folder has no file with this name."""
    with suppress(OSError):
        if _RESULT_NAME.fullmatch(name):
            # A link could lead out of the folder, and opening a pipe would wait.
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.fdopen(descriptor, "rb")
            os.close(descriptor)
    raise UnknownFile(f"the result has no file {excerpt(name)}: its manifest.json names the files")


def _deleted(job_id: str) -> dict[str, Any]:
    """Delete a long job that the client may see and that has ended, with its files."""
    job = own_job(job_id)
    with context().uploads.removal(job.client, job.id):
        context().long_jobs.delete(job.id)
    return {"id": job.id, "status": "deleted"}
