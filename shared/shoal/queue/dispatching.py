"""A dispatcher without its I/O: which job waits for which reply, for the threads of a process or for an event loop."""

import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from shoal import logs
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.jobs import Job
from shoal.queue.packed_jobs import PackedJobs
from shoal.replies import Reply

#: Time for which Redis may be away before the callers that wait for a reply are told.
GRACE_S = 0.8

#: Time after which a caller looks for a result by itself: a note is lost with a Redis that fails, and a program that
#: cancels a job by an old copy of the script sends none.
LOOK_AGAIN_S = 2.0

#: Time that the receiver waits before it tries Redis again.
RETRY_S = 0.1

_log = logging.getLogger("shoal.queue.dispatcher")


class Pending(Protocol):
    """A reply on its way, settled once. `put_id` is the id of its job, once the job is in its lane."""

    put_id: str | None

    def settle(self, outcome: Reply | ShoalError) -> None:
        """Wake all callers that wait, with the reply or with the error to raise."""


class Note(Protocol):
    """A note on its way that a job is answered, for one caller."""

    def settle(self, error: ShoalError | None) -> None:
        """Wake the caller, or have it raise the error."""


P = TypeVar("P", bound=Pending)
N = TypeVar("N", bound=Note)


class Dispatching(ABC, Generic[P, N]):
    """The jobs that wait for replies at one address, and what is done when they come. A subclass adds the I/O."""

    def _begin(self) -> None:
        self.address = secrets.token_hex(8)
        self._pending: dict[str, P] = {}
        self._watched: dict[str, list[N]] = {}
        self._watching = threading.Lock()

    # The I/O

    @abstractmethod
    def _new_pending(self) -> P: ...

    @abstractmethod
    def _new_note(self) -> N: ...

    @abstractmethod
    def _is_closed(self) -> bool: ...

    @abstractmethod
    async def _put_many(self, puts: Sequence[PackedJobs]) -> list[list[str | None] | ShoalError]: ...

    @abstractmethod
    async def _take_back(self, job_ids: Sequence[str]) -> None: ...

    @abstractmethod
    async def _read_result(self, job_id: str) -> Reply | None: ...

    @abstractmethod
    async def _watch_result(self, job_id: str) -> bool: ...

    @abstractmethod
    async def _wait_for_note(self, note: N, timeout_s: float) -> None: ...

    @abstractmethod
    async def _wait_for_replies(self) -> tuple[Sequence[Reply], Sequence[str]]:
        """Return replies that have come, and the ids of the watched jobs that are answered."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    def _doubt_clock(self) -> None: ...

    # Jobs and their replies

    def _expect(self, lane: str, jobs: Sequence[Job], client: str) -> tuple[list[P], PackedJobs | None]:
        """Return the jobs' replies to come, and the jobs packed; those that cannot be packed are settled."""
        pending = [self._new_pending() for _ in jobs]
        self._pending.update(zip((job.id for job in jobs), pending, strict=True))
        try:
            return pending, PackedJobs.pack(lane, jobs, self.address, client)
        except ShoalError as error:
            self._settle(jobs, error)
            return pending, None

    def _drop(self, jobs: Sequence[Job]) -> list[str]:
        """Drop interest in the jobs' replies; return the ids of those that are not answered yet."""
        dropped = [self._pending.pop(job.id, None) for job in jobs]
        return [pending.put_id for pending in dropped if pending is not None and pending.put_id is not None]

    async def _put(self, puts: Sequence[PackedJobs]) -> None:
        """Put the jobs that are still wanted, and note that they are; settle those that are refused."""
        puts = [put for put in puts if any(job.id in self._pending for job in put.jobs)]
        if not puts:
            return
        try:
            outcomes = await self._put_many(puts)
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
            await self._take_back(job_ids)

    # Results of submitted jobs

    async def _result_of(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job; None if it takes over `timeout_s`."""
        until = time.monotonic() + timeout_s
        reply = await self._read_result(job_id)
        if reply is not None or timeout_s <= 0:
            return reply
        with self._awaited(job_id) as note:
            is_open = await self._watch_result(job_id)
            while reply is None and (left_s := until - time.monotonic()) > 0:
                if is_open:
                    await self._wait_for_note(note, min(left_s, LOOK_AGAIN_S))
                reply, is_open = await self._read_result(job_id), True
        return reply

    @contextmanager
    def _awaited(self, job_id: str) -> Iterator[N]:
        note = self._new_note()
        with self._watching:
            self._watched.setdefault(job_id, []).append(note)
        try:
            if self._is_closed():
                raise closed()
            yield note
        finally:
            with self._watching:
                notes = self._watched.get(job_id, [])
                if note in notes:
                    notes.remove(note)
                if not notes:
                    self._watched.pop(job_id, None)

    # The receiver

    async def _receive(self) -> None:
        answered_at, is_away = time.monotonic(), False
        known: set[str] | None = None
        while not self._is_closed():
            try:
                replies, answered = await self._wait_for_replies()
            except ShoalError as error:
                self._doubt_clock()
                if time.monotonic() - answered_at > GRACE_S:
                    _log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                    is_away = True
                    self._settle_all(error, known)
                await self._pause(RETRY_S)
                if is_away:
                    known = {*self._pending, *self._watched}  # when this fails, Redis may answer those that come later
                continue
            if is_away:
                _log.info("Redis answers again")
            answered_at, is_away, known = time.monotonic(), False, None
            for reply in replies:
                if pending := self._pending.pop(reply.id, None):
                    pending.settle(reply)
            for job_id in answered:
                self._note(job_id)

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run the loop until the dispatcher is closed, and again after an unforeseen error."""
        while not self._is_closed():
            try:
                await loop()
            except Exception as error:
                self._report(error)
                await self._pause(RETRY_S)

    def _report(self, error: Exception) -> None:
        """Log an unforeseen error without its message, which could hold a text, and tell all callers that wait."""
        _log.error("the dispatcher goes on after an error: %s", logs.places(error))
        self._settle_all(Internal("the client failed in an unforeseen way; its log has the traceback"))

    def _note(self, job_id: str, error: ShoalError | None = None) -> None:
        """Wake the callers that wait for the result of the job, or have them raise the error."""
        with self._watching:
            for note in self._watched.pop(job_id, []):
                note.settle(error)

    def _settle(self, jobs: Sequence[Job], error: ShoalError) -> None:
        for job in jobs:
            if pending := self._pending.pop(job.id, None):
                pending.settle(error)

    def _settle_all(self, error: ShoalError, known: Collection[str] | None = None) -> list[str]:
        """Have all callers that wait raise the error; return the ids of the jobs that are not answered.

        With `known`, only callers that wait for these jobs.
        """
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
