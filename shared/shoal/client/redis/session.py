"""The session of a client in its event loop: its connections, calls that wait for replies, and streams."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.broker.async_broker import AsyncBroker, ConnectionMaker
from shoal.cache.lookup import CacheLookup
from shoal.client.splitting import jobs_to_repeat
from shoal.client.text_client import by_text, options_of
from shoal.contract import traceparent
from shoal.contract.jobs import Job, check_lane, new_id
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import Expired, Internal, InvalidText, Overloaded, TextTooLong, Timeout, TooLarge
from shoal.operations import Embed
from shoal.operations.embed import texts_at_a_time
from shoal.process import logs
from shoal.queue.dispatcher import Dispatcher, Pending
from shoal.queue.lane import num_query_bytes
from shoal.queue.producer import Producer

log = logging.getLogger("shoal.client")

#: Largest number of unanswered jobs of one request whose outputs are not vectors. Further jobs wait, so that the
#: replies use little memory.
MAX_TOKENS_PARTS = 4

#: Errors whose message may name a text by its number in the job. If a job that was sent without its cached texts gets
#: such an error, the whole job is sent, so that the number is right.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)


class Session:
    """A client's connections in its event loop. A task closes them when the client or the loop ends."""

    def __init__(
        self,
        connections: ConnectionMaker,
        keys: Keys,
        result_ttl_s: int,
        count_lookup: Callable[[int, int], object],
    ):
        self.loop = asyncio.get_running_loop()
        self._broker = AsyncBroker(connections)
        self.producer = Producer(self._broker, keys, result_ttl_s)
        self.lookup = CacheLookup(self._broker, keys, self.producer.pool, count=count_lookup)
        self.dispatcher = Dispatcher(self.producer)
        self._is_ending = asyncio.Event()
        self.dispatcher.receiver.add_done_callback(lambda _: self._is_ending.set())
        self._closer = asyncio.create_task(self._close_at_end())

    def is_over(self) -> bool:
        """Return True if the session or its loop is closed."""
        return self._closer.done() or self.loop.is_closed()

    async def call(self, job: Job, lane: str, client: str, timeout_s: float, max_reply_bytes: int) -> Reply:
        """Return the reply to a client's job; raise Timeout if none comes within `timeout_s`.

        Texts that are in the cache are not sent to a worker.
        """
        call = Call(self, lane, client, time.monotonic() + timeout_s, max_reply_bytes)
        try:
            cached = await self.lookup.find(job)
            if job.texts and not cached.missing:
                return cached.reply()
            if len(cached.missing) < len(job.texts):
                with suppress(*_ERRORS_OF_A_TEXT):
                    rest = await call.run(replace(job, texts=cached.missing, id=new_id()))
                    if rest.model == cached.model and rest.fingerprint in ("", cached.fingerprint):
                        return cached.reply(rest)
            return await call.run(job)
        except (TimeoutError, Expired) as error:
            raise await self.timeout(timeout_s) from error

    async def timeout(self, timeout_s: float) -> Timeout:
        """Return the error for a call that got no answer within `timeout_s`."""
        num_alive = len(await self.producer.pool.alive())
        cause = f"{num_alive} workers are alive but busy; try again or add some"
        return Timeout(f"no answer within {timeout_s:g} s: {cause if num_alive else 'no worker is alive; start one'}")

    async def close(self) -> None:
        """Close the session, even if this call is cancelled. A second call waits until the session is closed."""
        self._is_ending.set()
        await asyncio.shield(self._closer)

    async def _close_at_end(self) -> None:
        with suppress(asyncio.CancelledError):  # the loop cancels its tasks when it ends
            await self._is_ending.wait()
        try:
            await self.dispatcher.close()
        finally:
            await self._broker.close()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a client that ends at `until` on the monotonic clock. An answer has at most `max_reply_bytes`."""

    session: Session
    lane: str
    client: str
    until: float
    max_reply_bytes: int

    async def run(self, job: Job) -> Reply:
        """Run the job and return the workers' reply. A job with many texts is sent in parts. Raises TimeoutError."""
        parts = job.split(job.texts_per_job)
        if len(parts) > 1 and job.queries:
            num_query_bytes(job)  # raises TooLarge before the query is packed many times
        if job.options.output != "vector":
            return await self._run_in_turn(parts)
        return Reply.join(await (self._send(parts) if len(parts) == 1 else self._send_alike(parts)))

    async def _run_in_turn(self, parts: Sequence[Job]) -> Reply:
        """Send the parts of a job with large answers, a few at a time; return their joined reply."""
        replies: list[Reply] = []
        num_bytes = 0
        for n in range(0, len(parts), MAX_TOKENS_PARTS):
            like = next((reply for reply in replies if reply.fingerprint), None)
            group = parts[n : n + MAX_TOKENS_PARTS]
            for part, reply in zip(group, await self._send_alike(group, like), strict=True):
                replies.append(Reply.join([reply]))
                part.check_answers(reply)
                num_bytes += reply.num_bytes
            if num_bytes > self.max_reply_bytes:
                raise TooLarge(
                    f"the vectors of {len(replies)} of {len(parts)} parts have {num_bytes:,} bytes, and a reply "
                    f"may have {self.max_reply_bytes:,} (SHOAL_MAX_REPLY_MB): split the list"
                )
        return Reply.join(replies)

    async def _send_alike(self, parts: Sequence[Job], like: Reply | None = None) -> list[Reply]:
        """Send the jobs. Repeat a job if its reply has another fingerprint or index version than `like`.

        Without `like`, the replies are compared with one of them. No job is repeated after `until`.
        """
        replies = await self._send(parts)
        for pause_s, numbers, again in jobs_to_repeat(parts, replies, self.until, like):
            await asyncio.sleep(pause_s)
            for n, reply in zip(numbers, await self._send(again), strict=True):
                replies[n] = reply
        return replies

    async def _send(self, parts: Sequence[Job]) -> list[Reply]:
        """Put all jobs or none, and return their replies. If no reply comes in time, withdraw the unanswered jobs."""
        left_s = max(0.0, self.until - time.monotonic())
        pending = self.session.dispatcher.send(self.lane, parts, self.client, left_s)
        try:
            async with asyncio.timeout(left_s):
                replies = [await reply for reply in pending]
        except TimeoutError:
            for part in parts:
                log.debug("job given up", extra=about(part, self.client, error=Timeout.code))
            raise
        finally:
            self.session.dispatcher.forget(parts)
        if log.isEnabledFor(logging.DEBUG):
            for part, reply in zip(parts, replies, strict=True):
                code = reply.error.code if reply.error else None
                log.debug("job %s", reply.status, extra=about(part, self.client, error=code, **reply.timings))
        return replies


