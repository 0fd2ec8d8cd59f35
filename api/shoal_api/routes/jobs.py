"""Submit and fetch: jobs that nobody waits for, and their results."""

from typing import Any

from flask import Response, request
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal.jobs import Job
from shoal.replies import Reply
from shoal.size_limit import check_texts
from shoal_api.access.client_name import caller
from shoal_api.context import context
from shoal_api.response import rendered
from shoal_api.schema import ERRORS, JobBody, JobPath, JobResult, JobStatus, ResultQuery, Submitted

api = APIBlueprint("jobs", __name__, abp_tags=[Tag(name="submit and fetch")], abp_responses=ERRORS)


_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Submitting the same again with the same key within a day answers the job that was submitted first",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


@api.post("/v1/jobs", responses={202: Submitted}, openapi_extensions={"parameters": [_IDEMPOTENCY_KEY]})
def submit_job(body: JobBody) -> Response:
    """Submit a job; its result can be fetched until it expires."""
    return submit(body.job(), body.lane)


@api.get("/v1/jobs/<id>", responses={200: JobStatus})
def job_status(path: JobPath) -> Response:
    """The status of a job, and its timings once it is done."""
    status, timings = context().client.queue.status(path.id)
    return rendered({"id": path.id, "status": status, "timings": timings})


@api.get("/v1/jobs/<id>/result", responses={200: JobResult, 202: Submitted})
def job_result(path: JobPath, query: ResultQuery) -> Response:
    """The result of a job, waited for if asked; 202 with its status while there is none."""
    queue = context().client.queue
    reply = queue.wait_result(path.id, query.wait)
    if reply is None:
        return rendered({"id": path.id, "status": queue.status(path.id)[0]}, 202)
    return rendered(_result(Reply.join([reply])))


@api.delete("/v1/jobs/<id>", responses={200: Submitted})
def cancel_job(path: JobPath) -> Response:
    """Cancel a job that no worker has started; the answer has the status it then has."""
    return rendered({"id": path.id, "status": context().client.queue.cancel(path.id)})


def submit(job: Job, lane: str = "interactive") -> Response:
    """Puts the job and answers 202, with the place where it can be followed."""
    settings, client = context().settings, context().client
    max_texts = min(settings.max_request_texts, settings.max_job_texts)
    check_texts(job.texts, max_texts, settings.max_text_chars, "request", "split the list over several jobs")
    job_id = client.put(job, lane, caller(), request.headers.get("Idempotency-Key"))
    status = "queued" if job_id == job.id else client.queue.status(job_id)[0]
    return rendered({"id": job_id, "status": status}, 202, {"Location": f"/v1/jobs/{job_id}"})


def _result(reply: Reply) -> dict[str, Any]:
    outcome = {"results": reply.hits} if reply.vectors is None else {"embeddings": _rows(reply)}
    return {
        "id": reply.id,
        "status": reply.status,
        **outcome,
        "tokens": reply.tokens,
        "truncated": reply.truncated,
        "timings": reply.timings,
        "cached": reply.cached,
        "model": reply.model,
    }


def _rows(reply: Reply) -> Any:
    """The vectors, by text if there is one for each token."""
    assert reply.vectors is not None
    return reply.vectors if len(reply.vectors) == len(reply.tokens) else reply.rows_by_text()
