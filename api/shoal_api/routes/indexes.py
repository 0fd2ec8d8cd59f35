"""/v1/indexes: the indexes that are served; for operators, their documents, builds and versions."""

import time
from functools import partial
from typing import Any

from flask import Response

from shoal.contract.excerpt import excerpt
from shoal.contract.keys import NAME, NAME_RULE
from shoal.errors import InvalidRequest
from shoal_api.answers.response import json_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.enqueue import IDEMPOTENCY_KEY, writer
from shoal_api.long_jobs.long_job import accepted, idempotency_key, raise_failure, submit_with_file, wait
from shoal_api.request import json_request
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.schema.indexes import (
    BuildBody,
    BuildQuery,
    DocumentsBody,
    IdsBody,
    IndexPath,
    PublishBody,
    VersionPath,
)
from shoal_api.schema.responses import DocumentedAnswer, Submitted

api = Blueprint("indexes", __name__, "indexes", ErrorBody)

#: The answers of routes whose work a runner does: the result, or 202 before the runner is done.
_VERSIONS: dict[Any, Any] = {200: DocumentedAnswer, 202: Submitted}


@api.get("/v1/indexes", responses={200: DocumentedAnswer})
async def indexes() -> Response:
    """List the indexes that ready workers serve."""
    pool = await context().pool.read()
    errors = pool.index_errors
    described = [
        {"name": name, "fields": {}, **about, "error": errors.get(name)} for name, about in pool.indexes.items()
    ]
    return json_response({"indexes": described, "errors": errors})


@api.post("/v1/indexes/<index>/documents", responses={200: DocumentedAnswer})
async def add_documents(path: IndexPath, body: DocumentsBody) -> Response:
    """Add documents to a served index: all of them, or none. A document replaces the one with the same id."""
    return _written(path.index, *await writer(_checked(path.index)).add(body.documents))


@api.delete("/v1/indexes/<index>/documents", responses={200: DocumentedAnswer})
async def delete_documents(path: IndexPath, body: IdsBody) -> Response:
    """Delete documents from a served index by their ids: all of them, or none."""
    return _written(path.index, *await writer(_checked(path.index)).delete(body.ids))


@api.post(
    "/v1/indexes/<index>/builds",
    responses={202: Submitted},
    openapi_extensions={"x-headers": [IDEMPOTENCY_KEY]},
)
def build_index(path: IndexPath, query: BuildQuery, body: BuildBody) -> Response:
    """Build a version of an index from a file below a root or, with `name`, from a file in the body."""
    fields = body if query.name is None else query
    arguments = fields.arguments()
    return submit_with_file("build_index", query, body, lambda _: {"name": _checked(path.index), **arguments})


@api.get("/v1/indexes/<index>/versions", responses=_VERSIONS)
async def index_versions(path: IndexPath) -> Response:
    """List the versions of an index, the newest first."""
    return await _manage(path.index, "list")


@api.post("/v1/indexes/<index>/publish", responses=_VERSIONS)
async def publish_version(path: IndexPath, body: PublishBody) -> Response:
    """Serve a version of an index: all workers switch to it."""
    return await _manage(path.index, "publish", body.version)


@api.post("/v1/indexes/<index>/rollback", responses=_VERSIONS, openapi_extensions={"x-headers": [IDEMPOTENCY_KEY]})
async def roll_back(path: IndexPath) -> Response:
    """Serve the version of an index that was served before."""
    return await _manage(path.index, "rollback", key=idempotency_key())


@api.delete("/v1/indexes/<index>/versions/<version>", responses=_VERSIONS)
async def delete_version(path: VersionPath) -> Response:
    """Delete a version of an index. The served version cannot be deleted."""
    return await _manage(path.index, "delete", path.version)


def _written(index: str, num: int, position: str) -> Response:
    return json_response({"index": index, "num": num, "position": position})


async def _manage(index: str, action: str, version: str | None = None, key: str | None = None) -> Response:
    """Let a runner do the action, and return the versions after it, or 202 if no runner has done it in time."""
    long_jobs = context().long_jobs
    arguments = {"name": _checked(index), "action": action, "version": version}
    until_s = time.monotonic() + context().settings.request_timeout_s
    submit = partial(long_jobs.submit, client=json_request().client_name, idempotency_key=key)
    job_id = await context().in_thread(submit, "manage_index", arguments)
    has_runner = await context().in_thread(long_jobs.num_runners)
    job = await wait(job_id, until_s - time.monotonic() if has_runner else 0.0)
    if job.status == "done":
        return json_response(job.result)
    raise_failure(job)
    return await context().in_thread(accepted, job_id, job.status)


def _checked(index: str) -> str:
    """Return the name of an index. Raises InvalidRequest for a name that could lead to another folder."""
    if not NAME.fullmatch(index) or index.startswith("."):
        raise InvalidRequest(f"the index is {excerpt(index)}: it takes {NAME_RULE}, and does not begin with a dot")
    return index
