"""GET /v1/pool and its events: lanes, workers and jobs in the last ten minutes. /v1/dead: dead letters."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from flask import Response

from shoal.queue.blame import DeadLetters
from shoal_api.answers.response import json_line, rendered, sent
from shoal_api.blueprint import Blueprint
from shoal_api.context import Context, context
from shoal_api.enqueue import refuse_idempotency_key
from shoal_api.request import json_request
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.pool import (
    DeadLetterBody,
    DeadLetterList,
    DeadLetterPath,
    DeadLettersQuery,
    Dropped,
    PoolBody,
    PoolQuery,
)
from shoal_api.schema.responses import Submitted
from shoal_api.viewers.event_stream import FIRST, MAX_STREAM_S, as_stream, event
from shoal_api.viewers.pool_details import describe
from shoal_api.viewers.pool_watch import PoolWatch

api = Blueprint("pool", __name__, "service", ErrorBody)
dead_letters_api = Blueprint("dead_letters", __name__, "dead letters", ErrorBody)

#: Most bytes shown of a job that cannot be read.
MAX_SHOWN_BYTES = 1_000

#: Longest wait for a sample, in seconds; Redis has as long to answer.
_SAMPLE_WITHIN_S = 5.0

#: Interval at which a viewer looks for a new sample, in seconds.
_LOOK_EVERY_S = 0.1

_EVENTS: dict[Any, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

_LAST_EVENT_ID: dict[str, Any] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The `id` of the last event that was read: only later samples are sent",
    "schema": {"type": "string"},
}


@api.get("/v1/pool", responses={200: PoolBody})
async def pool(query: PoolQuery) -> Response:
    """Tell what the lanes hold and the workers do, now and in the last ten minutes."""
    watch = _started_watch(context())
    await _next_sample(watch, 0)
    return sent(json_line(await watch.view(_client(), query.since)), "application/json")


@api.get("/v1/pool/events", responses=_EVENTS, openapi_extensions={"parameters": [_LAST_EVENT_ID]})
async def pool_events() -> Response:
    """Watch the pool by server-sent events: `pool` now and every 2 s, each with the samples since the one before."""
    release = context().access.count_lasting(json_request())
    since_s = _as_time(json_request().headers.get("Last-Event-ID", ""))
    response = as_stream(_events(context(), _client(), since_s))
    response.call_on_close(release)
    return response


async def _events(found: Context, client: str | None, since_s: float) -> AsyncIterator[bytes]:
    """Yield an event for each sample, and for each try in vain; end if the server stops."""
    watch, ends_s, number = _started_watch(found), time.monotonic() + MAX_STREAM_S, 0
    yield FIRST
    while time.monotonic() < ends_s:
        last, number = number, await _next_sample(watch, number)
        if watch.is_stopped:
            return
        if number == last:
            continue
        view = await watch.view(client, since_s)
        if view["time"] != since_s or watch.error:  # else the sample was read before it was counted, and sent
            since_s = view["time"]
            yield event("pool", json_line(view), str(since_s))


async def _next_sample(watch: PoolWatch, number: int) -> int:
    """Return the number of the last sample, once it is above `number`; without one in time, or at a stop, as it is."""
    until_s = time.monotonic() + _SAMPLE_WITHIN_S
    while watch.number <= number and not watch.is_stopped and time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_EVERY_S)
    return watch.number


def _started_watch(found: Context) -> PoolWatch:
    watch = found.pool_watch
    watch.start()
    return watch


def _client() -> str | None:
    """Return the client whose jobs the current request may see; None for all."""
    return None if json_request().is_admin else json_request().client_name


def _as_time(event_id: str) -> float:
    """Return the time in the id of an event; 0.0 for another text, with which everything is sent."""
    with suppress(ValueError):
        return time_s if math.isfinite(time_s := float(event_id[:32])) else 0.0
    return 0.0


@dead_letters_api.get("/v1/dead", responses={200: DeadLetterList})
async def dead_letters(query: DeadLettersQuery) -> Response:
    """List the jobs that could not be answered, the newest first."""
    count, letters = await context().client.queue.num_dead(), await _letters().newest(query.limit)
    return rendered({"count": count, "dead": [describe(letter) for letter in letters]})


@dead_letters_api.get("/v1/dead/<id>", responses={200: DeadLetterBody})
async def dead_letter(path: DeadLetterPath) -> Response:
    """Show one of them, with its texts and the traceback if there is one."""
    letter = await _letters().get(path.id)
    job = letter.job()
    asked = None if job is None else {"texts": job.texts, "options": asdict(job.options)}
    about = {"traceback": letter.traceback, "asked": asked, "size_bytes": letter.size_bytes}
    return rendered({**describe(letter), **about, "bytes": None if job else letter.data[:MAX_SHOWN_BYTES].hex()})


@dead_letters_api.post("/v1/dead/<id>/retry", responses={202: Submitted})
async def retry_dead_letter(path: DeadLetterPath) -> Response:
    """Submit the job again, under a new id by which its result can be fetched."""
    refuse_idempotency_key("repeat it without a key, as a dead letter is put again once")
    job_id = await _letters().retry(path.id)
    return rendered({"id": job_id, "status": "queued"}, 202, {"Location": f"/v1/jobs/{job_id}"})


@dead_letters_api.delete("/v1/dead/<id>", responses={200: Dropped})
async def drop_dead_letter(path: DeadLetterPath) -> Response:
    """Delete a dead letter."""
    await _letters().drop(path.id)
    return rendered({"id": path.id, "dropped": True})


def _letters() -> DeadLetters:
    return DeadLetters(context().client.queue)
