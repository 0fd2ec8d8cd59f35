"""The dispatcher puts the jobs of many tasks in one round trip. One of its own tasks receives all replies.

If every request had its own round trip and connection, two cores would answer only a third of the requests.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.process import logs
from shoal.queue.lane import PackedJobs, take_groups
from shoal.queue.producer import Producer

#: Seconds for which Redis may be away before callers that wait for a reply get an error.
GRACE_S = 0.8

#: Seconds for which a caller waits for a note before it looks for the result, because notes are lost if Redis fails.
LOOK_AGAIN_S = 2.0

_log = logging.getLogger("shoal.queue.dispatcher")


class Pending(asyncio.Future[Reply]):
    """The reply to a job, which has an error if the job could not be put. `is_put` is True once the job is in its lane.

    If the job names a `fingerprint`, the reply must come from the model with this fingerprint.
    """

    is_put = False
    fingerprint: str | None = None

    async def within(self, timeout_s: float) -> Reply:
        """Wait for the reply and return it. Raises TimeoutError, after which the reply can be awaited again."""
        async with asyncio.timeout(timeout_s):  # `wait_for` ignores a cancellation that comes with the reply
            return await asyncio.shield(self)


class Dispatcher:
    """The jobs whose replies go to one address, and the task `receiver`, which receives the replies.

    The dispatcher's own tasks put and withdraw jobs, because the task that asks may be cancelled at any moment.
    """

    def __init__(self, producer: Producer):
        self.address = secrets.token_hex(8)
        self._producer = producer
        self._inbox = producer.inbox(self.address)
        self._pending: dict[str, Pending] = {}
        self._watched: dict[str, list[asyncio.Future[ShoalError | None]]] = {}
        self._outgoing: dict[tuple[str, str], list[PackedJobs]] = {}  # by their client and lane
        self._has_outgoing = asyncio.Event()
        self._is_closed = False
        self._answered_at, self._is_away = time.monotonic(), False
        self._tasks: set[asyncio.Task[None]] = set()
        self._start(self._keep_sending())
        self.receiver = asyncio.create_task(self._keep_receiving())

    @property
    def num_waiting(self) -> int:
        """The number of jobs whose replies are awaited."""
        return len(self._pending)

    def send(self, lane: str, jobs: Sequence[Job], client: str = "", timeout_s: float | None = None) -> list[Pending]:
        """Send the client's jobs, all or none; return the pending reply to each, in order. Does not wait."""
        found = []
        for job in jobs:
            pending = self._pending[job.id] = Pending()
            pending.fingerprint = job.fingerprint
            found.append(pending)
        try:
            put = PackedJobs.pack(lane, jobs, self.address, client, timeout_s=timeout_s)
        except ShoalError as error:
            self._settle_all(error, [job.id for job in jobs])
            return found
        if self._is_closed:
            self._settle_all(closed())
        elif put.num_bytes > 65_536:  # in a round trip with other puts it would delay them
            self._start(self._put([[put]]))
        else:
            self._outgoing.setdefault((client, lane), []).append(put)
            self._has_outgoing.set()
        return found

    def forget(self, jobs: Sequence[Job]) -> None:
        """Ignore the replies to the jobs from now on, and withdraw jobs that are not answered yet."""
        # `_put` withdraws a job that is being put now
        unanswered = [job.id for job in jobs if (pending := self._pending.pop(job.id, None)) and pending.is_put]
        if unanswered:
            self._start(self._withdraw(unanswered))

    async def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job, or None after `timeout_s`. Raises UnknownJob and Unavailable."""
        until = time.monotonic() + timeout_s
        reply = await self._producer.read_result(job_id)
        while reply is None and (left_s := until - time.monotonic()) > 0:
            if self._is_closed:
                raise closed()
            note: asyncio.Future[ShoalError | None] = asyncio.Future()
            self._watched.setdefault(job_id, []).append(note)
            try:
                if await self._producer.watch_result(job_id, self.address):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(left_s, LOOK_AGAIN_S)):
                            if error := await note:
                                raise error
            finally:
                notes = [other for other in self._watched.pop(job_id, []) if other is not note]
                if notes:
                    self._watched[job_id] = notes
            reply = await self._producer.read_result(job_id)
        return reply

    async def close(self) -> None:
        """Withdraw unanswered jobs, then end all tasks. Tasks that wait for a reply get Unavailable."""
        self._is_closed = True
        self._has_outgoing.set()
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

    async def _keep_sending(self) -> None:
        """Put the jobs that callers send until the dispatcher is closed, and go on after an unforeseen error."""
        while await self._has_outgoing.wait() and not self._is_closed:
            groups = take_groups(self._outgoing)
            if not self._outgoing:
                self._has_outgoing.clear()
            wanted = [[put for put in group if any(job.id in self._pending for job in put.jobs)] for group in groups]
            try:
                await self._put([group for group in wanted if group])
            except Exception as error:
                self._report(error)

    async def _put(self, groups: Sequence[Sequence[PackedJobs]]) -> None:
        """Put each group by one run of the script, and note which jobs are in their lane; settle refused jobs.

        The puts of a group that is refused are made again, one by one.
        """
        puts = [PackedJobs.join(group) if len(group) > 1 else group[0] for group in groups]
        try:
            outcomes = await self._producer.put_many(puts)
        except ShoalError as error:
            self._settle_all(error, [job.id for put in puts for job in put.jobs])
            return
        for group, put, outcome in zip(groups, puts, outcomes, strict=True):
            if not isinstance(outcome, ShoalError):
                in_lane = {job.id for job, is_new in zip(put.jobs, outcome["is_new"], strict=True) if is_new}
                for job_id in in_lane & self._pending.keys():
                    self._pending[job_id].is_put = True
                if abandoned := in_lane - self._pending.keys():  # `withdraw` skips jobs that are answered
                    await self._withdraw([*abandoned])
            elif len(group) > 1:
                await self._put([[each] for each in group])
            else:
                self._settle_all(outcome, [job.id for job in put.jobs])

    async def _withdraw(self, job_ids: Sequence[str]) -> None:
        with suppress(ShoalError):  # otherwise workers compute the jobs, or drop them at their deadlines
            await self._producer.withdraw(job_ids)

    # The receiver

    async def _keep_receiving(self) -> None:
        """Receive replies until the dispatcher is closed, and go on after an error."""
        earlier: set[str] | None = None
        while not self._is_closed:
            try:
                replies = await self._inbox.wait()
                for reply in replies:
                    if (pending := self._pending.pop(reply.id, None)) and not pending.done():
                        found = reply.of_pinned(pending.fingerprint) if pending.fingerprint else reply
                        pending.set_result(found)
                for job_id in self._inbox.answered:
                    self._note(job_id, None)
                if self._is_away:
                    _log.info("Redis answers again")
                self._answered_at, self._is_away, earlier = time.monotonic(), False, None
                continue
            except ShoalError as error:
                self._note_silence(error, earlier)
            except Exception as error:
                self._report(error)
            await asyncio.sleep(0.1)
            if self._is_away:
                earlier = {*self._pending, *self._watched}  # if the next read fails, only these jobs get the error

    def _note_silence(self, error: ShoalError, job_ids: Collection[str] | None) -> None:
        """Make callers raise the error if Redis has been away for longer than `GRACE_S`; log the first such error."""
        if time.monotonic() - self._answered_at > GRACE_S:
            _log.log(logging.DEBUG if self._is_away else logging.WARNING, "%s; trying until it does", error)
            self._is_away = True
            self._settle_all(error, job_ids)

    def _report(self, error: Exception) -> None:
        """Log an unforeseen error without its message, which could contain a text. Callers that wait get an error."""
        _log.error("the dispatcher goes on after an error: %s", logs.places(error))
        self._settle_all(Internal("the client failed in an unforeseen way; its log has the traceback"))

    # Callers that wait

    def _note(self, job_id: str, outcome: ShoalError | None) -> None:
        """Wake callers that wait for the job's result; each looks for it, or raises `outcome` if that is an error."""
        for note in self._watched.pop(job_id, []):
            if not note.done():  # the future of a cancelled task is done
                note.set_result(outcome)

    def _settle_all(self, error: ShoalError, job_ids: Collection[str] | None = None) -> list[str]:
        """Give the error to all callers, or to callers that wait for these jobs; return the ids of jobs in lanes."""
        in_lanes = []
        for job_id in list(self._pending) if job_ids is None else job_ids:
            if pending := self._pending.pop(job_id, None):
                if pending.is_put:  # otherwise `_put` withdraws the job
                    in_lanes.append(job_id)
                if not pending.done():
                    pending.set_result(Reply.failure(job_id, error))
        for job_id in list(self._watched) if job_ids is None else job_ids:
            self._note(job_id, error)
        return in_lanes


def closed() -> Unavailable:
    """Return the error for callers that wait when the client is closed."""
    return Unavailable("the client was closed while this call waited: make a new client")
