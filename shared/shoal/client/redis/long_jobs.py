"""Long jobs and indexes over Redis: submissions to runners, and handles for an event loop and for threads."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from shoal.changes.change import MAX_CHANGES
from shoal.client.handles import CHANGE_TIMEOUT_S, BuildOptions, IndexHandle, LongWait, OnStatus
from shoal.client.job_source import File, Item, ServerFile, place_of
from shoal.client.questions import options_of
from shoal.contract.checks import check_known
from shoal.errors import InvalidRequest, NotReady, Unavailable
from shoal.long_jobs.status import Progress
from shoal.records.given_document import Given

if TYPE_CHECKING:
    from shoal.client.redis.async_client import AsyncClient
    from shoal.client.redis.client import Client


#: Largest number of threads for an event loop's blocking work. Few are enough, because each call takes milliseconds.
MAX_THREADS = 4

#: Seconds between two attempts to interrupt running work by closing its connections.
_DISCONNECT_EVERY_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")


class WorkThreads:
    """The threads for blocking work of one event loop, such as calls of RQ. After `close` they raise Unavailable."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = asyncio.Event()

    async def do(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a blocking function in a thread and return its result."""
        self._check()
        self._threads = self._threads or ThreadPoolExecutor(MAX_THREADS, "shoal-client")

        def work() -> T:
            self._check()
            return function(*args, **named)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds, or raise Unavailable as soon as the threads are closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_closed.wait()
        self._check()

    async def close(self, disconnect: Callable[[], object]) -> None:
        """Refuse new work, and return once the threads have ended. A call of `disconnect` makes running work fail."""
        self._is_closed.set()
        disconnect()
        if self._threads is not None:
            ending = asyncio.ensure_future(asyncio.to_thread(self._threads.shutdown))
            while not ending.done():
                await asyncio.wait([ending], timeout=_DISCONNECT_EVERY_S)
                disconnect()  # again, because running work may have reconnected

    def _check(self) -> None:
        if self._is_closed.is_set():
            raise Unavailable("the client was closed while this call waited: call it again")


def bulk_arguments(
    source: File,
    out: str | PathLike[str],
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    format: str = "safetensors",
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of a job that embeds a file into the folder `out`. Raises InvalidRequest."""
    options_of(options)
    columns = {"text_column": text_column, "id_column": id_column}
    return {"source": _place(source), "out": place_of(out), "format": format, "options": options, **columns}


def _place(source: File | Iterable[Item]) -> str:
    if not isinstance(source, str | PathLike | ServerFile):
        raise InvalidRequest("source has texts: write them into a file below the runner's roots, and name that")
    return place_of(source)


@dataclass(frozen=True, slots=True)
class AsyncLongHandle:
    """A `LongHandle` for an event loop. It calls RQ in the client's threads, because RQ's methods block."""

    client: "AsyncClient"
    id: str

    async def status(self) -> str:
        """Return one of queued, running, paused, done, failed and cancelled."""
        return (await self.client.threads.do(self.client.long_jobs.status, self.id)).status

    async def progress(self) -> Progress:
        """Return the progress of the job, as `LongHandle.progress` does."""
        return (await self.client.threads.do(self.client.long_jobs.status, self.id)).progress

    async def wait(self, timeout_s: float | None = None, on_status: OnStatus | None = None) -> dict[str, Any]:
        """Wait until the job is done and return its result. Cancelling the waiting task does not cancel the job."""
        wait, threads = LongWait(self.id, timeout_s, on_status), self.client.threads
        while True:
            try:
                status = await threads.do(self.client.long_jobs.status, self.id)
            except Unavailable as error:
                wait.missed(error)
            else:
                if wait.saw(status):
                    return dict(status.result or {})
            await threads.sleep(wait.pause_s())

    async def pause(self) -> str:
        """Pause the job; return its status."""
        return await self.client.threads.do(self.client.long_jobs.pause, self.id)

    async def resume(self) -> str:
        """Let a paused job continue; return its status."""
        return await self.client.threads.do(self.client.long_jobs.resume, self.id)

    async def cancel(self) -> str:
        """End the job for good; return its status."""
        return await self.client.threads.do(self.client.long_jobs.cancel, self.id)

    async def delete(self) -> None:
        """Delete the job from the list of long jobs; raise JobNotEnded if it has not ended."""
        await self.client.threads.do(self.client.long_jobs.delete, self.id)


@dataclass(frozen=True, slots=True)
class AsyncIndexHandle:
    """An index by its name, for an event loop. `IndexHandle` documents the methods."""

    client: "AsyncClient"
    name: str

    async def add(self, documents: Iterable[Given]) -> int:
        """Add documents to the index, each in place of the document with its id; return their number."""
        return (await self.client.writer(self.name).add(documents)).num

    async def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids."""
        return (await self.client.writer(self.name).delete(ids)).num

    async def build(self, source: File | Iterable[Item], **options: Unpack[BuildOptions]) -> AsyncLongHandle:
        """Submit a build of a new version from a file of documents."""
        check_known("option", options, BuildOptions.__annotations__)
        arguments: dict[str, Any] = {"name": self.name, "source": _place(source), **options}
        once = {key: arguments.pop(key, None) for key in ("webhook", "idempotency_key")}
        job_id = await self.client.threads.do(self.client.long_jobs.submit, "build_index", arguments, **once)
        return AsyncLongHandle(self.client, job_id)

    async def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return await self._manage("list")

    async def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then use; return the versions."""
        return await self._manage("publish", version)

    async def rollback(self) -> list[dict[str, Any]]:
        """Make the previously published version the current one again; return the versions."""
        return await self._manage("rollback")

    async def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version other than the current one; return the remaining versions."""
        return await self._manage("delete", version)

    async def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        threads, jobs = self.client.threads, self.client.long_jobs
        if not await threads.do(jobs.has_runner):
            raise NotReady("no runner of long jobs is alive: start one with `shoal serve` or `shoal jobs`")
        arguments = {"name": self.name, "action": action, "version": version}
        job_id = await threads.do(jobs.submit, "manage_index", arguments)
        result = await AsyncLongHandle(self.client, job_id).wait(CHANGE_TIMEOUT_S)
        versions: list[dict[str, Any]] = result["versions"]
        return versions


@dataclass(frozen=True, slots=True)
class RedisIndexHandle(IndexHandle):
    """An index by its name, for threads. Each method calls an `AsyncIndexHandle` in the client's event loop."""

    client: "Client"

    def add(self, documents: Iterable[Given]) -> int:
        found = list(islice(documents, MAX_CHANGES + 1))  # read in this thread; one more than allowed, to be refused
        return self.client.run(lambda client: client.index(self.name).add(found))

    def delete(self, ids: Iterable[str]) -> int:
        found = list(islice(ids, MAX_CHANGES + 1))
        return self.client.run(lambda client: client.index(self.name).delete(found))

    def _build(self, source: File | Iterable[Item], options: BuildOptions) -> str:
        return self.client.run(lambda client: client.index(self.name).build(source, **options)).id

    def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        return self.client.run(lambda client: client.index(self.name)._manage(action, version))
