"""The dispatcher puts the jobs of many tasks in one round trip. One of its own tasks receives all replies.

If every request had its own round trip and connection, two cores would answer a third as many requests.
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

#: Seconds for which Redis may be away before callers that wait for a reply get an error.
GRACE_S = 0.8

#: Seconds after which a caller looks for a result without a note, because notes are lost if Redis fails.
LOOK_AGAIN_S = 2.0

#: Seconds that the receiver waits before it tries Redis again.
RETRY_S = 0.1

#: Size limit of a put that is made together with other callers' puts, in bytes. Redis accepts the puts of one round
#: trip when the last one has arrived, so a larger put would delay the others.
MAX_TOGETHER_BYTES = 65_536

T = TypeVar("T")

_log = logging.getLogger("shoal.queue.dispatcher")


class Pending(Generic[T]):
    """A result for which any number of tasks can wait. `put_id` is the id of its job once the job is in its lane.

    If the job names a `fingerprint`, the reply must come from the model with this fingerprint.
    """

    __slots__ = ("_is_settled", "_outcome", "_waiting", "fingerprint", "put_id")

    def __init__(self, fingerprint: str | None = None) -> None:
        self.fingerprint = fingerprint
        self.put_id: str | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._is_settled = False
        self._outcome: T | ShoalError

    def settle(self, outcome: T | ShoalError) -> None:
        """Wake all tasks that wait. They return the result or raise the error."""
        self._outcome, self._is_settled = outcome, True
        for waiter in self._waiting:
            if not waiter.done():  # a cancelled task's waiter is done
                waiter.set_result(None)

    def done(self) -> bool:
        """Return True if the result or an error is here."""
        return self._is_settled

    def error(self) -> ShoalError | None:
        """Return the error, or None if the job has no outcome yet, or a result."""
        return self._outcome if self._is_settled and isinstance(self._outcome, ShoalError) else None

    async def result(self, timeout_s: float) -> T:
        """Wait for the result and return it. Raises the error that came in its place, or TimeoutError."""
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
    """The jobs whose replies go to one address, and the task `receiver`, which receives the replies.

    The dispatcher's own tasks put and withdraw jobs, because the task that asks may be cancelled at any moment.
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

    @property
    def num_waiting(self) -> int:
        """The number of jobs whose replies are awaited."""
        return len(self._pending)

    def call(
        self, lane: str, jobs: Sequence[Job], client: str = "", timeout_s: float | None = None
    ) -> list[Pending[Reply]]:
        """Send the client's jobs, all or none; return the pending reply to each, in order. Does not wait.

        If the put fails, its error settles all of them.
        """
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
        """Ignore the replies to the jobs from now on, and withdraw jobs that are not answered yet."""
        dropped = [self._pending.pop(job.id, None) for job in jobs]
        job_ids = [pending.put_id for pending in dropped if pending is not None and pending.put_id is not None]
        if job_ids:  # `_put` withdraws a job that is being put now
            self._start(self._withdraw(job_ids))

    async def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job, or None after `timeout_s`. Raises UnknownJob and Unavailable."""
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
        """Withdraw unanswered jobs, then end all tasks. Tasks that wait for a reply get Unavailable."""
        self._is_closed = True
        self._start(self._withdraw(self._settle_all(closed())))
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.receiver.cancel()
        await asyncio.wait([self.receiver])

    def _start(self, steps: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(steps)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._report(error)

    # The sender

    async def _send(self) -> None:
        try:
            while self._outgoing:
                now, self._outgoing = few_of_each_client(self._outgoing)
                await self._put(now)
        finally:
            self._is_sending = False

    async def _put(self, puts: Sequence[PackedJobs]) -> None:
        """Make the puts that a caller still wants, record the ids of their jobs, and settle refused jobs."""
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
                elif put_id is not None:  # forgotten meanwhile, or already answered; then `withdraw` does nothing
                    abandoned.append(put_id)
        if abandoned:
            await self._withdraw(abandoned)

    async def _withdraw(self, job_ids: Sequence[str]) -> None:
        with suppress(ShoalError):  # if this fails, workers compute these jobs in vain, or drop them at their deadlines
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
                    known = {*self._pending, *self._watched}  # if the next read fails, only these get the error
                continue
            if is_away:
                _log.info("Redis answers again")
            answered_at, is_away, known = time.monotonic(), False, None
            for reply in replies:
                if pending := self._pending.pop(reply.id, None):
                    pending.settle(reply.of_pinned(pending.fingerprint) if pending.fingerprint else reply)
            for job_id in self._inbox.answered:
                self._note(job_id, None)

    def _report(self, error: Exception) -> None:
        """Log an unforeseen error without its message, which could contain a text. Callers that wait get an error."""
        _log.error("the dispatcher goes on after an error: %s", logs.places(error))
        self._settle_all(Internal("the client failed in an unforeseen way; its log has the traceback"))

    # Callers that wait

    def _note(self, job_id: str, outcome: ShoalError | None) -> None:
        """Wake callers that wait for the job's result. They look for it, or raise `outcome` if it is an error."""
        for note in self._watched.pop(job_id, []):
            note.settle(outcome)

    def _settle(self, jobs: Sequence[Job], error: ShoalError) -> None:
        for job in jobs:
            if pending := self._pending.pop(job.id, None):
                pending.settle(error)

    def _settle_all(self, error: ShoalError, known: Collection[str] | None = None) -> list[str]:
        """Make all callers raise the error, or only callers that wait for `known` jobs.

        Returns the ids of these jobs in their lanes.
        """
        put_ids = []
        for job_id in list(self._pending) if known is None else known:
            if pending := self._pending.pop(job_id, None):
                if pending.put_id is not None:  # otherwise `_put` withdraws the job
                    put_ids.append(pending.put_id)
                pending.settle(error)
        for job_id in list(self._watched) if known is None else known:
            self._note(job_id, error)
        return put_ids


def closed() -> Unavailable:
    """Return the error for callers that wait when the client is closed."""
    return Unavailable("the client was closed while this waited: make a new one")
