"""A client without its I/O: the same for threads, which block, and for an event loop."""

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from shoal import logs, traceparent
from shoal.changes.change_log import AsyncChangeLog
from shoal.client.grouping import groups
from shoal.client.job_limits import check_key, check_lane, put_share
from shoal.client.one_version import of_one_version
from shoal.client.questions import Questions, options_of, vectors
from shoal.client.redis.client_io import ClientIO, P, Sender
from shoal.client.redis.index_writer import IndexWriter
from shoal.embed_job import TEXTS_PER_TOKENS_JOB
from shoal.errors import (
    Cancelled,
    Expired,
    Internal,
    InvalidText,
    Overloaded,
    ShoalError,
    TextTooLong,
    Timeout,
    TooLarge,
)
from shoal.jobs import TEXTS_PER_JOB, Job, check_deadline, new_id
from shoal.operations import Embed, Search
from shoal.replies import Reply
from shoal.settings import DEFAULTS

log = logging.getLogger("shoal.client")

#: Most jobs of one request for vectors of tokens or chunks that are unanswered at a time. The others wait, so replies
#: take little memory.
MAX_TOKENS_PARTS = 4

#: Seconds between two calls of `is_wanted` while a reply is waited for.
WANTED_EVERY_S = 1.0

#: Errors whose message may name a text by its number in the job. After one of them, a job that was sent without its
#: cached texts is sent whole, so that the number is right.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)


class Calls(Questions, ClientIO[P]):
    """The calls of clients that reach Redis, as coroutines: jobs are put, and their replies are waited for."""

    def put_share(self, job: Job) -> float:
        """Return the part of the largest put that the jobs of a call take; raise TooLarge for more than one takes."""
        return put_share(job)

    def writer(
        self,
        index: str,
        *,
        max_text_chars: int = DEFAULTS.max_text_chars,
        in_one_step: bool = False,
        client: str = "",
        timeout_s: float | None = None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> IndexWriter:
        """Return the writer of an index; each of its calls for vectors takes at most `timeout_s`, as `call` does."""
        call = partial(self._call, client=client, timeout_s=timeout_s, is_wanted=is_wanted)
        producer = self._producer()
        log = AsyncChangeLog(producer.commands, producer.keys)
        return IndexWriter(index, call, self._now, self._sleep, producer.pool, log, max_text_chars, in_one_step)

    async def _put(self, job: Job, lane: str, client: str, idempotency_key: str | None) -> str:
        """Put a job; return its id, or the id of the job that was put first with the key."""
        if isinstance(job, Search):
            job.check_hits()
        await self._check_num_vectors(job)
        if job.deadline is not None:
            check_deadline(job.deadline, await self._now())
        if idempotency_key is not None:
            name = check_key(idempotency_key)
            return await self._producer().put_once(
                check_lane(lane), job, name, owner=client, client=client or self.name
            )
        await self._producer().put(check_lane(lane), [job], client or self.name)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("job put", extra=_about(job, client or self.name))
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
        if job.texts and not cached.missing:
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
        parts = [replace(part, deadline=deadline) for part in job.split(job.texts_per_job)]
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
            replies = [await self._wait(reply, until, is_wanted) for reply in pending]
        except (ShoalError, TimeoutError) as error:
            for part in parts:
                log.debug("job given up", extra=_about(part, client, error=getattr(error, "code", Timeout.code)))
            raise
        finally:
            sender.forget(parts)
        if log.isEnabledFor(logging.DEBUG):
            for part, reply in zip(parts, replies, strict=True):
                code = reply.error.code if reply.error else None
                log.debug("job %s", reply.status, extra=_about(part, client, error=code, **reply.timings))
        return replies

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
        parsed, sender, sent = options_of(options), self._sender(), deque[tuple[Job, P]]()
        num_texts = TEXTS_PER_JOB if parsed.is_cacheable else TEXTS_PER_TOKENS_JOB
        try:
            async with aclosing(groups(texts, num_texts)) as source:
                while True:
                    while len(sent) < window and (group := await anext(source, None)):
                        job = Embed(group, parsed)
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
        if isinstance(job, Embed) and job.options.output != "vector":
            job.check_num_vectors(await self._producer().pool.first_heartbeats(), self.max_reply_bytes)

    async def _timeout(self, timeout_s: float) -> Timeout:
        num_alive = len(await self._producer().pool.alive())
        cause = f"{num_alive} workers are alive but busy; try again or add some"
        return Timeout(f"no answer within {timeout_s:g} s: {cause if num_alive else 'no worker is alive; start one'}")


def _about(job: Job, client: str, **facts: Any) -> dict[str, Any]:
    return logs.about(
        job.id, client, job.traceparent or traceparent.current(), op=job.op, texts=len(job.texts), **facts
    )
