"""The bulk lane as a long job uses it: whatever can pass is waited for, and jobs that were lost are sent again."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from shoal.client.redis.async_client import AsyncClient
from shoal.client.redis.client import Client
from shoal.contract.jobs import Job, new_id
from shoal.contract.replies import Reply
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.queue.dispatcher import Pending

LANE = "bulk"

#: Time between two calls of `waiting`, and before a lane that was full, or Redis, is tried again, in seconds.
WAITING_EVERY_S = 0.5

#: Seconds without an answer, though a worker is alive, after which it is looked if Redis has lost jobs.
SEND_AGAIN_S = 60.0


@dataclass(slots=True)
class SentJob:
    """A job on its way, and the reply that is waited for."""

    job: Job
    pending: Pending[Reply]


class BulkLane:
    """The bulk lane of a client's pool. For one thread.

    `waiting` is called with the reason at least every `WAITING_EVERY_S` during a wait; it may raise, to stop.
    """

    def __init__(self, client: Client, waiting: Callable[[str], None], send_again_s: float = SEND_AGAIN_S):
        self._client = client
        self._waiting = waiting
        self._send_again_s = send_again_s

    def send(self, job: Job) -> SentJob:
        """Send a job; `reply` raises the error if that fails."""
        return SentJob(job, self._call(job))

    def forget(self, sent: Sequence[SentJob]) -> None:
        """Withdraw jobs whose replies are not wanted any more."""
        with suppress(ShoalError):
            self._client.run(partial(_forget, [each.job for each in sent]))

    def reply(self, first: SentJob, sent: Sequence[SentJob]) -> Reply:
        """Return the reply to the first of the jobs that were sent, however long that takes.

        Waits for workers, for room in the lane and for Redis. Raises the reply's error.
        """
        silent_since = time.monotonic()
        while True:
            try:
                return Reply.join([self._client.run(lambda _: first.pending.result(WAITING_EVERY_S))])
            except TimeoutError:
                if not self._waits_for_worker() and time.monotonic() - silent_since > self._send_again_s:
                    self._send_lost(sent)
                    silent_since = time.monotonic()
            except (Overloaded, Unavailable) as refusal:
                reason = "room in the lane" if isinstance(refusal, Overloaded) else "Redis"
                self._waiting(f"waiting for {reason}")
                time.sleep(WAITING_EVERY_S)
                for each in sent:
                    if isinstance(each.pending.error(), Overloaded | Unavailable):  # others are raised in their turn
                        each.pending = self._call(each.job)

    def _call(self, job: Job) -> Pending[Reply]:
        return self._client.run(partial(_call, job))

    def _waits_for_worker(self) -> bool:
        """Say what is waited for; return False if it is a living worker."""
        try:
            is_alone = not self._client.pool.alive()
        except ShoalError:
            self._waiting("waiting for Redis")
            return True
        self._waiting("waiting for a worker" if is_alone else "embedding")
        return is_alone

    def _send_lost(self, sent: Sequence[SentJob]) -> None:
        """Send the jobs again, as new ones, that have no answer and are in their lane no longer.

        Those that wait there or are with a worker are only slow: sent again, they would never be finished.
        """
        placed = [(each, put_id) for each in sent if not each.pending.done() and (put_id := each.pending.put_id)]
        try:
            held = self._client.run(lambda client: client.queue.holds([put_id for _, put_id in placed]))
        except ShoalError:
            return  # Redis is away, which the next wait notices
        lost = [each for (each, _), is_held in zip(placed, held, strict=True) if not is_held]
        self.forget(lost)
        for each in lost:
            each.job = replace(each.job, id=new_id())
            each.pending = self._call(each.job)


async def _call(job: Job, client: AsyncClient) -> Pending[Reply]:
    return client.connect().call(LANE, [job], client.name)[0]


async def _forget(jobs: Sequence[Job], client: AsyncClient) -> None:
    client.connect().forget(jobs)
