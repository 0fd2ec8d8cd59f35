"""Long jobs and indexes over Redis: the sources that runners read, and the handle of an index."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any

from shoal.changes.change import MAX_CHANGES
from shoal.client.handles import CHANGE_TIMEOUT_S, IndexHandle, LongHandle
from shoal.client.job_source import File, Item, ServerFile, place_of
from shoal.errors import InvalidRequest, NotReady
from shoal.records.given_document import Given

if TYPE_CHECKING:
    from shoal.client.redis.client import Client


def source_of(source: File | Iterable[Item]) -> str:
    """Return the path of a source that a runner reads. Raises InvalidRequest for texts."""
    if not isinstance(source, str | PathLike | ServerFile):
        raise InvalidRequest("source has texts: write them into a file below the runner's roots, and name that")
    return place_of(source)


@dataclass(frozen=True, slots=True)
class RedisIndexHandle(IndexHandle):
    """An index by its name, over Redis."""

    client: "Client"

    def add(self, documents: Iterable[Given]) -> int:
        found = list(islice(documents, MAX_CHANGES + 1))  # read in this thread; one more than allowed, to be refused
        return self.client.run(lambda client: client.index(self.name).add(found))

    def delete(self, ids: Iterable[str]) -> int:
        found = list(islice(ids, MAX_CHANGES + 1))
        return self.client.run(lambda client: client.index(self.name).delete(found))

    def _build(self, source: File | Iterable[Item], options: dict[str, Any]) -> str:
        once = {key: options.pop(key, None) for key in ("webhook", "idempotency_key")}
        arguments = {"name": self.name, "source": source_of(source), **options}
        return self.client.long_jobs.submit("build_index", arguments, **once)

    def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        jobs = self.client.long_jobs
        if not jobs.has_runner():
            raise NotReady("no runner of long jobs is alive: start one with `shoal serve` or `shoal jobs`")
        job_id = jobs.submit("manage_index", {"name": self.name, "action": action, "version": version})
        versions: list[dict[str, Any]] = LongHandle(jobs, job_id).wait(CHANGE_TIMEOUT_S)["versions"]
        return versions
