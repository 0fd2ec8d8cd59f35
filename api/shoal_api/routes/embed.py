"""The routes that wait for the answer: embed and search."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

from flask import Response, request
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal.jobs import Job
from shoal.replies import Reply
from shoal.size_limit import check_texts
from shoal_api.access.client_name import caller
from shoal_api.context import context
from shoal_api.request import JsonRequest, wants_async
from shoal_api.response import cost_headers, rendered
from shoal_api.routes.jobs import submit
from shoal_api.schema import ERRORS, EmbedBody, Embeddings, SearchBody, SearchResults, Submitted

#: What to do with too many texts.
_REMEDY = {
    "embed": "split the list, or stream it with `shoal embed` or Client.embed_stream",
    "search": "split the list",
}

api = APIBlueprint("waiting", __name__, abp_tags=[Tag(name="wait for the answer")], abp_responses=ERRORS)

_PREFER = {
    "name": "Prefer",
    "in": "header",
    "description": "`respond-async` submits a job instead of waiting for it",
    "schema": {"type": "string"},
}


@api.post("/embed", responses={200: Embeddings, 202: Submitted}, openapi_extensions={"parameters": [_PREFER]})
def embed(body: EmbedBody) -> Response:
    """Embed texts: one vector for each, in order."""
    job = body.job()
    if wants_async():
        return _submit(job)
    reply = _wait(job)
    rows = reply.rows_by_text() if job.options.output == "tokens" else reply.vectors
    return rendered(rows, headers=cost_headers(reply))


@api.post("/search", responses={200: SearchResults, 202: Submitted}, openapi_extensions={"parameters": [_PREFER]})
def search(body: SearchBody) -> Response:
    """Find the documents nearest in meaning to each query, best first."""
    job = body.job()
    if wants_async():
        return _submit(job)
    reply = _wait(job)
    return rendered({"results": reply.hits}, headers=cost_headers(reply))


def _wait(job: Job) -> Reply:
    settings, client = context().settings, context().client
    check_texts(job.texts, settings.max_request_texts, settings.max_text_chars, "request", _REMEDY[job.op])
    return client.call(job, timeout_s=settings.request_timeout_s, client=caller(), is_wanted=_is_wanted())


def _is_wanted() -> Callable[[], bool] | None:
    """What says whether the caller of the current request is still there, if that can be known."""
    if request.environ.get("SERVER_SOFTWARE") != "Granian":
        return None
    arrivals, num_running = context().arrivals, len(context().gate.running)
    since = arrivals.since(cast(JsonRequest, request).started_s, num_running)
    return partial(arrivals.has_any, since, time.perf_counter())


def _submit(job: Job) -> Response:
    response = submit(job)
    response.headers["Preference-Applied"] = "respond-async"
    return response
