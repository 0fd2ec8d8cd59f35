"""The dispatcher of an event loop: its tasks wait for replies, which one task receives."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from shoal.broker.clock import AsyncClock
from shoal.errors import ShoalError
from shoal.jobs import Job
from shoal.queue.dispatching import Dispatching, closed
from shoal.queue.packed_jobs import PackedJobs
from shoal.queue.producer import AsyncProducer
from shoal.replies import Reply


class AsyncPendingReply:
    """A reply on its way. Any number of tasks may wait for it; it is settled once."""

    __slots__ = ("_settled", "put_id")

    def __init__(self) -> None:
        self.put_id: str | None = None
        self._settled: asyncio.Future[Reply | ShoalError] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: Reply | ShoalError) -> None:
        """Wake all tasks that wait, with the reply or with the error to raise."""
        self._settled.set_result(outcome)

    async def result(self, timeout_s: float) -> Reply:
        """Return the reply.

        Raises the error that it was settled with, or TimeoutError.
        """
        done, _ = await asyncio.wait([self._settled], timeout=timeout_s)  # which cancels no future
        if not done:
            raise TimeoutError
        outcome = self._settled.result()
        if isinstance(outcome, ShoalError):
            raise outcome
        return outcome


class AsyncPendingNote:
    """A note on its way that a job is answered, for one task."""

    def __init__(self) -> None:
        self._settled = asyncio.Event()
        self._error: ShoalError | None = None

    def settle(self, error: ShoalError | None) -> None:
        """Wake the task that waits, or have it raise the error."""
        self._error = error
        self._settled.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the note, which comes once, or until the time is over. Raises the error that it was settled with."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            return
        self._settled.clear()
        if self._error:
            raise self._error


class AsyncDispatcher(Dispatching[AsyncPendingReply, AsyncPendingNote]):
    """The receiver of an event loop, which starts at once. The broker sends the jobs of many tasks together.

    Jobs are put and withdrawn by tasks of the dispatcher's own: the task that asked may be cancelled at any moment.
    `receiver` is the task that receives replies; it ends when the dispatcher is closed, and when the loop ends.
    """

    def __init__(self, producer: AsyncProducer, clock: AsyncClock):
        self._producer = producer
        self._clock = clock
        self._closed = False
        self._begin()
        self._inbox = producer.inbox(self.address)
        self._tasks: set[asyncio.Task[None]] = set()
        self.receiver = asyncio.create_task(self._keep(self._receive))

    def call(self, lane: str, jobs: Sequence[Job], client: str = "") -> list[AsyncPendingReply]:
        """Send the client's jobs, all or none, and return their replies to come, in order.

        Where the jobs cannot be put, waiting for a reply raises InvalidText, Overloaded or Unavailable.
        """
        pending, put = self._expect(lane, jobs, client)
        if self._closed:
            self._settle_all(closed())
        elif put is not None:
            self._start(self._put([put]))
        return pending

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop interest in the jobs' replies; jobs that are not answered yet are withdrawn."""
        if job_ids := self._drop(jobs):
            self._start(self._withdraw(job_ids))

    async def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job; None if it takes over `timeout_s`.

        Raises UnknownJob and Unavailable.
        """
        return await self._result_of(job_id, timeout_s)

    async def close(self) -> None:
        """End the tasks, once unanswered jobs are withdrawn; a task that waits gets Unavailable."""
        self._closed = True
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

    # The I/O of an event loop

    def _new_pending(self) -> AsyncPendingReply:
        return AsyncPendingReply()

    def _new_note(self) -> AsyncPendingNote:
        return AsyncPendingNote()

    def _is_closed(self) -> bool:
        return self._closed

    async def _put_many(self, puts: Sequence[PackedJobs]) -> list[list[str | None] | ShoalError]:
        return await self._producer.put_many(puts)

    async def _take_back(self, job_ids: Sequence[str]) -> None:
        await self._producer.withdraw(job_ids)

    async def _read_result(self, job_id: str) -> Reply | None:
        return await self._producer.read_result(job_id)

    async def _watch_result(self, job_id: str) -> bool:
        return await self._producer.watch_result(job_id, self.address)

    async def _wait_for_note(self, note: AsyncPendingNote, timeout_s: float) -> None:
        await note.wait(timeout_s)

    async def _wait_for_replies(self) -> tuple[Sequence[Reply], Sequence[str]]:
        return await self._inbox.wait(), self._inbox.answered

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _doubt_clock(self) -> None:
        self._clock.invalidate()
