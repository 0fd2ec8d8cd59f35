"""The long jobs of an index, as clients that reach Redis submit them to runners."""

from os import PathLike
from typing import Any

from shoal.client.index_handle import BuildOptions
from shoal.client.source_file import File, Items, ServerFile, place_of
from shoal.errors import InvalidRequest, NotReady
from shoal.long_jobs.long_jobs import LongJobs


def submit_build(jobs: LongJobs, name: str, source: File | Items, options: BuildOptions) -> str:
    """Submit a build from a file that the runner has; return the id of the job."""
    if not isinstance(source, str | PathLike | ServerFile):
        raise InvalidRequest("source has documents: write them into a file below the runner's roots, and name that")
    arguments: dict[str, Any] = {"name": name, "source": place_of(source), **options}
    once = {key: arguments.pop(key, None) for key in ("webhook", "idempotency_key")}
    return jobs.submit("build_index", arguments, **once)


def submit_change(jobs: LongJobs, name: str, action: str, version: str | None) -> str:
    """Submit a change of the versions, of which the job returns those after it; return its id.

    Raises NotReady if no runner is alive.
    """
    if not jobs.has_runner():
        raise NotReady("no runner of long jobs is alive: start one with `shoal serve` or `shoal jobs`")
    return jobs.submit("manage_index", {"name": name, "action": action, "version": version})
