"""The client for asyncio: an async web framework awaits vectors without threads."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.broker.clock import AsyncClock
from shoal.cache.lookup import AsyncCacheLookup, LookupResult
from shoal.client.calls import Calls
from shoal.client.handle import AsyncHandle
from shoal.client.parts import Vectors, as_list
from shoal.jobs import Job, Options
from shoal.keys import Keys
from shoal.queue.async_dispatcher import AsyncDispatcher, AsyncPendingReply
from shoal.queue.lane import LaneLimits
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply
from shoal.settings import DEFAULTS


class _Session:
    """All that a client has open in its event loop, until it is closed or the loop ends.

    A task of its own closes it: the task that asks may be cancelled at any moment, and at its end a loop cancels all.
    """

    def __init__(self, connections: ConnectionMaker, keys: Keys, limits: LaneLimits | None, result_ttl_s: int):
        self.loop = asyncio.get_running_loop()
        self._broker = AsyncBroker(connections)
        self.producer = AsyncProducer(self._broker, keys, limits, result_ttl_s)
        self.clock = AsyncClock(self._broker)
        self.lookup = AsyncCacheLookup(self._broker, keys, self.producer.pool)
        self.dispatcher = AsyncDispatcher(self.producer, self.clock)
        self.calls: set[asyncio.Future[None]] = set()
        self._is_ending = asyncio.Event()
        self.dispatcher.receiver.add_done_callback(lambda _: self._is_ending.set())
        self._closer = asyncio.create_task(self._close_at_end())

    def is_over(self) -> bool:
        """Return True once all is closed, or the loop is."""
        return self._closer.done() or self.loop.is_closed()

    async def close(self) -> None:
        """Close all; to cancel this does not end that, and another call waits for it."""
        self._is_ending.set()
        await asyncio.shield(self._closer)

    async def _close_at_end(self) -> None:
        with suppress(asyncio.CancelledError):  # by the loop, which ends
            await self._is_ending.wait()
        try:
            await self.dispatcher.close()
        finally:
            await self._broker.close()
        while self.calls:  # they fail now; one that went on after the client is closed would open it again
            await asyncio.wait(self.calls)


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
        timeout_s: float = DEFAULTS.request_timeout_s,
        limits: LaneLimits | None = None,
        result_ttl_s: int = DEFAULTS.result_ttl_s,
        name: str = "",
        max_reply_mb: int = DEFAULTS.max_reply_mb,
    ):
        super().__init__(name, timeout_s, max_reply_mb)
        self._new_session = partial(_Session, ConnectionMaker(redis_url), Keys(key_prefix, pool), limits, result_ttl_s)
        self._open: _Session | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def queue(self) -> AsyncProducer:
        """Return the queue's producing end in this event loop."""
        return self._session().producer

    def connect(self) -> AsyncDispatcher:
        """Start the client's task unless it runs, and return the dispatcher that it serves."""
        return self._session().dispatcher

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
        self, queries: str | Iterable[str], k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return the `k` nearest documents of each query, as `Client.search` does."""
        return await self._search(queries, k, index, options)

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
        idempotency_key: str | None = None,
        client: str = "",
        **options: Any,
    ) -> AsyncHandle:
        """Put a job without waiting for its answer, as `Client.submit` does."""
        parsed = Options(**options)
        job = Job(op, as_list(texts), parsed, k=k, index=index, query=query, raw_scores=raw_scores)
        return AsyncHandle(self, await self.put(job, lane, client, idempotency_key))

    async def put(
        self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None
    ) -> str:
        """Put a job as `Client.put` does; return its id, or the id of the job that was put first with the key."""
        return await self._put(job, lane, client, idempotency_key)

    def job(self, job_id: str) -> AsyncHandle:
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
        return AsyncHandle(self, job_id)

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

    def _session(self) -> _Session:
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
