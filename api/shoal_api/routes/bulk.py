"""POST /v1/bulk: files to embed as a whole, and the files of the results."""

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
from shoal.errors import UnknownFile
from shoal.long_jobs.public_status import public_text
from shoal.process.allowed_path import allowed_path
from shoal.settings import Settings
from shoal_api.answers.response import FileResponse
from shoal_api.body import PIECE_BYTES
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.enqueue import IDEMPOTENCY_KEY
from shoal_api.long_jobs.job_folder import JobFolder
from shoal_api.long_jobs.long_job import own_job, submit_with_file
from shoal_api.request import json_request
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.long_jobs import BulkBody, BulkQuery, FilePath, LongJobSubmitted

api = Blueprint("bulk", __name__, "long jobs", ErrorBody)

_RESULT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_FILE: dict[Any, Any] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


@api.post("/v1/bulk", responses={202: LongJobSubmitted}, openapi_extensions={"parameters": [IDEMPOTENCY_KEY]})
def submit_bulk(query: BulkQuery, body: BulkBody) -> Response:
    """Embed a file: one that is below a root or at a URL, or with `name` the one that is the body."""
    fields = body if query.name is None else query

    def arguments(folder: JobFolder) -> dict[str, object]:
        Options(**fields.options())  # raises InvalidRequest for options at odds
        context().uploads.check_results(json_request().client_name)
        columns = {"text_column": fields.text_column, "id_column": fields.id_column}
        return {**columns, "format": fields.format, "options": fields.options(), "out": folder.result}

    return submit_with_file("embed_file", query, body, arguments)


@api.get("/v1/jobs/<id>/files/<name>", responses=_FILE)
async def result_file(path: FilePath) -> Response:
    """Fetch a file of the result of a bulk embedding that is done: `manifest.json`, or one that it names."""
    file = await context().in_thread(_open, path.id, path.name)
    size = os.fstat(file.fileno()).st_size
    response = FileResponse(file, {"Content-Type": "application/octet-stream", "Content-Length": f"{size}"})
    response.call_on_close(context().access.count_lasting(json_request()))
    return response


def _open(job_id: str, name: str) -> BinaryIO:
    """Return a file of the result of a job, opened; raise UnknownFile."""
    job = own_job(job_id)
    if job.kind != "embed_file" or job.status != "done":
        raise UnknownFile(
            f"job {job.id} ({job.kind}) is {job.status}: files can be fetched of an embed_file that is done"
        )
    file = open_result(Path(allowed_path(str(job.arguments.get("out")), context().settings)), name)
    return _public(file, context().settings) if name == BAD_ROWS else file


def open_result(folder: Path, name: str) -> BinaryIO:
    """Return a file of a result, opened; raise UnknownFile for a name that is that of no file in the folder."""
    with suppress(OSError):
        if _RESULT_NAME.fullmatch(name) and stat.S_ISREG((folder / name).lstat().st_mode):
            # The file may be another one by now: a link could lead out of the folder, and a pipe would be waited for.
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            return os.fdopen(descriptor, "rb")
    raise UnknownFile(f"the result has no file {excerpt(name)}: its manifest.json names the files")


def _public(file: BinaryIO, settings: Settings) -> BinaryIO:
    """Return a copy of a file of text with the paths of `public_text`; it has no name, and goes when it is closed."""
    copy = cast(BinaryIO, TemporaryFile())  # noqa: SIM115 - the response closes it
    with file:
        while lines := file.readlines(PIECE_BYTES):
            copy.write(public_text(b"".join(lines).decode(), settings).encode())
    copy.seek(0)
    return copy
