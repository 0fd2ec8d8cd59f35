"""/v1/jobs: submit jobs, fetch their status and result later, or cancel them."""

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal.replies import Reply
from shoal_api.context import context
from shoal_api.enqueue import IDEMPOTENCY_KEY, submit
from shoal_api.response import rendered, result_fields
from shoal_api.schema.requests import JobBody, JobPath, ResultQuery
from shoal_api.schema.responses import ERRORS, JobResult, JobState, JobStatus, Submitted
from shoal_api.vector_format import VectorFormat, arrays_of

api = APIBlueprint("jobs", __name__, abp_tags=[Tag(name="submit and fetch")], abp_responses=ERRORS)


@api.post("/v1/jobs", responses={202: Submitted}, openapi_extensions={"parameters": [IDEMPOTENCY_KEY]})
def submit_job(body: JobBody) -> Response:
    """Submit a job; its result can be fetched until it expires."""
    return submit(body.job(), body.lane)


@api.get("/v1/jobs/<id>", responses={200: JobStatus})
def job_status(path: JobPath) -> Response:
    """Tell the status of a job, and its timings once it is done."""
    status, timings = context().client.queue.status(path.id)
    return rendered({"id": path.id, "status": status, "timings": timings})


@api.get("/v1/jobs/<id>/result", responses={200: JobResult, 202: JobState})
def job_result(path: JobPath, query: ResultQuery) -> Response:
    """Fetch the result of a job, after up to `wait` seconds; 202 with the status of the job while there is none."""
    wanted, client = VectorFormat.of_request(), context().client
    reply = client.connect().wait_result(path.id, query.wait)
    if reply is None:
        return rendered({"id": path.id, "status": client.queue.status(path.id)[0]}, 202)
    reply = Reply.join([reply])
    if reply.scores is not None:
        return rendered({**result_fields(reply), "scores": reply.scores})
    if reply.vectors is None:
        return rendered({**result_fields(reply), "results": reply.hits, "index_version": reply.index_version})
    return wanted.answer(reply, arrays_of(reply, query.output_dtype), fields=result_fields(reply))


@api.delete("/v1/jobs/<id>", responses={200: JobState})
def cancel_job(path: JobPath) -> Response:
    """Cancel a job that is not answered yet, whether a worker has it or not; return its status after that."""
    return rendered({"id": path.id, "status": context().client.queue.cancel(path.id)})
