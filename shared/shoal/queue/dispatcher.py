"""The dispatcher: jobs of many tasks go to Redis in one round trip, and one task receives all replies.

With a round trip and a connection of its own for every request, the same two cores answer a third as many.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.process import logs
from shoal.queue.lane import PackedJobs, few_of_each_client
from shoal.queue.producer import Producer

#: Time for which Redis may be away before the callers that wait for a reply are told.
GRACE_S = 0.8

#: Time after which a caller looks for a result by itself: a note is lost with a Redis that fails.
LOOK_AGAIN_S = 2.0

#: Time that the receiver waits before it tries Redis again.
RETRY_S = 0.1

#: Most bytes of jobs that are put with other callers' jobs. Jobs of one put are accepted when the last of them has
#: arrived, so larger ones would delay the others.
MAX_TOGETHER_BYTES = 65_536

T = TypeVar("T")

_log = logging.getLogger("shoal.queue.dispatcher")


class Pending(Generic[T]):
    """A result on its way, for any number of tasks; `put_id` is the id of its job once that is in its lane.

    A reply must be of the `fingerprint`, if the job names one.
    """

    __slots__ = ("_is_settled", "_outcome", "_waiting", "fingerprint", "put_id")

    def __init__(self, fingerprint: str | None = None) -> None:
        self.fingerprint = fingerprint
        self.put_id: str | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._is_settled = False
        self._outcome: T | ShoalError

    def settle(self, outcome: T | ShoalError) -> None:
        """Wake all tasks that wait, with the result or with the error to raise."""
        self._outcome, self._is_settled = outcome, True
        for waiter in self._waiting:
            if not waiter.done():  # by its cancellation
                waiter.set_result(None)

    def done(self) -> bool:
        """Return True once it is settled."""
        return self._is_settled

    def error(self) -> ShoalError | None:
        """Return the error that it was settled with, if it was."""
        return self._outcome if self._is_settled and isinstance(self._outcome, ShoalError) else None

    async def result(self, timeout_s: float) -> T:
        """Return the result. Raises the error that it was settled with, or TimeoutError."""
        if not self._is_settled:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._waiting.append(waiter)
            timer = loop.call_later(timeout_s, _time_out, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiting.remove(waiter)
        if isinstance(self._outcome, ShoalError):
            raise self._outcome
        return self._outcome


def _time_out(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class Dispatcher:
    """The jobs that wait for replies at one address, and the task `receiver`, which receives them from now on.

    Jobs are put and withdrawn by tasks of the dispatcher's own: the task that asked may be cancelled at any moment.
    """

    def __init__(self, producer: Producer):
        self.address = secrets.token_hex(8)
        self._producer = producer
        self._inbox = producer.inbox(self.address)
        self._pending: dict[str, Pending[Reply]] = {}
        self._watched: dict[str, list[Pending[None]]] = {}
        self._outgoing: list[PackedJobs] = []
        self._is_sending = self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.receiver = asyncio.create_task(self._keep_receiving())

    def call(
        self, lane: str, jobs: Sequence[Job], client: str = "", timeout_s: float | None = None
    ) -> list[Pending[Reply]]:
        """Send the client's jobs, all or none; return their replies to come, in order, or the error of the put."""
        pending = [Pending[Reply](job.fingerprint) for job in jobs]
        self._pending.update(zip((job.id for job in jobs), pending, strict=True))
        try:
            put = PackedJobs.pack(lane, jobs, self.address, client, timeout_s=timeout_s)
        except ShoalError as error:
            self._settle(jobs, error)
            return pending
        if self._is_closed:
            self._settle_all(closed())
        elif put.num_bytes > MAX_TOGETHER_BYTES:
            self._start(self._put([put]))
        else:
            self._outgoing.append(put)
            if not self._is_sending:
                self._is_sending = True
                self._start(self._send())
        return pending

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop interest in the jobs' replies; jobs that are not answered yet are withdrawn."""
        dropped = [self._pending.pop(job.id, None) for job in jobs]
        job_ids = [pending.put_id for pending in dropped if pending is not None and pending.put_id is not None]
        if job_ids:  # a put that is under way withdraws the others
            self._start(self._withdraw(job_ids))

    async def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job; None if it takes over `timeout_s`. Raises UnknownJob and Unavailable."""
        until = time.monotonic() + timeout_s
        reply = await self._producer.read_result(job_id)
        while reply is None and (left_s := until - time.monotonic()) > 0:
            if self._is_closed:
                raise closed()
            note = Pending[None]()
            self._watched.setdefault(job_id, []).append(note)
            try:
                if await self._producer.watch_result(job_id, self.address):
                    with suppress(TimeoutError):
                        await note.result(min(left_s, LOOK_AGAIN_S))
            finally:
                notes = [other for other in self._watched.pop(job_id, []) if other is not note]
                if notes:
                    self._watched[job_id] = notes
            reply = await self._producer.read_result(job_id)
        return reply

    async def close(self) -> None:
        """End the tasks, once unanswered jobs are withdrawn; a task that waits gets Unavailable."""
        self._is_closed = True
        self._start(self._withdraw(self._settle_all(closed())))
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.receiver.cancel()
        await asyncio.wait([self.receiver])

    def _start(self, steps: Coroutine[Any, Any, None]) -> None:
        async def once() -> None:
            try:
                await steps
            except Exception as error:
                self._report(error)

        task = asyncio.create_task(once())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The sender

    async def _send(self) -> None:
        try:
            while self._outgoing:
                now, self._outgoing = few_of_each_client(self._outgoing)
                await self._put(now)
        finally:
            self._is_sending = False

    async def _put(self, puts: Sequence[PackedJobs]) -> None:
        """Put the jobs that are still wanted, and note that they are; settle those that are refused."""
        puts = [put for put in puts if any(job.id in self._pending for job in put.jobs)]
        if not puts:
            return
        try:
            outcomes = await self._producer.put_many(puts)
        except ShoalError as error:
            outcomes = [error] * len(puts)
        abandoned = []
        for put, outcome in zip(puts, outcomes, strict=True):
            if isinstance(outcome, ShoalError):
                self._settle(put.jobs, outcome)
                continue
            for job, put_id in zip(put.jobs, outcome, strict=True):
                if pending := self._pending.get(job.id):
                    pending.put_id = put_id
                elif put_id is not None:  # forgotten meanwhile, or answered already: then it is no longer there
                    abandoned.append(put_id)
        await self._withdraw(abandoned)

    async def _withdraw(self, job_ids: Sequence[str]) -> None:
        with suppress(ShoalError):  # then they are computed without need, or expire
            await self._producer.withdraw(job_ids)

    # The receiver

    async def _keep_receiving(self) -> None:
        """Receive until the dispatcher is closed, and again after an unforeseen error."""
        while not self._is_closed:
            try:
                await self._receive()
            except Exception as error:
                self._report(error)
                await asyncio.sleep(RETRY_S)

    async def _receive(self) -> None:
        answered_at, is_away = time.monotonic(), False
        known: set[str] | None = None
        while not self._is_closed:
            try:
                replies = await self._inbox.wait()
            except ShoalError as error:
                if time.monotonic() - answered_at > GRACE_S:
                    _log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                    is_away = True
                    self._settle_all(error, known)
                await asyncio.sleep(RETRY_S)
                if is_away:
                    known = {*self._pending, *self._watched}  # when this fails, Redis may answer those that come later
                continue
            if is_away:
                _log.info("Redis answers again")
            answered_at, is_away, known = time.monotonic(), False, None
            for reply in replies:
                if pending := self._pending.pop(reply.id, None):
                    pending.settle(reply.of_pinned(pending.fingerprint))
            for job_id in self._inbox.answered:
                self._note(job_id, None)

    def _report(self, error: Exception) -> None:
        """Log an unforeseen error without its message, which could hold a text, and tell all callers that wait."""
        _log.error("the dispatcher goes on after an error: %s", logs.places(error))
        self._settle_all(Internal("the client failed in an unforeseen way; its log has the traceback"))

    # Callers that wait

    def _note(self, job_id: str, outcome: ShoalError | None) -> None:
        """Wake the callers that wait for the result of the job, or have them raise the error."""
        for note in self._watched.pop(job_id, []):
            note.settle(outcome)

    def _settle(self, jobs: Sequence[Job], error: ShoalError) -> None:
        for job in jobs:
            if pending := self._pending.pop(job.id, None):
                pending.settle(error)

    def _settle_all(self, error: ShoalError, known: Collection[str] | None = None) -> list[str]:
        """Have callers that wait, all or those of the `known` jobs, raise the error; return ids of unanswered jobs."""
        put_ids = []
        for job_id in list(self._pending) if known is None else known:
            if pending := self._pending.pop(job_id, None):
                if pending.put_id is not None:  # else the put withdraws the job
                    put_ids.append(pending.put_id)
                pending.settle(error)
        for job_id in list(self._watched) if known is None else known:
            self._note(job_id, error)
        return put_ids


def closed() -> Unavailable:
    """Return the error of callers that wait while the client is closed."""
    return Unavailable("the client was closed while this waited: make a new one")
