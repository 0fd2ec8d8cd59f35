"""The jobs of requests: put into the queue, and waited for or submitted to be fetched later."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flask import Response, request

from shoal.jobs import Job
from shoal.replies import Reply
from shoal.size_limit import MAX_REQUEST_HITS, check_hits, check_texts
from shoal_api.context import context
from shoal_api.request import json_request
from shoal_api.response import rendered

#: The header that `prefers_async` reads, for the description of a route.
PREFER: dict[str, Any] = {
    "name": "Prefer",
    "in": "header",
    "description": "`respond-async` submits a job instead of waiting for it",
    "schema": {"type": "string"},
}

#: Headers of a response that did what `Prefer` asked for.
PREFERENCE_APPLIED = {"Preference-Applied": "respond-async"}


def prefers_async() -> bool:
    """Return true if the current request has `Prefer: respond-async` (RFC 7240)."""
    header = request.environ.get("HTTP_PREFER")
    if header is None:
        return False
    return any(part.partition(";")[0].strip().lower() == "respond-async" for part in header.split(","))


def call(job: Job, remedy: str, lane: str = "interactive") -> Reply:
    """Send the job and return its reply. The job is withdrawn if the client disconnects.

    Raises the reply's error, TooLarge with the `remedy` for too many texts, Overloaded, Unavailable and Timeout.
    """
    settings, client = context().settings, context().client
    json_request().num_texts = len(job.texts)
    check_texts(job.texts, settings.max_request_texts, settings.max_text_chars, "request", remedy)
    check_hits(job, MAX_REQUEST_HITS, "request")
    name, timeout_s = json_request().client_name, settings.request_timeout_s
    return client.call(job, lane=lane, timeout_s=timeout_s, client=name, is_wanted=_connection_check())


def submit(job: Job, lane: str = "interactive", headers: dict[str, str] | None = None) -> Response:
    """Submit the job and return 202 with its id and location.

    Raises TooLarge, Overloaded, Unavailable, and InvalidRequest for an idempotency key that cannot be used.
    """
    settings, client = context().settings, context().client
    max_texts = min(settings.max_request_texts, settings.max_job_texts)
    check_texts(job.texts, max_texts, settings.max_text_chars, "request", "split the list over several jobs")
    job_id = client.put(job, lane, json_request().client_name, request.headers.get("Idempotency-Key"))
    status = "queued" if job_id == job.id else client.queue.status(job_id)[0]
    return rendered({"id": job_id, "status": status}, 202, {"Location": f"/v1/jobs/{job_id}", **(headers or {})})


def _connection_check() -> Callable[[], bool] | None:
    """Return a function that tells if the current request's client is still connected, where that can be known."""
    if request.environ.get("SERVER_SOFTWARE") != "Granian":
        return None
    disconnects, running = context().disconnects, context().access.running
    earliest_s = disconnects.earliest_arrival_s(json_request().started_s, len(running))
    return partial(disconnects.has_connection, earliest_s, time.perf_counter(), running)
