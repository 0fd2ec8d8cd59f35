"""Thread quotas: how many of a process's threads one client may hold."""

from threading import Lock

from shoal.errors import Overloaded

#: A client may hold this many threads for each thread that is free and not reserved: see `ThreadQuotas`.
LIMIT_PER_FREE = 7

#: Most viewers of the pool that a process serves. Each has a thread of its own, beside the threads that answer
#: requests.
MAX_VIEWERS = 16

#: One thread in this many is reserved for clients that hold none.
THREADS_PER_RESERVED = 16


class ThreadQuotas:
    """The threads of a process that clients hold. Thread-safe.

    A thread waits for a body to arrive or for a reply, so a few clients with many slow requests could hold them all.
    The limit depends on the threads that are free now (dynamic thresholds, Choudhury and Hahne, 1998):

        limit per client = 7 * (free threads - reserved threads), reserved threads = all threads // 16

    So a client alone gets at most 7/8 of the threads that are not reserved, several greedy clients get less each, and
    some threads stay free for the next client. A client that holds none always gets one. A request with a large body
    counts for several threads, so the bodies of all requests are bounded too.

    `threads` is what error messages call the threads.
    """

    def __init__(self, num_threads: int, threads: str = "threads of this server"):
        self._num_threads = num_threads
        self._threads = threads
        self._num_free = num_threads
        self._num_reserved = num_threads // THREADS_PER_RESERVED
        self._num_held: dict[str, int] = {}
        self._lock = Lock()

    def acquire(self, client: str, num: int = 1) -> None:
        """Count `num` more threads for the client; raise Overloaded if it would then hold more than its limit."""
        if not self.try_acquire(client, num):
            raise Overloaded(
                f"the requests of this client that are being answered count for {self._num_held.get(client, 0):,} of "
                f"{self._num_threads:,} {self._threads}, and this one for {num:,}, more than it grants now: send fewer "
                "or smaller ones at a time"
            )

    def try_acquire(self, client: str, num: int = 1) -> bool:
        """Count `num` more threads for the client and return True, unless it would then hold more than its limit."""
        with self._lock:
            num_held = self._num_held.get(client, 0)
            limit = LIMIT_PER_FREE * (self._num_free - (num - 1) - self._num_reserved)
            is_within = num_held + num <= limit or (not num_held and num <= max(1, self._num_free))
            if is_within:
                self._num_held[client] = num_held + num
                self._num_free -= num
            return is_within

    def num_held(self, client: str) -> int:
        """Return the number of threads that are counted for the client."""
        return self._num_held.get(client, 0)

    def hold(self, client: str, num: int) -> None:
        """Count `num` more threads for the client, whatever its limit is."""
        with self._lock:
            self._num_held[client] = self._num_held.get(client, 0) + num
            self._num_free -= num

    def release(self, client: str, num: int = 1) -> None:
        """Count `num` fewer threads for the client."""
        with self._lock:
            self._num_free += num
            num_held = self._num_held.pop(client) - num
            if num_held:
                self._num_held[client] = num_held
