"""One sender and one receiver for all the threads of a process.

The sender puts what many threads enqueue into one round trip; the receiver waits on the process's own reply address and
wakes the thread each reply is for. With a round trip and a connection of its own for every request the same two cores
answer a third as many.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from queue import Empty, SimpleQueue

from shoal.errors import ShoalError, Unavailable
from shoal.jobs import Job
from shoal.queue import Admission, Put, Queue
from shoal.replies import Reply

#: How long Redis may be away before those who wait for a reply are told.
GRACE_S = 1.0

_CLOSED = "the client was closed while this waited: make a new one"


class Exchange:
    """Puts jobs and hands out futures of their replies. Thread-safe; starts its two threads at once."""

    def __init__(self, queue: Queue):
        self.address = secrets.token_hex(8)
        self._queue = queue
        self._puts: SimpleQueue[Put | None] = SimpleQueue()
        self._waiting: dict[str, Future[Reply]] = {}
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def call(self, lane: str, jobs: Sequence[Job]) -> list[Future[Reply]]:
        """Sends the jobs, all or none, and returns the future of each one's reply.

        The futures raise Overloaded or Unavailable when the jobs could not be put. Raises InvalidText.
        """
        put = Put.pack(lane, [replace(job, reply_to=self.address) for job in jobs])
        futures: list[Future[Reply]] = [Future() for _ in jobs]
        self._waiting.update(zip((job.id for job in jobs), futures, strict=True))
        self._puts.put(put)
        if self._closed.is_set():
            self._fail_all(Unavailable(_CLOSED))
        return futures

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drops interest in the jobs' replies."""
        for job in jobs:
            self._waiting.pop(job.id, None)

    def close(self) -> None:
        """Stops both threads; whoever still waits gets Unavailable."""
        self._closed.set()
        self._puts.put(None)
        with contextlib.suppress(ShoalError):  # without Redis it wakes by itself
            self._queue.wake(self.address)
        for thread in self._threads:
            thread.join()
        self._fail_all(Unavailable(_CLOSED))

    def _send(self) -> None:
        while (first := self._puts.get()) is not None:
            puts = [first, *self._drain()]
            try:
                admissions = self._queue.put_many(puts)
            except ShoalError as error:
                admissions = [Admission(put.lane, error) for put in puts]
            for put, admission in zip(puts, admissions, strict=True):
                self._settle(put.jobs, admission)

    def _drain(self) -> list[Put]:
        puts = []
        with contextlib.suppress(Empty):
            while (put := self._puts.get_nowait()) is not None:
                puts.append(put)
            self._puts.put(None)  # the mark that ends `_send`
        return puts

    def _settle(self, jobs: Sequence[Job], admission: Admission) -> None:
        try:
            admission.check()
        except ShoalError as error:
            for job in jobs:
                if future := self._waiting.pop(job.id, None):
                    future.set_exception(error)

    def _receive(self) -> None:
        answered_at = time.monotonic()
        while not self._closed.is_set():
            try:
                replies = self._queue.wait_replies(self.address)
                answered_at = time.monotonic()
                while replies:  # the first is handed out before the others are fetched
                    self._hand_out(replies)
                    replies = self._queue.more_replies(self.address)
            except ShoalError as error:
                if time.monotonic() - answered_at > GRACE_S:
                    self._fail_all(error)
                self._closed.wait(0.1)

    def _hand_out(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if future := self._waiting.pop(reply.id, None):
                future.set_result(reply)

    def _fail_all(self, error: ShoalError) -> None:
        for job_id in list(self._waiting):
            if future := self._waiting.pop(job_id, None):
                future.set_exception(error)
