"""The handle of an index, for the event loop that uses its client."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Unpack

from shoal.client.index_handle import CHANGE_TIMEOUT_S, BuildOptions, checked
from shoal.client.long_handle import AsyncLongHandle
from shoal.client.redis.index_jobs import submit_build, submit_change
from shoal.client.redis.index_writer import IndexWriter
from shoal.client.source_file import File, Items
from shoal.client.work_threads import WorkThreads
from shoal.long_jobs.long_jobs import LongJobs
from shoal.records.given_document import Given


@dataclass(frozen=True, slots=True)
class AsyncIndexHandle:
    """An index by its name, for the event loop that uses its client. `IndexHandle` says what its methods do.

    `threads` returns the threads of the client that ask RQ, which knows no event loop.
    """

    name: str
    writer: Callable[[str], IndexWriter]
    jobs: LongJobs
    threads: Callable[[], WorkThreads]

    async def add(self, documents: Iterable[Given]) -> int:
        """Add documents to the index, each in place of the one that has its id; return their number."""
        return (await self.writer(self.name).add(documents)).num

    async def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents that have these ids; return the number of ids, some of which may have no document."""
        return (await self.writer(self.name).delete(ids)).num

    async def build(self, source: File | Items, **options: Unpack[BuildOptions]) -> AsyncLongHandle:
        """Submit a build of a new version from a file of documents."""
        job_id = await self.threads().do(submit_build, self.jobs, self.name, source, checked(options))
        return AsyncLongHandle(self.jobs, self.threads, job_id)

    async def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return await self._manage("list")

    async def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then read; return the versions."""
        return await self._manage("publish", version)

    async def rollback(self) -> list[dict[str, Any]]:
        """Make the version that was published before the current one current again; return the versions."""
        return await self._manage("rollback")

    async def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version that is not the current one; return the versions that are left."""
        return await self._manage("delete", version)

    async def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        job_id = await self.threads().do(submit_change, self.jobs, self.name, action, version)
        result = await AsyncLongHandle(self.jobs, self.threads, job_id).wait(CHANGE_TIMEOUT_S)
        versions: list[dict[str, Any]] = result["versions"]
        return versions
