"""The client for asyncio: an async web framework awaits vectors without threads."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from functools import partial
from os import PathLike
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from shoal.broker.async_connection import ConnectionMaker
from shoal.cache.lookup import LookupResult
from shoal.client.index_handle import AsyncIndexHandle
from shoal.client.long_handle import AsyncLongHandle
from shoal.client.questions import Vectors, job_of
from shoal.client.redis.async_session import AsyncSession
from shoal.client.redis.calls import Calls
from shoal.client.redis.handle import AsyncHandle
from shoal.client.redis.index import RedisIndex
from shoal.client.redis.long_jobs import RedisLongJobs
from shoal.client.source_file import File, Items
from shoal.jobs import Job
from shoal.long_jobs.long_jobs import LongJobs
from shoal.queue.async_dispatcher import AsyncDispatcher, AsyncPendingReply
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply
from shoal.settings import DEFAULTS, Settings


class AsyncClient(Calls[AsyncPendingReply]):
    """A program's end of the queue, for the tasks of one event loop; connects on first use.

    It does what `shoal.Client` does, with the same options and errors. Jobs of many tasks go to Redis together, and one
    task receives their replies. To cancel a task, or to let `asyncio.timeout` do it, withdraws the jobs that it awaits.
    A client belongs to the event loop that uses it first, until it is closed or the loop ends; another one gets
    RuntimeError.
    """

    def __init__(
        self,
        redis_url: str = DEFAULTS.redis_url,
        *,
        key_prefix: str = DEFAULTS.key_prefix,
        pool: str = DEFAULTS.pool,
        home: str = DEFAULTS.home,
        timeout_s: float = DEFAULTS.request_timeout_s,
        result_ttl_s: int = DEFAULTS.result_ttl_s,
        name: str = "",
        max_reply_mb: int = DEFAULTS.max_reply_mb,
    ):
        super().__init__(name, timeout_s, max_reply_mb)
        settings = Settings(redis_url=redis_url, key_prefix=key_prefix, pool=pool, home=home)
        long_jobs = LongJobs(settings)
        self._jobs = RedisLongJobs(long_jobs, lambda: self._session().work)
        self._new_session = partial(
            AsyncSession, ConnectionMaker(settings.redis_address), settings.keys, result_ttl_s, long_jobs
        )
        self._open: AsyncSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def queue(self) -> AsyncProducer:
        """Return the queue's producing end in this event loop."""
        return self._session().producer

    def connect(self) -> AsyncDispatcher:
        """Start the client's task unless it runs, and return the dispatcher that it serves."""
        return self._session().dispatcher

    @property
    def clock_offset_s(self) -> float:
        """Return how far the clock of this machine is ahead of Redis's; 0.0 before it was measured."""
        return 0.0 if self._open is None else self._open.clock.offset_s

    @property
    def num_cached(self) -> tuple[int, int]:
        """Return how many texts the client has found in the cache, and has not found there, since it was opened."""
        return (0, 0) if self._open is None else (self._open.lookup.num_hits, self._open.lookup.num_misses)

    async def close(self) -> None:
        """End the client's tasks and close its connections; tasks that still wait get Unavailable.

        Jobs that they wait for, or that were given up before, are withdrawn first. To cancel this does not stop it, and
        to call it again waits for its end.
        """
        if self._open is not None and not self._open.is_over():
            await self._session().close()

    @overload
    async def embed(self, texts: str | Iterable[str], *, output: Literal["chunks"], **options: Any) -> list[Any]: ...

    @overload
    async def embed(self, texts: str | Iterable[str], **options: Any) -> Vectors: ...

    async def embed(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of the texts, as `Client.embed` does."""
        return await self._embed(texts, options)

    async def search(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return the `k` best documents of each query, as `Client.search` does."""
        return await self._search(queries, k, index, options)

    async def find(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> Reply:
        """Return the reply to a search, as `Client.find` does."""
        return await self._ask(queries, k, index, options)

    async def rerank(
        self, query: str, texts: Iterable[str], *, raw_scores: bool = False, **options: Any
    ) -> NDArray[np.float32]:
        """Return the score of each text for the query, as `Client.rerank` does."""
        return await self._rerank(query, texts, raw_scores, options)

    def embed_stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> AsyncGenerator[NDArray[np.float32], None]:
        """Yield the vectors of any number of texts in order, with at most `window` jobs unanswered at a time.

        Up to `window` jobs of texts are read before the first vector comes. While the lane is full, a job is sent again
        until it has been refused for `timeout_s`. `aclose` withdraws what is not answered.
        """
        return self._stream(texts, window, lane, options)

    async def submit(
        self,
        op: str,
        texts: str | Iterable[str],
        *,
        lane: str = "interactive",
        k: int = 5,
        index: str = "default",
        query: str | None = None,
        raw_scores: bool = False,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        client: str = "",
        **options: Any,
    ) -> AsyncHandle:
        """Put a job without waiting for its answer, as `Client.submit` does."""
        job = job_of(op, texts, options, k=k, index=index, query=query, raw_scores=raw_scores, timeout_s=timeout_s)
        return AsyncHandle(self, await self.put(job, lane, client, idempotency_key))

    async def put(
        self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None
    ) -> str:
        """Put a job as `Client.put` does; return its id, or the id of the job that was put first with the key."""
        return await self._put(job, lane, client, idempotency_key)

    def job(self, job_id: str) -> AsyncHandle:
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
        return AsyncHandle(self, job_id)

    async def bulk(self, source: File | Items, out: str | PathLike[str], **options: Any) -> AsyncLongHandle:
        """Submit the embedding of a file, a URL or texts into the folder `out`, as `Client.bulk` does.

        Texts may also come from an async iterable. To cancel the task while they are written deletes their file.
        """
        return AsyncLongHandle(self._jobs, await self._jobs.embed_file(source, out, **options))

    def index(self, name: str) -> AsyncIndexHandle:
        """Return the handle of an index, by which its documents and its versions are changed."""
        return AsyncIndexHandle(RedisIndex(name, self._jobs, self))

    def long_job(self, job_id: str) -> AsyncLongHandle:
        """Return the handle of a long job that was submitted earlier, perhaps by another program."""
        return AsyncLongHandle(self._jobs, job_id)

    async def call(
        self, job: Job, *, lane: str = "interactive", timeout_s: float | None = None, client: str = ""
    ) -> Reply:
        """Return the reply to the job, as `Client.call` does.

        Tasks that call at the same time need jobs with different ids: a reply is told from others by the id.
        """
        return await self._call(job, lane, timeout_s, client)

    async def _call(self, *arguments: Any, **named: Any) -> Reply:
        calls, call = self._session().calls, asyncio.get_running_loop().create_future()
        calls.add(call)
        try:
            return await super()._call(*arguments, **named)
        finally:
            calls.discard(call)
            call.set_result(None)

    # The I/O of an event loop

    def _session(self) -> AsyncSession:
        """Return what is open in this event loop, opening it first if the client is closed.

        Raises RuntimeError in any event loop but the one that uses the client.
        """
        loop = asyncio.get_running_loop()
        if self._open is None or self._open.is_over():
            self._open = self._new_session()
        elif self._open.loop is not loop:
            raise RuntimeError(
                "this AsyncClient is in use in another event loop: make one for each loop, or close it there first"
            )
        return self._open

    def _sender(self) -> AsyncDispatcher:
        return self.connect()

    async def _result(self, pending: AsyncPendingReply, timeout_s: float) -> Reply:
        return await pending.result(timeout_s)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _now(self) -> float:
        clock = self._session().clock
        await clock.refresh()
        return clock.now()

    async def _find(self, job: Job) -> LookupResult:
        return await self._session().lookup.find(job)

    def _producer(self) -> AsyncProducer:
        return self.queue
