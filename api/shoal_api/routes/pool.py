"""GET /v1/pool: the state of lanes, workers and jobs. /v1/dead: dead letters."""

from contextlib import suppress
from dataclasses import asdict
from typing import Any

from flask import Response

from shoal.errors import MissingExtra
from shoal.queue.dead_letters import DeadLetter, DeadLetters
from shoal_api.answers.response import json_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import Context, context
from shoal_api.long_jobs import long_job
from shoal_api.pool.pool_snapshot import PoolSnapshot
from shoal_api.request import json_request
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.schema.requests import JobPath, ListQuery
from shoal_api.schema.responses import DocumentedAnswer, Submitted

api = Blueprint("pool", __name__, "service", ErrorBody)
dead_letters_api = Blueprint("dead_letters", __name__, "dead letters", ErrorBody)

#: If a job cannot be read, at most this many of its bytes are shown.
MAX_SHOWN_BYTES = 1_000

#: At most `MAX_SHOWN` long jobs and `MAX_RECENT` recent jobs are shown.
MAX_SHOWN, MAX_RECENT = 30, 100


@api.get("/v1/pool", responses={200: DocumentedAnswer})
async def pool() -> Response:
    """Return the state of the lanes and the workers, and the newest jobs that the key may see."""
    found, is_admin = context(), json_request().is_admin
    client = None if is_admin else json_request().client_name
    described = (await PoolSnapshot.take(found.client.queue)).describe()
    return json_response(
        described
        | {
            "api_cache_hits": found.metrics.num_cache_hits(found.settings.pool),
            "is_admin": is_admin,
            "recent": [job for job in described["recent"] if client in (None, job["client"])][:MAX_RECENT],
            "long_jobs": await found.in_thread(_long_jobs, found, client),
        }
    )


def _long_jobs(found: Context, client: str | None) -> list[dict[str, Any]]:
    """Return the newest long jobs. If there are no long jobs, RQ is not loaded, because it needs some MB of memory."""
    if found.long_jobs.is_empty():
        return []
    with suppress(MissingExtra):
        return long_job.describe(found, *found.long_jobs.list(client, MAX_SHOWN))
    return []


@dead_letters_api.get("/v1/dead", responses={200: DocumentedAnswer})
async def dead_letters(query: ListQuery) -> Response:
    """List the jobs that could not be answered, the newest first."""
    count, letters = await context().client.queue.num_dead(), await _letters().newest(query.limit)
    return json_response({"count": count, "dead": [describe(letter) for letter in letters]})


@dead_letters_api.get("/v1/dead/<id>", responses={200: DocumentedAnswer})
async def dead_letter(path: JobPath) -> Response:
    """Show a dead letter with its texts, and with the traceback if there is one."""
    letter = await _letters().get(path.id)
    job = letter.job()
    asked = None if job is None else {"texts": job.texts, "options": asdict(job.options)}
    about = {"traceback": letter.traceback, "asked": asked, "size_bytes": letter.size_bytes}
    return json_response({**describe(letter), **about, "bytes": None if job else letter.data[:MAX_SHOWN_BYTES].hex()})


@dead_letters_api.post("/v1/dead/<id>/retry", responses={202: Submitted})
async def retry_dead_letter(path: JobPath) -> Response:
    """Submit the job of a dead letter again, under a new id by which its result can be fetched."""
    job_id = await _letters().retry(path.id)
    return json_response(
        {"id": job_id, "status": "queued"}, 202, {"Location": f"{json_request().root_path}/v1/jobs/{job_id}"}
    )


@dead_letters_api.delete("/v1/dead/<id>", responses={200: DocumentedAnswer})
async def drop_dead_letter(path: JobPath) -> Response:
    """Delete a dead letter."""
    await _letters().drop(path.id)
    return json_response({"id": path.id, "dropped": True})


def _letters() -> DeadLetters:
    return DeadLetters(context().client.queue)


def describe(letter: DeadLetter) -> dict[str, Any]:
    """Return a JSON object that describes a dead letter and its job, without texts."""
    outline = letter.outline()
    return {
        "id": letter.id,
        "time": letter.time_s,
        "job_id": outline.id,
        "op": outline.op,
        "num_texts": outline.num_texts,
        "lane": letter.lane,
        "deliveries": letter.deliveries,
        "worker": letter.worker,
        "reason": letter.reason,
    }
