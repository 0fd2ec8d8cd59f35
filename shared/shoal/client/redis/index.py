"""The index of a client that reaches Redis: its documents are changed there, and runners build and change it."""

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from shoal.client.index_handle import CHANGE_TIMEOUT_S, BuildOptions
from shoal.client.redis.calls import Calls
from shoal.client.redis.long_jobs import RedisLongJobs
from shoal.client.source_file import File, Items, ServerFile, place_of
from shoal.errors import InvalidRequest
from shoal.records.given_document import Given


@dataclass(frozen=True, slots=True)
class RedisIndex:
    """The calls for an index by its name."""

    name: str
    jobs: RedisLongJobs
    calls: Calls[Any]

    async def add(self, documents: Iterable[Given]) -> int:
        """Add documents; return their number."""
        return (await self.calls.writer(self.name).add(documents)).num

    async def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids."""
        return (await self.calls.writer(self.name).delete(ids)).num

    async def build(self, source: File | Items, options: BuildOptions) -> str:
        """Submit a build from a file that the runner has; return the id of the job."""
        if not isinstance(source, str | PathLike | ServerFile):
            raise InvalidRequest("source has documents: write them into a file below the runner's roots, and name that")
        arguments: dict[str, Any] = {"name": self.name, "source": place_of(source), **options}
        once = {name: arguments.pop(name, None) for name in ("webhook", "idempotency_key")}
        return await self.jobs.submit("build_index", arguments, **once)

    async def manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        """Let a runner do the action; return the versions after it."""
        await self.jobs.check_runner()
        arguments = {"name": self.name, "action": action, "version": version}
        job_id = await self.jobs.submit("manage_index", arguments)
        versions: list[dict[str, Any]] = (await self.jobs.wait(job_id, CHANGE_TIMEOUT_S))["versions"]
        return versions
