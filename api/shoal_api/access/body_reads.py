"""Reads of the bodies of requests that are to wait: a request can give up its thread once its body was read."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

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


def num_read_threads(num_threads: int) -> int:
    """Return how many threads read bodies beside `num_threads` threads that answer requests."""
    return max(1, num_threads // _THREADS_PER_READ)


class BodyReads:
    """The threads that read such bodies: a client may hold a part of them. Thread-safe.

    Slow bodies could hold all of a client's part. Its other requests are refused then, so that they do not hold up
    threads that other clients need.
    """

    def __init__(self, num_threads: int):
        self._quotas = ThreadQuotas(num_threads, "threads of this server that read requests")
        self._reads: dict[str, list[BodyRead]] = {}
        self._ended = Condition()

    @contextmanager
    def reading(self, client: str) -> Iterator[BodyRead]:
        """Count a read of the client; wait a moment if it has many. Raises Overloaded if these do not end."""
        until_s = time.perf_counter() + _MAX_WAIT_S
        with self._ended:
            while not self._quotas.try_acquire(client):
                left_s = until_s - time.perf_counter()
                if left_s <= 0 or self._is_slow(client):
                    raise Overloaded("the bodies of many requests of this client do not arrive: send them faster")
                self._ended.wait(left_s)
            read = BodyRead()
            self._reads.setdefault(client, []).append(read)
        try:
            yield read
        finally:
            with self._ended:
                self._reads[client].remove(read)
                if not self._reads[client]:
                    del self._reads[client]
                self._quotas.release(client)
                self._ended.notify()

    def _is_slow(self, client: str) -> bool:
        """Return true if half of the client's reads are older than a client needs between headers and body."""
        reads = self._reads.get(client, [])
        return bool(reads) and time.perf_counter() - reads[len(reads) // 2].started_s > _MAX_WAIT_S
