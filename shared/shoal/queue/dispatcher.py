"""One sender and one receiver for all the threads of a process.

The sender puts what many threads enqueue into one round trip; a thread that is alone sends by itself. The receiver
waits on the process's own reply address and wakes the thread each reply is for. With a round trip and a connection of
its own for every request the same two cores answer a third as many.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from shoal.errors import Internal, ShoalError, Unavailable
from shoal.jobs import Job
from shoal.queue.put import Put, PutOutcome, StreamEntry
from shoal.queue.queue import Queue
from shoal.replies import Reply

#: How long Redis may be away before those who wait for a reply are told.
GRACE_S = 0.8

#: How long the receiver waits before it tries Redis again.
RETRY_S = 0.1

_log = logging.getLogger(__name__)

_CLOSED = "the client was closed while this waited: make a new one"


class PendingReply:
    """A reply on its way. Any number of threads may wait for it; one settles it, once.

    It is what `concurrent.futures.Future` is, in a lock: that takes a sixth of the time.
    """

    __slots__ = ("_lock", "_outcome", "place")

    def __init__(self) -> None:
        self.place: StreamEntry | None = None  # of the job, once it is in its lane
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Reply | ShoalError | None = None

    def settle(self, outcome: Reply | ShoalError) -> None:
        """Wakes who waits, with the reply or with the error to raise."""
        self._outcome = outcome
        self._lock.release()

    def done(self) -> bool:
        """Whether it is settled."""
        return self._outcome is not None

    def result(self, timeout_s: float) -> Reply:
        """The reply.

        Raises the error that it was settled with, or TimeoutError.
        """
        if self._outcome is None:
            if not self._lock.acquire(timeout=timeout_s):
                raise TimeoutError
            self._lock.release()  # for the next who waits
        if isinstance(self._outcome, Reply):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome


class Dispatcher:
    """Puts jobs and hands out their replies. Thread-safe; starts its two threads at once."""

    def __init__(self, queue: Queue):
        self._queue = queue
        self._starting = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self.address = secrets.token_hex(8)
        self._inbox = self._queue.inbox(self.address)
        self._outgoing: SimpleQueue[Put | StreamEntry | None] = SimpleQueue()
        self._waiting: dict[str, PendingReply] = {}
        self._closed = threading.Event()
        loops = (self._send, self._receive)
        self._threads = [threading.Thread(target=self._keep_going, args=(loop,), daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def call(self, lane: str, jobs: Sequence[Job], client: str = "") -> list[PendingReply]:
        """Sends the client's jobs, all or none, and returns what each one's reply will be in.

        Where the jobs could not be put, waiting for them raises InvalidText, Overloaded or Unavailable.
        """
        pending = self.expect(jobs)
        self.send(lane, jobs, client)
        return pending

    def expect(self, jobs: Sequence[Job]) -> list[PendingReply]:
        """What the replies to the jobs will be in, once the jobs are sent."""
        if self._pid != os.getpid():
            self._start_again()
        pending = [PendingReply() for _ in jobs]
        self._waiting.update(zip((job.id for job in jobs), pending, strict=True))
        return pending

    def send(self, lane: str, jobs: Sequence[Job], client: str = "") -> None:
        """Sends jobs whose replies are expected; `client` is whose they are."""
        try:
            put = Put.pack(lane, jobs, self.address, client)
        except ShoalError as error:
            self._fail(jobs, error)
            return
        if len(self._waiting) <= len(jobs):  # nobody's jobs could go along, so another thread would only cost time
            self._deliver([put])
        else:
            self._outgoing.put(put)
        if self._closed.is_set():
            self._fail_all(Unavailable(_CLOSED))

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drops interest in the jobs' replies; those that no worker has yet are taken back."""
        for job in jobs:
            pending = self._waiting.pop(job.id, None)
            if pending is not None and pending.place is not None:
                self._outgoing.put(pending.place)

    def is_alive(self) -> bool:
        """Whether both threads run, as they do until it is closed."""
        return self._pid != os.getpid() or all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stops both threads; whoever still waits gets Unavailable."""
        self._closed.set()
        self._outgoing.put(None)
        with contextlib.suppress(ShoalError):  # without Redis it wakes by itself
            self._inbox.wake()
        for thread in self._threads:
            thread.join()
        self._fail_all(Unavailable(_CLOSED))

    def _start_again(self) -> None:
        """In a process that was forked: the threads did not come along, and the address is the other process's."""
        with self._starting:
            if self._pid != os.getpid():
                self._start()

    def _keep_going(self, loop: Callable[[], None]) -> None:
        """Runs the loop until the exchange is closed, again after an error that nobody foresaw.

        The error is logged without its message, which could hold a text.
        """
        while not self._closed.is_set():
            try:
                loop()
            except Exception as error:
                frames = "".join(traceback.format_tb(error.__traceback__))
                _log.error("the exchange met %s and goes on\n%s", type(error).__name__, frames)
                self._fail_all(Internal("the client failed in a way nobody foresaw; its log has the traceback"))
                self._closed.wait(RETRY_S)

    def _send(self) -> None:
        while (first := self._outgoing.get()) is not None:
            parcels = [first, *self._drain()]
            self._deliver([parcel for parcel in parcels if isinstance(parcel, Put)])
            self._withdraw([parcel for parcel in parcels if isinstance(parcel, StreamEntry)])

    def _drain(self) -> list[Put | StreamEntry]:
        parcels = []
        with contextlib.suppress(Empty):
            while (parcel := self._outgoing.get_nowait()) is not None:
                parcels.append(parcel)
            self._outgoing.put(None)  # the mark that ends `_send`
        return parcels

    def _deliver(self, puts: Sequence[Put]) -> None:
        puts = [put for put in puts if any(job.id in self._waiting for job in put.jobs)]
        if not puts:
            return
        try:
            admissions = self._queue.put_many(puts)
        except ShoalError as error:
            for put in puts:
                self._fail(put.jobs, error)
            return
        for admission in admissions:
            self._note(admission)

    def _note(self, admission: PutOutcome) -> None:
        """Remembers where the jobs are, or tells who waits for them why they are not."""
        put = admission.put
        try:
            places = self._queue.places(put, admission.check())
        except ShoalError as error:
            self._fail(put.jobs, error)
            return
        abandoned = []
        for job, place in zip(put.jobs, places, strict=True):
            if pending := self._waiting.get(job.id):
                pending.place = place
            else:
                abandoned.append(place)
        self._withdraw(abandoned)  # an answered one is no longer there

    def _withdraw(self, places: Sequence[StreamEntry]) -> None:
        with contextlib.suppress(ShoalError):  # then they run in vain, or expire
            self._queue.withdraw(places)

    def _receive(self) -> None:
        answered_at, is_away = time.monotonic(), False
        while not self._closed.is_set():
            try:
                replies = self._inbox.wait()
            except ShoalError as error:
                if time.monotonic() - answered_at > GRACE_S:
                    _log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                    is_away = True
                    self._fail_all(error)
                self._closed.wait(RETRY_S)
                continue
            if is_away:
                _log.info("Redis answers again")
            answered_at, is_away = time.monotonic(), False
            for reply in replies:
                self._settle(reply.id, reply)

    def _settle(self, job_id: str, outcome: Reply | ShoalError) -> None:
        if pending := self._waiting.pop(job_id, None):
            pending.settle(outcome)

    def _fail(self, jobs: Sequence[Job], error: ShoalError) -> None:
        for job in jobs:
            self._settle(job.id, error)

    def _fail_all(self, error: ShoalError) -> None:
        for job_id in list(self._waiting):
            self._settle(job_id, error)
