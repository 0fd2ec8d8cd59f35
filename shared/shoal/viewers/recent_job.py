"""Recent jobs: what the heartbeats of workers tell of the jobs that they answered last, which is no text."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from shoal.contract.replies import STATUSES, TIMINGS
from shoal.viewers.worker_meter import typed

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

#: Most jobs that are taken from one heartbeat: workers write fewer.
_MAX_JOBS = 64


def recent_jobs(abouts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that the workers with these heartbeats answered last, newest first, each with its `worker`.

    Those that are not of the documented shape are left out.
    """
    jobs = []
    for worker_id, about in abouts.items():
        for job in (typed(about, "recent", list) or ())[:_MAX_JOBS]:
            if isinstance(job, dict) and _is_sound(job):
                timings = typed(job, "timings", dict) or {}
                times = {name: timings[name] for name in TIMINGS if isinstance(timings.get(name), int | float)}
                known = {name: typed(job, name, type_) for name, type_ in _TYPES.items()}
                jobs.append(known | {"worker": worker_id, "timings": times})
    return sorted(jobs, key=lambda job: -job["ended_at"])


def _is_sound(job: Mapping[str, Any]) -> bool:
    has_types = all(isinstance(job.get(name), type_) for name, type_ in _TYPES.items())
    return has_types and job["status"] in STATUSES and isfinite(job["ended_at"])
