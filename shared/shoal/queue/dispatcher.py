"""One sender and one receiver for all the threads of a process.

The sender puts into one round trip what many threads enqueue; a thread that is alone, or has large jobs, sends by
itself. The receiver waits on the process's own reply address and wakes the thread that each reply is for. With a round
trip and a connection of its own for every request, the same two cores answer a third as many.
"""

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from queue import Empty, SimpleQueue

from shoal.blocking import run_now
from shoal.errors import ShoalError
from shoal.jobs import Job
from shoal.queue.dispatching import Dispatching, closed
from shoal.queue.packed_jobs import PackedJobs, few_of_each_client
from shoal.queue.producer import Producer
from shoal.queue.thread_turns import Turn, own_turn
from shoal.replies import Reply

#: Most bytes of jobs that the sender puts for a thread. All that it puts together is accepted when the last of it has
#: arrived, so larger jobs would delay those of other threads.
MAX_SENDER_BYTES = 65_536


class PendingReply:
    """A reply on its way. Any number of threads may wait for it; it is settled once.

    It does what `concurrent.futures.Future` does, with one lock: that takes a sixth of the time.
    """

    __slots__ = ("_lock", "_outcome", "_turns", "put_id")

    def __init__(self) -> None:
        self.put_id: str | None = None  # of the job, once it is in its lane
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Reply | ShoalError | None = None
        self._turns: list[Turn] = []  # of the threads that wait

    def settle(self, outcome: Reply | ShoalError) -> None:
        """Wake all threads that wait, with the reply or the error to raise; one that had a turn waits for one again."""
        self._outcome = outcome
        try:
            turn = self._turns.pop()
        except IndexError:
            self._lock.release()
        else:
            turn.take_later(self._lock)

    def done(self) -> bool:
        """Return True once it is settled."""
        return self._outcome is not None

    def result(self, timeout_s: float) -> Reply:
        """Return the reply.

        Raises the error that it was settled with, or TimeoutError.
        """
        if self._outcome is None:
            if turn := own_turn():
                self._wait_without(turn, timeout_s)
            elif not self._lock.acquire(timeout=timeout_s):
                raise TimeoutError
            self._lock.release()  # for the next thread that waits
        if isinstance(self._outcome, Reply):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    def _wait_without(self, turn: Turn, timeout_s: float) -> None:
        """Acquire the lock; another thread has the turn until then. Raises TimeoutError."""
        self._turns.append(turn)
        turn.give_back()
        is_settled = self._lock.acquire(timeout=timeout_s)
        try:
            self._turns.remove(turn)
        except ValueError:  # it was taken by `settle`, which gives it back with the lock
            if not is_settled:
                self._lock.acquire()
            return
        turn.take()
        if not is_settled:
            raise TimeoutError


class PendingNote:
    """A note on its way that a job is answered, for one thread."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._error: ShoalError | None = None

    def settle(self, error: ShoalError | None) -> None:
        """Wake the thread that waits, or have it raise the error."""
        self._error = error
        self._settled.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for the note, which comes once, or until the time is over. Raises the error that it was settled with."""
        if self._settled.wait(timeout_s) and self._error:
            raise self._error
        self._settled.clear()


class Dispatcher(Dispatching[PendingReply, PendingNote]):
    """The sender and the receiver of a process. Thread-safe; starts its two threads at once."""

    def __init__(self, producer: Producer):
        self._producer = producer
        self._starting = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._begin()
        self._inbox = self._producer.inbox(self.address)
        self._outgoing: SimpleQueue[PackedJobs | str | None] = (
            SimpleQueue()
        )  # to put, to withdraw; None ends the sender
        self._closed = threading.Event()
        loops = (self._send, self._receive)
        self._threads = [threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def call(self, lane: str, jobs: Sequence[Job], client: str = "") -> list[PendingReply]:
        """Send the client's jobs, all or none, and return their replies to come, in order.

        Where the jobs cannot be put, waiting for a reply raises InvalidText, Overloaded or Unavailable.
        """
        if self._pid != os.getpid():
            self._start_after_fork()
        pending, put = self._expect(lane, jobs, client)
        if put is None:
            return pending
        is_alone = len(self._pending) <= len(jobs)  # no other thread's jobs could go along: the sender only costs time
        if is_alone or put.num_bytes > MAX_SENDER_BYTES:
            run_now(self._put([put]))
        else:
            self._outgoing.put(put)
        if self._is_closed():
            run_now(self._withdraw(self._settle_all(closed())))
        return pending

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop interest in the jobs' replies; jobs that are not answered yet are withdrawn."""
        for job_id in self._drop(jobs):
            self._outgoing.put(job_id)

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job; None if it takes over `timeout_s`.

        All threads that wait share the process's reply address, at which Redis says that the job is answered. Raises
        UnknownJob and Unavailable.
        """
        if self._pid != os.getpid():
            self._start_after_fork()
        return run_now(self._result_of(job_id, timeout_s))

    def is_alive(self) -> bool:
        """Return True while both threads run, as they do until it is closed."""
        return self._pid != os.getpid() or all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stop both threads, once unanswered jobs are withdrawn; a thread that waits gets Unavailable."""
        self._closed.set()
        for job_id in self._settle_all(closed()):
            self._outgoing.put(job_id)
        self._outgoing.put(None)
        with contextlib.suppress(ShoalError):  # without Redis the receiver wakes by itself
            self._inbox.wake()
        for thread in self._threads:
            thread.join()

    def _start_after_fork(self) -> None:
        """Start anew: a fork copies neither the threads nor the right to the parent's address."""
        with self._starting:
            if self._pid != os.getpid():
                self._start()

    def _run(self, loop: Callable[[], Awaitable[None]]) -> None:
        run_now(self._keep(loop))

    # The sender

    async def _send(self) -> None:
        puts: list[PackedJobs] = []
        while puts or (first := self._outgoing.get()) is not None:
            parcels = self._drain() if puts else [first, *self._drain()]
            puts += [parcel for parcel in parcels if isinstance(parcel, PackedJobs)]
            await self._withdraw([parcel for parcel in parcels if isinstance(parcel, str)])
            now, puts = few_of_each_client(puts)
            await self._put(now)

    def _drain(self) -> list[PackedJobs | str]:
        """Return all that waits to be sent."""
        parcels = []
        with contextlib.suppress(Empty):
            while (parcel := self._outgoing.get_nowait()) is not None:
                parcels.append(parcel)
            self._outgoing.put(None)  # for `_send`, which it ends
        return parcels

    # The I/O of threads

    def _new_pending(self) -> PendingReply:
        return PendingReply()

    def _new_note(self) -> PendingNote:
        return PendingNote()

    def _is_closed(self) -> bool:
        return self._closed.is_set()

    async def _put_many(self, puts: Sequence[PackedJobs]) -> list[list[str | None] | ShoalError]:
        return self._producer.put_many(puts)

    async def _take_back(self, job_ids: Sequence[str]) -> None:
        self._producer.withdraw(job_ids)

    async def _read_result(self, job_id: str) -> Reply | None:
        return self._producer.read_result(job_id)

    async def _watch_result(self, job_id: str) -> bool:
        return self._producer.watch_result(job_id, self.address)

    async def _wait_for_note(self, note: PendingNote, timeout_s: float) -> None:
        note.wait(timeout_s)

    async def _wait_for_replies(self) -> tuple[Sequence[Reply], Sequence[str]]:
        return self._inbox.wait(), self._inbox.answered

    async def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)

    def _doubt_clock(self) -> None:
        self._producer.clock.invalidate()
