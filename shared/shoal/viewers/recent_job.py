"""Recent jobs: what the heartbeats of workers tell of the jobs that they answered last, which is no text."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from shoal.contract.replies import STATUSES, TIMINGS

_Heartbeat = Mapping[str, Any]

#: The fields of a recent job and their types. The id, the operation and the numbers of a job may be unknown.
_TYPES: dict[str, Any] = {
    "id": str | None,
    "op": str | None,
    "lane": str,
    "client": str,
    "num_texts": int | None,
    "num_tokens": int | None,
    "num_cached": int | None,
    "status": str,
    "error": str | None,
    "ended_at": int | float,
    "total_s": int | float,
}


#: Most jobs that are taken from one heartbeat, and most characters of a word there: workers write fewer.
_MAX_JOBS, _MAX_CHARS = 64, 256


def recent_jobs(abouts: Mapping[str, _Heartbeat]) -> list[dict[str, Any]]:
    """Return the jobs that the workers with these heartbeats answered last, newest first, each with its `worker`."""
    jobs = [job for worker_id, about in abouts.items() for job in _jobs_of(worker_id, about)]
    return sorted(jobs, key=lambda job: -job["ended_at"])


def _jobs_of(worker_id: str, about: _Heartbeat) -> Iterator[dict[str, Any]]:
    """Yield the jobs of one heartbeat, without those that are not of the documented shape."""
    found = about.get("recent")
    for job in found[:_MAX_JOBS] if isinstance(found, list) else ():
        if isinstance(job, dict) and _is_sound(job):
            given = job.get("timings")
            timings = given if isinstance(given, dict) else {}
            times = {name: timings[name] for name in TIMINGS if isinstance(timings.get(name), int | float)}
            yield {name: _cut(job[name]) for name in _TYPES} | {"worker": worker_id, "timings": times}


def _cut(value: Any) -> Any:
    return value[:_MAX_CHARS] if isinstance(value, str) else value


def _is_sound(job: _Heartbeat) -> bool:
    has_types = all(isinstance(job.get(name), type_) for name, type_ in _TYPES.items())
    return has_types and job["status"] in STATUSES and isfinite(job["ended_at"])
