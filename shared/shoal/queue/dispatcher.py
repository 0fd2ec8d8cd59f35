"""One sender and one receiver for all the threads of a process.

The sender puts into one round trip what many threads enqueue; a thread that is alone, or has large jobs, sends by
itself. The receiver waits on the process's own reply address and wakes the thread that each reply is for. With a round
trip and a connection of its own for every request, the same two cores answer a third as many.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue

from shoal.errors import Internal, ShoalError, Unavailable
from shoal.jobs import Job
from shoal.queue.packed_jobs import PackedJobs, StreamEntry
from shoal.queue.producer import Producer
from shoal.replies import Reply

#: Time for which Redis may be away before the threads that wait for a reply are told.
GRACE_S = 0.8

#: Most bytes of jobs that the sender puts for a thread. All that it puts together is accepted when the last of it has
#: arrived, so larger jobs would delay those of other threads.
MAX_SENDER_BYTES = 65_536

#: Time after which a thread looks for a result by itself: a note is lost with a Redis that fails, and a program that
#: cancels a job by an old copy of the script sends none.
LOOK_AGAIN_S = 2.0

#: Time that the receiver waits before it tries Redis again.
RETRY_S = 0.1

_log = logging.getLogger(__name__)

_CLOSED = "the client was closed while this waited: make a new one"


class PendingReply:
    """A reply on its way. Any number of threads may wait for it; it is settled once.

    It does what `concurrent.futures.Future` does, with one lock: that takes a sixth of the time.
    """

    __slots__ = ("_lock", "_outcome", "place")

    def __init__(self) -> None:
        self.place: StreamEntry | None = None  # of the job, once it is in its lane
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Reply | ShoalError | None = None

    def settle(self, outcome: Reply | ShoalError) -> None:
        """Wake all threads that wait, with the reply or with the error to raise."""
        self._outcome = outcome
        self._lock.release()

    def done(self) -> bool:
        """Return True once it is settled."""
        return self._outcome is not None

    def result(self, timeout_s: float) -> Reply:
        """Return the reply.

        Raises the error that it was settled with, or TimeoutError.
        """
        if self._outcome is None:
            if not self._lock.acquire(timeout=timeout_s):
                raise TimeoutError
            self._lock.release()  # for the next thread that waits
        if isinstance(self._outcome, Reply):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome


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


class Dispatcher:
    """The sender and the receiver of a process. Thread-safe; starts its two threads at once."""

    def __init__(self, producer: Producer):
        self._producer = producer
        self._starting = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self.address = secrets.token_hex(8)
        self._inbox = self._producer.inbox(self.address)
        self._outgoing: SimpleQueue[PackedJobs | StreamEntry | None] = (
            SimpleQueue()
        )  # to put, to withdraw; None ends the sender
        self._pending: dict[str, PendingReply] = {}
        self._watched: dict[str, list[PendingNote]] = {}
        self._watching = threading.Lock()
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
        pending = [PendingReply() for _ in jobs]
        self._pending.update(zip((job.id for job in jobs), pending, strict=True))
        try:
            put = PackedJobs.pack(lane, jobs, self.address, client)
        except ShoalError as error:
            self._settle(jobs, error)
            return pending
        is_alone = len(self._pending) <= len(jobs)  # no other thread's jobs could go along: the sender only costs time
        if is_alone or put.num_bytes > MAX_SENDER_BYTES:
            self._put([put])
        else:
            self._outgoing.put(put)
        if self._closed.is_set():
            self._settle_all(Unavailable(_CLOSED))
        return pending

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop interest in the jobs' replies; jobs that are not answered yet are withdrawn."""
        for job in jobs:
            pending = self._pending.pop(job.id, None)
            if pending is not None and pending.place is not None:
                self._outgoing.put(pending.place)

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job; None if it takes over `timeout_s`.

        All threads that wait share the process's reply address, at which Redis says that the job is answered. Raises
        UnknownJob and Unavailable.
        """
        if self._pid != os.getpid():
            self._start_after_fork()
        until = time.monotonic() + timeout_s
        reply = self._producer.read_result(job_id)
        if reply is not None or timeout_s <= 0:
            return reply
        with self._awaited(job_id) as note:
            is_open = self._producer.watch_result(job_id, self.address)
            while reply is None and (left_s := until - time.monotonic()) > 0:
                if is_open:
                    note.wait(min(left_s, LOOK_AGAIN_S))
                reply, is_open = self._producer.read_result(job_id), True
        return reply

    @contextlib.contextmanager
    def _awaited(self, job_id: str) -> Iterator["PendingNote"]:
        note = PendingNote()
        with self._watching:
            self._watched.setdefault(job_id, []).append(note)
        try:
            if self._closed.is_set():
                raise Unavailable(_CLOSED)
            yield note
        finally:
            with self._watching:
                notes = self._watched.get(job_id, [])
                if note in notes:
                    notes.remove(note)
                if not notes:
                    self._watched.pop(job_id, None)

    def is_alive(self) -> bool:
        """Return True while both threads run, as they do until it is closed."""
        return self._pid != os.getpid() or all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stop both threads; a thread that still waits gets Unavailable."""
        self._closed.set()
        self._outgoing.put(None)
        with contextlib.suppress(ShoalError):  # without Redis the receiver wakes by itself
            self._inbox.wake()
        for thread in self._threads:
            thread.join()
        self._settle_all(Unavailable(_CLOSED))

    def _start_after_fork(self) -> None:
        """Start anew: a fork copies neither the threads nor the right to the parent's address."""
        with self._starting:
            if self._pid != os.getpid():
                self._start()

    def _run(self, loop: Callable[[], None]) -> None:
        """Run the loop until the dispatcher is closed, and again after an unforeseen error.

        The error is logged without its message, which could hold a text.
        """
        while not self._closed.is_set():
            try:
                loop()
            except Exception as error:
                frames = "".join(traceback.format_tb(error.__traceback__))
                _log.error("the dispatcher met %s and goes on\n%s", type(error).__name__, frames)
                self._settle_all(Internal("the client failed in an unforeseen way; its log has the traceback"))
                self._closed.wait(RETRY_S)

    # The sender

    def _send(self) -> None:
        while (first := self._outgoing.get()) is not None:
            parcels = [first, *self._drain()]
            self._put([parcel for parcel in parcels if isinstance(parcel, PackedJobs)])
            self._withdraw([parcel for parcel in parcels if isinstance(parcel, StreamEntry)])

    def _drain(self) -> list[PackedJobs | StreamEntry]:
        """Return all that waits to be sent."""
        parcels = []
        with contextlib.suppress(Empty):
            while (parcel := self._outgoing.get_nowait()) is not None:
                parcels.append(parcel)
            self._outgoing.put(None)  # for `_send`, which it ends
        return parcels

    def _put(self, puts: Sequence[PackedJobs]) -> None:
        """Put the jobs that are still wanted, and note their places; settle those that are refused."""
        puts = [put for put in puts if any(job.id in self._pending for job in put.jobs)]
        if not puts:
            return
        try:
            outcomes = self._producer.put_many(puts)
        except ShoalError as error:
            outcomes = [error] * len(puts)
        abandoned = []
        for put, outcome in zip(puts, outcomes, strict=True):
            if isinstance(outcome, ShoalError):
                self._settle(put.jobs, outcome)
                continue
            for job, place in zip(put.jobs, outcome, strict=True):
                if pending := self._pending.get(job.id):
                    pending.place = place
                elif place is not None:  # forgotten meanwhile, or answered already: then it is no longer there
                    abandoned.append(place)
        self._withdraw(abandoned)

    def _withdraw(self, places: Sequence[StreamEntry]) -> None:
        with contextlib.suppress(ShoalError):  # then they are computed without need, or expire
            self._producer.withdraw(places)

    # The receiver

    def _receive(self) -> None:
        answered_at, is_away = time.monotonic(), False
        while not self._closed.is_set():
            try:
                replies = self._inbox.wait()
            except ShoalError as error:
                self._producer.clock.invalidate()
                if time.monotonic() - answered_at > GRACE_S:
                    _log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                    is_away = True
                    self._settle_all(error)
                self._closed.wait(RETRY_S)
                continue
            if is_away:
                _log.info("Redis answers again")
            answered_at, is_away = time.monotonic(), False
            for reply in replies:
                if pending := self._pending.pop(reply.id, None):
                    pending.settle(reply)
            for job_id in self._inbox.answered:
                self._note(job_id)

    def _note(self, job_id: str, error: ShoalError | None = None) -> None:
        """Wake the threads that wait for the result of the job, or have them raise the error."""
        with self._watching:
            for note in self._watched.pop(job_id, []):
                note.settle(error)

    def _settle(self, jobs: Sequence[Job], error: ShoalError) -> None:
        for job in jobs:
            if pending := self._pending.pop(job.id, None):
                pending.settle(error)

    def _settle_all(self, error: ShoalError) -> None:
        for job_id in list(self._pending):
            if pending := self._pending.pop(job_id, None):
                pending.settle(error)
        for job_id in list(self._watched):
            self._note(job_id, error)
