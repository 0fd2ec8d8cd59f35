"""The newest dead letters and long jobs, which viewers of the pool see beside its history."""

from contextlib import suppress

from shoal.errors import MissingExtra
from shoal.queue.dead_letters import DeadLetters
from shoal_api import dead_letter, long_job
from shoal_api.context import Context
from shoal_api.pool_watch import Details, OwnJob

#: Most dead letters and long jobs that are shown.
MAX_SHOWN = 30


def read_details(found: Context) -> Details:
    """Return the newest dead letters and long jobs. Raises Unavailable if Redis does not answer."""
    letters = DeadLetters(found.client.queue).newest(MAX_SHOWN)
    return Details([dead_letter.describe(letter) for letter in letters], _long_jobs(found))


def _long_jobs(found: Context) -> list[OwnJob]:
    """Return the newest long jobs. RQ, which takes some MB, is not loaded while there are none."""
    if found.long_jobs.is_empty():
        return []
    with suppress(MissingExtra):
        jobs = found.long_jobs.list(limit=MAX_SHOWN)
        return [OwnJob(job.client, about) for job, about in zip(jobs, long_job.describe(found, *jobs), strict=True)]
    return []
