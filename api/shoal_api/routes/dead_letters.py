"""/v1/dead: jobs that could not be answered. For operators with an admin key, as they hold other clients' texts."""

from dataclasses import asdict
from typing import Any

from flask import Response

from shoal.queue.blame import DeadLetter, DeadLetters
from shoal_api.answers.response import rendered
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.enqueue import refuse_idempotency_key
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import DeadLetterPath, DeadLettersQuery
from shoal_api.schema.responses import DeadLetterBody, DeadLetterList, Dropped, Submitted

#: Most bytes shown of a job that cannot be read.
MAX_SHOWN_BYTES = 1_000

api = Blueprint("dead_letters", __name__, "dead letters", ErrorBody)


@api.get("/v1/dead", responses={200: DeadLetterList})
async def dead_letters(query: DeadLettersQuery) -> Response:
    """List the jobs that could not be answered, the newest first."""
    count, letters = await context().client.queue.num_dead(), await _letters().newest(query.limit)
    return rendered({"count": count, "dead": [describe(letter) for letter in letters]})


@api.get("/v1/dead/<id>", responses={200: DeadLetterBody})
async def dead_letter(path: DeadLetterPath) -> Response:
    """Show one of them, with its texts and the traceback if there is one."""
    letter = await _letters().get(path.id)
    job = letter.job()
    asked = None if job is None else {"texts": job.texts, "options": asdict(job.options)}
    about = {"traceback": letter.traceback, "asked": asked, "size_bytes": letter.size_bytes}
    return rendered({**describe(letter), **about, "bytes": None if job else letter.data[:MAX_SHOWN_BYTES].hex()})


@api.post("/v1/dead/<id>/retry", responses={202: Submitted})
async def retry_dead_letter(path: DeadLetterPath) -> Response:
    """Submit the job again, under a new id by which its result can be fetched."""
    refuse_idempotency_key("repeat it without a key, as a dead letter is put again once")
    job_id = await _letters().retry(path.id)
    return rendered({"id": job_id, "status": "queued"}, 202, {"Location": f"/v1/jobs/{job_id}"})


@api.delete("/v1/dead/<id>", responses={200: Dropped})
async def drop_dead_letter(path: DeadLetterPath) -> Response:
    """Delete a dead letter."""
    await _letters().drop(path.id)
    return rendered({"id": path.id, "dropped": True})


def _letters() -> DeadLetters:
    return DeadLetters(context().client.queue)


def describe(letter: DeadLetter) -> dict[str, Any]:
    """Return what names a dead letter and its job, without texts, as JSON has it."""
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
