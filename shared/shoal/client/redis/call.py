"""A call of a client: a job is put, as several if it is long, and its replies are waited for."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.client.job_limits import put_share
from shoal.client.one_version import of_other_versions
from shoal.client.redis.session import Session
from shoal.contract import traceparent
from shoal.contract.jobs import Job, new_id
from shoal.contract.replies import Reply
from shoal.errors import Internal, InvalidText, ShoalError, TextTooLong, Timeout, TooLarge
from shoal.process import logs

log = logging.getLogger("shoal.client")

#: Most jobs of one request for vectors of tokens or chunks that are unanswered at a time. The others wait, so replies
#: take little memory.
MAX_TOKENS_PARTS = 4

#: Errors whose message may name a text by its number in the job. After one of them, a job that was sent without its
#: cached texts is sent whole, so that the number is right.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)


@dataclass(frozen=True, slots=True)
class Call:
    """A call for a client, in a lane, until `until` on the monotonic clock.

    Vectors of tokens and chunks may have `max_reply_bytes` altogether.
    """

    session: Session
    lane: str
    client: str
    until: float
    max_reply_bytes: int

    async def reply_to(self, job: Job) -> Reply:
        """Return the reply to the job; texts that the cache has are not sent to a worker.

        Raises the reply's error, TooLarge for more bytes than one put takes, before any are packed, and TimeoutError.
        """
        cached = await self.session.lookup.find(job)
        if job.texts and not cached.missing:
            return cached.reply()
        if len(cached.missing) < len(job.texts):
            with suppress(*_ERRORS_OF_A_TEXT):
                rest = await self._run(replace(job, texts=cached.missing, id=new_id()))
                if rest.model == cached.model:
                    return cached.reply(rest)
        return await self._run(job)

    async def _run(self, job: Job) -> Reply:
        """Return the workers' reply to the job; if that is long, it is sent in parts."""
        parts = job.split(job.texts_per_job)
        if job.options.output != "vector":
            return await self._run_in_turn(parts)
        put_share(job)  # raises TooLarge
        replies = await self._send(parts)
        for pause_s, numbers in of_other_versions(replies, self.until):
            await asyncio.sleep(pause_s)
            again = await self._send([replace(parts[n], id=new_id()) for n in numbers])
            for n, reply in zip(numbers, again, strict=True):
                replies[n] = reply
        return Reply.join(replies)

    async def _run_in_turn(self, parts: Sequence[Job]) -> Reply:
        """Return the reply to parts with several vectors for each text, which are sent a few at a time."""
        replies: list[Reply] = []
        for n in range(0, len(parts), MAX_TOKENS_PARTS):
            replies += [Reply.join([reply]) for reply in await self._send(parts[n : n + MAX_TOKENS_PARTS])]
            num_bytes = sum(reply.vectors.nbytes for reply in replies if reply.vectors is not None)
            if num_bytes > self.max_reply_bytes:
                raise TooLarge(
                    f"the vectors of {len(replies)} of {len(parts)} parts have {num_bytes:,} bytes, and a reply "
                    f"may have {self.max_reply_bytes:,} (SHOAL_MAX_REPLY_MB): split the list"
                )
        return Reply.join(replies)

    def _left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    async def _send(self, parts: Sequence[Job]) -> list[Reply]:
        """Put the jobs, all or none, and return their replies; what is not answered at an error is withdrawn."""
        dispatcher = self.session.dispatcher
        pending = dispatcher.call(self.lane, parts, self.client, self._left_s())
        try:
            replies = [await reply.result(self._left_s()) for reply in pending]
        except (ShoalError, TimeoutError) as error:
            for part in parts:
                log.debug("job given up", extra=about(part, self.client, error=getattr(error, "code", Timeout.code)))
            raise
        finally:
            dispatcher.forget(parts)
        if log.isEnabledFor(logging.DEBUG):
            for part, reply in zip(parts, replies, strict=True):
                code = reply.error.code if reply.error else None
                log.debug("job %s", reply.status, extra=about(part, self.client, error=code, **reply.timings))
        return replies


def about(job: Job, client: str, **facts: Any) -> dict[str, Any]:
    """Return the fields of a line of the log about a job."""
    return logs.about(
        job.id, client, job.traceparent or traceparent.current(), op=job.op, texts=len(job.texts), **facts
    )
