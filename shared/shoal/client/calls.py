"""A client without its I/O: the same for threads, which block, and for an event loop."""

import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.cache.lookup import LookupResult
from shoal.client.parts import (
    TEXTS_PER_JOB,
    TEXTS_PER_TOKENS_JOB,
    as_list,
    check_key,
    check_lane,
    groups,
    of_one_version,
    put_share,
    texts_per_job,
    vectors,
)
from shoal.errors import Cancelled, Expired, Internal, InvalidText, Overloaded, TextTooLong, Timeout, TooLarge
from shoal.jobs import Job, Options, check_deadline, new_id
from shoal.queue.lane import LaneLimits
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply
from shoal.settings import Settings
from shoal.size_limit import MAX_JOB_HITS, check_chunk_vectors, check_hits, check_token_vectors

#: Parts of a request for vectors of tokens or chunks that are under way at a time: the others wait, so replies take
#: little memory.
MAX_TOKENS_PARTS = 4

#: Seconds between two calls of `is_wanted` while a reply is waited for.
WANTED_EVERY_S = 1.0

#: Errors that may name a text by its number in the job. A job of which the cache has some texts is then sent whole.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)

#: A reply on its way.
P = TypeVar("P")


class Sender(Protocol[P]):
    """The sending end of a dispatcher."""

    def call(self, lane: str, jobs: Sequence[Job], client: str = "") -> list[P]:
        """Send the client's jobs, all or none, and return their replies to come, in order."""

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop interest in the jobs' replies; jobs that are not answered yet are withdrawn."""


