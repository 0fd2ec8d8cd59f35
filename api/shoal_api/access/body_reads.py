"""Reads of the bodies of requests that are to wait: a request can give up its thread once its body was read."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakValueDictionary

from shoal.errors import Overloaded
from shoal_api.access.thread_quota import ThreadQuotas

#: Threads that answer requests, for each thread that reads the bodies of requests that will wait.
_THREADS_PER_READ = 5

#: Longest that a request waits until its body may be read, in seconds; it holds a thread meanwhile. Many clients send
#: the body after the headers, with a pause between the two when they make a thousand requests at a time.
_MAX_WAIT_S = 1.0


@dataclass(slots=True, eq=False)
class BodyRead:
    """A body that is being read. Its attributes, which requests have too, show whether its client is slow."""

    started_s: float = field(default_factory=time.perf_counter)
    is_receiving: bool = True
    num_uploaded_bytes: int = 0

    @property
    def progressed_s(self) -> float:
        """The time of the start."""
        return self.started_s


@dataclass(slots=True, weakref_slot=True, eq=False)
class _ClientReads:
    """The reads of a client, and the requests that wait to be read: false is the result of one that is refused."""

    reads: list[BodyRead] = field(default_factory=list)
    waiting: list[Future[bool]] = field(default_factory=list)

    def is_slow(self) -> bool:
        """Return true if half of the reads are older than a client needs between headers and body."""
        reads = self.reads
        return bool(reads) and time.perf_counter() - reads[len(reads) // 2].started_s > _MAX_WAIT_S


def num_read_threads(num_threads: int) -> int:
    """Return how many threads read bodies, and as many wait to, beside `num_threads` threads that answer requests."""
    return max(1, num_threads // _THREADS_PER_READ)


class BodyReads:
    """The threads that read such bodies: a client may hold a part of them. Thread-safe.

    Slow bodies could hold all of a client's part. So that its other requests do not hold up threads that other clients
    need, only the newest of them wait then: the next one after the client has closed its slow connections is let in.
    """

    def __init__(self, num_threads: int, max_wait_s: float = _MAX_WAIT_S):
        self._num_threads = num_threads
        self._max_wait_s = max_wait_s
        self._quotas = ThreadQuotas(num_threads, "threads of this server that read requests")
        self._clients: WeakValueDictionary[str, _ClientReads] = WeakValueDictionary()
        self._lock = Lock()

    @contextmanager
    def reading(self, client: str, beside_slow: bool = True) -> Iterator[BodyRead]:
        """Count a read of the client; wait a moment if it has many, and if they are slow only `beside_slow`.

        Raises Overloaded if these do not end.
        """
        with self._lock:
            own = self._clients.setdefault(client, _ClientReads())
            turn = self._turn(client, own, beside_slow)
        wait([turn], self._max_wait_s)
        with self._lock:
            if turn in own.waiting:
                own.waiting.remove(turn)
                turn.set_result(False)
            if not turn.result():
                raise Overloaded("the bodies of many requests of this client do not arrive: send them faster")
            own.reads.append(read := BodyRead())
        try:
            yield read
        finally:
            with self._lock:
                own.reads.remove(read)
                self._quotas.release(client)
                while own.waiting and self._quotas.try_acquire(client):
                    own.waiting.pop().set_result(True)

    def _turn(self, client: str, own: _ClientReads, beside_slow: bool) -> Future[bool]:
        """Return the turn of a request: had at once, waited for, or refused."""
        turn: Future[bool] = Future()
        if self._quotas.try_acquire(client):
            turn.set_result(True)
        elif not own.is_slow():
            own.waiting.append(turn)
        elif beside_slow:
            while len(own.waiting) >= max(1, self._num_threads // len(self._clients)):
                own.waiting.pop(0).set_result(False)
            own.waiting.append(turn)
        else:
            turn.set_result(False)
        return turn
