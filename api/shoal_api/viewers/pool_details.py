"""The newest dead letters and long jobs, which viewers of the pool see beside its history."""

from contextlib import suppress
from typing import Any

from shoal.errors import MissingExtra
from shoal.queue.blame import DeadLetter, DeadLetters
from shoal_api.context import Context
from shoal_api.long_jobs import long_job
from shoal_api.viewers.pool_watch import Details

#: Most dead letters and long jobs that are shown.
MAX_SHOWN = 30


async def read_details(found: Context, client: str | None) -> Details:
    """Return the newest long jobs of a client; for None, those of all and the newest dead letters.

    Raises Unavailable if Redis does not answer.
    """
    letters = await DeadLetters(found.client.queue).newest(MAX_SHOWN) if client is None else []
    long_jobs = await found.in_thread(_long_jobs, found, client)
    return Details(list(map(describe, letters)), long_jobs)


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


def _long_jobs(found: Context, client: str | None) -> list[dict[str, Any]]:
    """Return the newest long jobs. RQ, which takes some MB, is not loaded while there are none."""
    if found.long_jobs.is_empty():
        return []
    with suppress(MissingExtra):
        return long_job.describe(found, *found.long_jobs.list(client, MAX_SHOWN))
    return []
