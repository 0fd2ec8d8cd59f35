"""The client for asyncio, for programs that await vectors in an event loop."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from shoal.broker.async_broker import ConnectionMaker
from shoal.client.redis.index_writer import IndexWriter
from shoal.client.redis.session import EmbedStream, Session, about, log
from shoal.client.splitting import MAX_WINDOW, async_batches
from shoal.client.text_client import (
    OtherOutput,
    Vectors,
    as_list,
    by_text,
    check_key,
    hits_of,
    job_of,
    options_of,
    search_of,
    vectors,
)
from shoal.contract.checks import check_range
from shoal.contract.jobs import Job, check_deadline, check_lane
from shoal.contract.replies import Reply
from shoal.errors import Timeout
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed, Rerank, Search
from shoal.queue.dispatcher import Dispatcher
from shoal.queue.producer import Producer
from shoal.records.given_document import Given
from shoal.settings import DEFAULTS, Settings


class AsyncClient:
    """A client of the queue for the tasks of one event loop. It connects on first use.

    The methods, options and errors are the same as in `shoal.Client`, but the methods for long jobs and for versions of
    indexes are missing. Jobs of several tasks go to Redis together, and one task receives their replies. Cancelling a
    task, as `asyncio.timeout` does, withdraws the jobs that it awaits. A client belongs to the first event loop that
    uses it, until the client is closed or the loop ends; a use in another loop raises RuntimeError. With a
    `fingerprint`, vectors and hits come only from the model with that fingerprint; otherwise ModelMismatch is raised.
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
        long_jobs_redis_url: str = DEFAULTS.long_jobs_redis_url,
        fingerprint: str = "",
    ):
        #: The client's name in the queue.
        self.name = name or secrets.token_hex(8)
        #: Longest wait for a reply, in seconds.
        self.timeout_s = timeout_s
        self.max_reply_bytes = max_reply_mb * 2**20
        self.fingerprint = fingerprint
        #: The settings that name Redis and the pool.
        self.settings = Settings(
            redis_url=redis_url, key_prefix=key_prefix, pool=pool, home=home, long_jobs_redis_url=long_jobs_redis_url
        )
        #: The long jobs of the pool. The methods block.
        self.long_jobs = LongJobs(self.settings)
        connections = ConnectionMaker(self.settings.redis_address)
        #: Called for each look-up in the cache, with the numbers of texts that were found and not found.
        self.count_lookup: Callable[[int, int], object] = lambda *_: None
        self._new_session = partial(Session, connections, self.settings.keys, result_ttl_s)
        self._open: Session | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a client of the pool in the settings, with the limits and the `request_timeout_s` of the settings."""
        return cls(**options_from(settings))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def queue(self) -> Producer:
        """The producer that puts this event loop's jobs into the queue."""
        return self._session().producer

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher that sends this event loop's jobs, and receives their replies."""
        return self._session().dispatcher

    async def close(self) -> None:
        """Withdraw unanswered jobs and close all connections, even if this call is cancelled."""
        self.long_jobs.close()
        if self._open is not None and not self._open.is_over():
            await self._session().close()

    @overload
    async def embed(self, texts: str | Iterable[str], *, output: OtherOutput, **options: Any) -> Any: ...

    @overload
    async def embed(self, texts: str | Iterable[str], **options: Any) -> Vectors: ...

    async def embed(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of the texts, as `Client.embed` does."""
        job = Embed(as_list(texts), options_of(options))
        reply = await self.call(job)
        return by_text(reply, job.options)[0] if isinstance(texts, str) else vectors(reply, job.options)

    async def search(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> list[Any]:
        """Return the `k` best documents of each query, as `Client.search` does."""
        return hits_of(queries, await self.find(queries, k, index, **options), options)

    async def find(
        self, queries: str | Iterable[str] = (), k: int = 5, index: str = "default", **options: Any
    ) -> Reply:
        """Return the reply to a search, as `Client.find` does."""
        return await self.call(search_of(queries, options, k, index))

    async def rerank(
        self, query: str, texts: Iterable[str], *, raw_scores: bool = False, **options: Any
    ) -> NDArray[np.float32]:
        """Return the score of each text for the query, as `Client.rerank` does."""
        job = Rerank(as_list(texts), options_of(options), query=query, raw_scores=raw_scores)
        scores = (await self.call(job)).scores
        assert scores is not None
        return scores

    async def embed_stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> AsyncGenerator[NDArray[np.float32], None]:
        """Yield the vectors of any number of texts, as `Client.embed_stream` does; `aclose` withdraws open jobs."""
        check_range("window", window, 1, MAX_WINDOW)
        stream = self.open_stream(lane, options)
        try:
            async with aclosing(async_batches(texts, stream.num_texts)) as source:
                while True:
                    while len(stream.sent) < window and (batch := await anext(source, None)):
                        await stream.send(batch)
                    if not stream.sent:
                        return
                    for rows in await stream.receive():
                        yield rows
        finally:
            stream.close()

    def open_stream(self, lane: str, options: Mapping[str, Any]) -> EmbedStream:
        """Return a new stream of jobs, without texts."""
        return EmbedStream(self._session(), lane, self.name, self.timeout_s, options, self.fingerprint)

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
        **options: Any,
    ) -> "AsyncHandle":
        """Put a job without waiting for its answer, as `Client.submit` does."""
        job = job_of(op, texts, options, k=k, index=index, query=query, raw_scores=raw_scores, timeout_s=timeout_s)
        return AsyncHandle(self, await self.put(job, lane, idempotency_key))

    async def put(
        self, job: Job, lane: str = "interactive", idempotency_key: str | None = None, client: str = ""
    ) -> str:
        """Put a job of `client`, by default this client; return its id, as `Client.put` does."""
        session, owner, job = self._session(), client or self.name, job.pinned(self.fingerprint)
        if isinstance(job, Search):
            job.check_hits()
        if job.deadline is not None:
            check_deadline(job.deadline, await session.producer.now())
        if idempotency_key is not None:
            key = check_key(idempotency_key)
            return await session.producer.put_once(lane, job, key, owner=client, client=owner)
        await session.producer.put(lane, [job], owner)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("job put", extra=about(job, owner))
        return job.id

    def job(self, job_id: str) -> "AsyncHandle":
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
        return AsyncHandle(self, job_id)

    def index(self, name: str) -> "AsyncIndexHandle":
        """Return the handle of an index, for changes of its documents."""
        return AsyncIndexHandle(self, name)

    async def call(
        self, job: Job, *, lane: str = "interactive", timeout_s: float | None = None, client: str = ""
    ) -> Reply:
        """Wait for the reply to the job and return it, as `Client.call` does."""
        check_lane(lane)  # checked here, because a job whose texts are all cached never reaches the queue
        job, timeout_s = job.pinned(self.fingerprint), self.timeout_s if timeout_s is None else timeout_s
        return await self._session().call(job, lane, client or self.name, timeout_s, self.max_reply_bytes)

    def writer(
        self,
        index: str,
        *,
        max_text_chars: int = DEFAULTS.max_text_chars,
        in_one_step: bool = False,
        client: str = "",
        timeout_s: float | None = None,
    ) -> IndexWriter:
        """Return the writer of an index. Each call for vectors may take `timeout_s`, by default the client's limit."""
        session = self._session()
        call = partial(
            session.call,
            lane="interactive",
            client=client or self.name,
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            max_reply_bytes=self.max_reply_bytes,
        )
        return IndexWriter(index, call, session.producer, max_text_chars, in_one_step)

    def _session(self) -> Session:
        """Return this event loop's session, opening one if needed; raise RuntimeError if another loop has one."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open.is_over():
            self._open = self._new_session(self.count_lookup)
        elif self._open.loop is not loop:
            raise RuntimeError(
                "this AsyncClient is in use in another event loop: make one for each loop, or close it there first"
            )
        return self._open


@dataclass(frozen=True, slots=True)
class AsyncHandle:
    """A submitted job, for the event loop of its client."""

    client: AsyncClient
    id: str

    async def result(self, timeout_s: float | None = None) -> Reply:
        """Wait for the job's reply, as `Handle.result` does. Cancelling the waiting task does not cancel the job."""
        timeout_s = self.client.timeout_s if timeout_s is None else timeout_s
        reply = await self.client.dispatcher.wait_result(self.id, timeout_s)
        if reply is None:
            raise Timeout(f"job {self.id} has no answer after {timeout_s:g} s: it keeps its place, ask again")
        if reply.scores is None:  # scores come from the reranker, which has another fingerprint
            reply = reply.of_pinned(self.client.fingerprint)
        return Reply.join([reply])

    async def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return (await self.client.queue.status(self.id))[0]

    async def cancel(self) -> str:
        """Cancel the job if it is not answered yet; return its status."""
        return await self.client.queue.cancel(self.id)


@dataclass(frozen=True, slots=True)
class AsyncIndexHandle:
    """An index by its name, for the event loop of its client. `IndexHandle` documents the methods."""

    client: AsyncClient
    name: str

    async def add(self, documents: Iterable[Given]) -> int:
        """Add documents to the index and return their number. A document replaces the one with the same id."""
        return (await self.client.writer(self.name).add(documents)).num

    async def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids."""
        return (await self.client.writer(self.name).delete(ids)).num


def options_from(settings: Settings) -> dict[str, Any]:
    """Return the options of a client for the pool that the settings name."""
    return {
        "redis_url": settings.redis_address,
        "key_prefix": settings.key_prefix,
        "pool": settings.pool,
        "timeout_s": settings.request_timeout_s,
        "result_ttl_s": settings.result_ttl_s,
        "max_reply_mb": settings.max_reply_mb,
        "long_jobs_redis_url": settings.long_jobs_redis_url,
    }