class EmbedStream:
    """The jobs of a stream of texts. A job that is refused by a full lane is sent again for up to `timeout_s`.

    All vectors come from the model with this `fingerprint`, or else from the model that made the first reply.
    """

    def __init__(
        self,
        session: Session,
        lane: str,
        client: str,
        timeout_s: float,
        options: Mapping[str, Any],
        fingerprint: str = "",
    ):
        self._session = session
        self._lane = check_lane(lane)
        self._client = client
        self._timeout_s = timeout_s
        self._options = options_of(options)
        self._pin, self._fingerprint = fingerprint, fingerprint
        #: The number of texts of a job.
        self.num_texts = texts_at_a_time(self._options)
        #: The jobs that are not answered yet.
        self.sent = deque[tuple[Job, Pending]]()

    async def send(self, texts: list[str]) -> None:
        """Send a job with these texts."""
        # Not pinned to `_fingerprint`, because replies from workers of earlier releases have no fingerprint.
        job = Embed(texts, self._options).pinned(self._pin)
        self.sent.append((job, self._put(job)))

    async def receive(self) -> Any:
        """Return the vectors of the earliest job whose reply was not received yet. Raises Overloaded and Timeout."""
        job, pending = self.sent[0]
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                reply = Reply.join([await pending.within(self._timeout_s)])
                self._fingerprint = self._fingerprint or reply.fingerprint
                if reply.fingerprint in ("", self._fingerprint):
                    break
                job = replace(job, id=new_id()).pinned(self._fingerprint)
            except TimeoutError as error:
                raise await self._session.timeout(self._timeout_s) from error
            except Overloaded as error:
                if time.monotonic() + error.retry_after_s > until:
                    raise
                await asyncio.sleep(error.retry_after_s)
            self.sent[0] = job, pending = job, self._put(job)
        self.sent.popleft()
        if self._options.output != "vector":
            job.check_answers(reply)
        return by_text(reply, self._options)

    def close(self) -> None:
        """Withdraw the unanswered jobs."""
        self._session.dispatcher.forget([job for job, _ in self.sent])

    def _put(self, job: Job) -> Pending:
        return self._session.dispatcher.send(self._lane, [job], self._client)[0]


def about(job: Job, client: str, **facts: Any) -> dict[str, Any]:
    """Return the fields of a log line about a job."""
    return logs.about(
        job.id, client, job.traceparent or traceparent.current(), op=job.op, texts=len(job.texts), **facts
    )
