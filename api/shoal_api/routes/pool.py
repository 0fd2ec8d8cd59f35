"""GET /v1/pool: lanes, workers, jobs and dead letters, and what the workers do."""

from contextlib import suppress
from typing import Any

from flask import Response

from shoal.errors import MissingExtra
from shoal.queue.blame import DeadLetters
from shoal_api.answers.response import rendered
from shoal_api.context import Context, context
from shoal_api.description import Blueprint
from shoal_api.long_jobs import long_job
from shoal_api.request import json_request
from shoal_api.routes.dead_letters import describe
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.pool import PoolBody

api = Blueprint("pool", __name__, "service", ErrorBody)

#: Most dead letters and long jobs that are shown, and most recent jobs.
MAX_SHOWN, MAX_RECENT = 30, 100


@api.get("/v1/pool", responses={200: PoolBody})
async def pool() -> Response:
    """Tell what the lanes hold and the workers do now, and the newest jobs that the key may see."""
    found, is_admin = context(), json_request().is_admin
    client = None if is_admin else json_request().client_name
    measured = await found.pool.measure()
    letters = await DeadLetters(found.client.queue).newest(MAX_SHOWN) if is_admin else []
    return rendered(
        measured
        | {
            "every_s": found.pool.every_s,
            "is_admin": is_admin,
            "recent": [job for job in measured["recent"] if client in (None, job["client"])][:MAX_RECENT],
            "dead": list(map(describe, letters)) if is_admin else None,
            "long_jobs": await found.in_thread(_long_jobs, found, client),
        }
    )


def _long_jobs(found: Context, client: str | None) -> list[dict[str, Any]]:
    """Return the newest long jobs. RQ, which takes some MB, is not loaded while there are none."""
    if found.long_jobs.is_empty():
        return []
    with suppress(MissingExtra):
        return long_job.describe(found, *found.long_jobs.list(client, MAX_SHOWN))
    return []