class Calls(ABC, Generic[P]):
    """A client without its I/O, which a subclass adds: that of threads does it before its coroutines return.

    `name` is the name under which the queue knows the client, and `timeout_s` how long it waits for a reply.
    """

    def __init__(self, name: str, timeout_s: float, max_reply_mb: int):
        self.name = name or secrets.token_hex(8)
        self.timeout_s = timeout_s
        self.max_reply_bytes = max_reply_mb * 2**20

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a client of the pool that the settings name, with their limits and their `request_timeout_s`."""
        values: dict[str, Any] = {
            "redis_url": settings.redis_url,
            "key_prefix": settings.key_prefix,
            "pool": settings.pool,
            "timeout_s": settings.request_timeout_s,
            "limits": LaneLimits.from_settings(settings),
            "result_ttl_s": settings.result_ttl_s,
            "max_reply_mb": settings.max_reply_mb,
        }
        return cls(**values)

    # The I/O

    @abstractmethod
    def _sender(self) -> Sender[P]:
        """Return the end of the dispatcher that sends."""

    @abstractmethod
    async def _result(self, pending: P, timeout_s: float) -> Reply:
        """Return the reply; raise the error with which it was settled, or TimeoutError."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Return after so many seconds."""

    @abstractmethod
    async def _now(self) -> float:
        """Return Redis's time in Unix seconds."""

    @abstractmethod
    async def _find(self, job: Job) -> LookupResult:
        """Look up the texts of a job in the cache."""

    @abstractmethod
    def _producer(self) -> AsyncProducer:
        """Return the queue's producing end."""

    # What is done with it

    def put_share(self, job: Job) -> float:
        """Return the part of the largest put that the jobs of a call take; raise TooLarge for more than one takes."""
        return put_share(job)

    async def _embed(self, texts: str | Iterable[str], options: Mapping[str, Any]) -> Any:
        """Return the vectors of the texts, or of a single str."""
        job = Job("embed", as_list(texts), Options(**options))
        rows = vectors(await self._call(job), job.options)
        return rows[0] if isinstance(texts, str) else rows

    async def _search(self, queries: str | Iterable[str], k: int, index: str, options: Mapping[str, Any]) -> list[Any]:
        """Return the nearest documents of each query, or of a single str."""
        hits = (await self._call(Job("search", as_list(queries), Options(**options), k=k, index=index))).hits or []
        return hits[0] if isinstance(queries, str) else hits

    async def _rerank(
        self, query: str, texts: Iterable[str], raw_scores: bool, options: Mapping[str, Any]
    ) -> NDArray[np.float32]:
        """Return the score of each text for the query."""
        job = Job("rerank", as_list(texts), Options(**options), query=query, raw_scores=raw_scores)
        scores = (await self._call(job)).scores
        assert scores is not None
        return scores

    async def _put(self, job: Job, lane: str, client: str, idempotency_key: str | None) -> str:
        """Put a job; return its id, or the id of the job that was put first with the key."""
        check_hits(job, MAX_JOB_HITS, "job")
        await self._check_num_vectors(job)
        if job.deadline is not None:
            check_deadline(job.deadline, await self._now())
        if idempotency_key is not None:
            name = check_key(idempotency_key)
            return await self._producer().put_once(
                check_lane(lane), job, name, owner=client, client=client or self.name
            )
        await self._producer().put(check_lane(lane), [job], client or self.name)
        return job.id

    async def _call(
        self,
        job: Job,
        lane: str = "interactive",
        timeout_s: float | None = None,
        client: str = "",
        is_wanted: Callable[[], bool] | None = None,
    ) -> Reply:
        """Return the reply to the job, waiting for it; texts that the cache has are not sent to a worker."""
        check_lane(lane)
        await self._check_num_vectors(job)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        cached = await self._find(job)
        if not cached.missing:
            return cached.reply()
        run = partial(self._run, lane=lane, client=client or self.name, until=until, is_wanted=is_wanted)
        try:
            if len(cached.missing) < len(job.texts):
                with suppress(*_ERRORS_OF_A_TEXT):
                    rest = await run(replace(job, texts=cached.missing, id=new_id()))
                    if rest.model == cached.model:
                        return cached.reply(rest)
            return await run(job)
        except (TimeoutError, Expired) as error:
            raise await self._timeout(timeout_s) from error

    async def _run(self, job: Job, lane: str, client: str, until: float, is_wanted: Callable[[], bool] | None) -> Reply:
        """Return the workers' reply to the job; if that is long, it is sent in parts.

        Parts with several vectors for each text are sent a few at a time. Parts of a search are of one version of the
        index: those of others are sent again.

        Raises TooLarge for more bytes than one put takes, before any are packed, TimeoutError at `until` on the
        monotonic clock, and Cancelled once the reply is not wanted any more.
        """
        deadline = await self._now() + until - time.monotonic()
        parts = [replace(part, deadline=deadline) for part in job.split(texts_per_job(job))]
        send = partial(self._send, lane=lane, client=client, until=until, is_wanted=is_wanted)
        if job.options.output == "vector":
            put_share(job)  # raises TooLarge

            async def send_again(numbers: list[int]) -> list[Reply]:
                return await send([replace(parts[n], id=new_id()) for n in numbers])

            return Reply.join(await of_one_version(await send(parts), send_again, self._sleep, until))
        replies: list[Reply] = []
        for n in range(0, len(parts), MAX_TOKENS_PARTS):
            replies += [Reply.join([reply]) for reply in await send(parts[n : n + MAX_TOKENS_PARTS])]
            num_bytes = sum(reply.vectors.nbytes for reply in replies if reply.vectors is not None)
            if num_bytes > self.max_reply_bytes:
                raise TooLarge(
                    f"the vectors of {len(replies)} of {len(parts)} parts have {num_bytes:,} bytes, and a reply "
                    f"may have {self.max_reply_bytes:,} (SHOAL_MAX_REPLY_MB): split the list"
                )
        return Reply.join(replies)

    async def _send(
        self, parts: list[Job], lane: str, client: str, until: float, is_wanted: Callable[[], bool] | None
    ) -> list[Reply]:
        """Put the jobs, all or none, and return their replies; what is not answered at an error is withdrawn."""
        sender = self._sender()
        pending = sender.call(lane, parts, client)
        try:
            return [await self._wait(reply, until, is_wanted) for reply in pending]
        finally:
            sender.forget(parts)

    async def _wait(self, pending: P, until: float, is_wanted: Callable[[], bool] | None) -> Reply:
        while True:
            left_s = max(0.0, until - time.monotonic())
            try:
                return await self._result(pending, min(left_s, WANTED_EVERY_S) if is_wanted else left_s)
            except TimeoutError:
                if is_wanted is None or left_s <= WANTED_EVERY_S:
                    raise
                if not is_wanted():
                    raise Cancelled("the caller has disconnected") from None

    async def _stream(
        self, texts: Iterable[str] | AsyncIterable[str], window: int, lane: str, options: Mapping[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Yield the vectors of any number of texts in order, with at most `window` jobs unanswered at a time."""
        check_lane(lane)
        parsed, sender, sent = Options(**options), self._sender(), deque[tuple[Job, P]]()
        num_texts = TEXTS_PER_JOB if parsed.is_cacheable else TEXTS_PER_TOKENS_JOB
        try:
            async with aclosing(groups(texts, num_texts)) as source:
                while True:
                    while len(sent) < window and (group := await anext(source, None)):
                        job = Job("embed", group, parsed)
                        sent.append((job, sender.call(lane, [job], self.name)[0]))
                    if not sent:
                        return
                    for rows in vectors(await self._admitted(sender, lane, *sent[0]), parsed):
                        yield rows
                    sent.popleft()
        finally:
            sender.forget([job for job, _ in sent])

    async def _admitted(self, sender: Sender[P], lane: str, job: Job, pending: P) -> Reply:
        """Return the reply to the job, sending it again while the lane is full.

        Raises Overloaded once that took `timeout_s`, and Timeout if a job in the lane has no answer for so long.
        """
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return Reply.join([await self._result(pending, self.timeout_s)])
            except TimeoutError as error:
                raise await self._timeout(self.timeout_s) from error
            except Overloaded as error:
                if time.monotonic() + error.retry_after_s > until:
                    raise
                await self._sleep(error.retry_after_s)
            (pending,) = sender.call(lane, [job], self.name)

    async def _check_num_vectors(self, job: Job) -> None:
        """Raise TooLarge if the job asks for vectors of tokens or chunks that are certainly too large for a reply."""
        options = job.options
        if job.op != "embed" or options.output == "vector":
            return
        heartbeats = await self._producer().pool.first_heartbeats()
        sizes = [(about.get("dimension"), about.get("max_tokens")) for about in heartbeats.values()]
        if known := [(d, m) for d, m in sizes if isinstance(d, int) and isinstance(m, int)]:
            dimension, max_tokens = min(d for d, _ in known), min(m for _, m in known)
            if options.output == "chunks":
                tokens = min(max_tokens, options.chunk_tokens or max_tokens)
                check_chunk_vectors(job.texts, tokens, dimension, self.max_reply_bytes)
            else:
                check_token_vectors(job.texts, options.truncation_side, max_tokens, dimension, self.max_reply_bytes)

    async def _timeout(self, timeout_s: float) -> Timeout:
        num_alive = len(await self._producer().pool.alive())
        cause = f"{num_alive} workers are alive but busy; try again or add some"
        return Timeout(f"no answer within {timeout_s:g} s: {cause if num_alive else 'no worker is alive; start one'}")
