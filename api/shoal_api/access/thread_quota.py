"""What one client may hold of a process's threads."""

from threading import Lock

from shoal.errors import Overloaded

#: A client may hold this many times as many threads as are free: 7 in 8 of them alone, and less the more others hold.
ALPHA = 7

#: This part of the threads, 1 in so many, is kept for clients that hold none.
KEPT = 16


class ThreadQuotas:
    """The threads of a process that clients hold. Thread-safe.

    A thread waits for a body to arrive or for an answer, so few clients with many slow requests could hold them all.
    What a client may hold depends on what is free (dynamic thresholds, Choudhury and Hahne, 1998): one that is alone
    may hold most, several that are greedy share, and some threads stay free for who comes next.
    """

    def __init__(self, num_threads: int):
        self._num_free = num_threads
        self._num_kept = num_threads // KEPT
        self._held: dict[str, int] = {}
        self._lock = Lock()

    def take(self, client: str) -> None:
        """Counts one more thread for the client; raises Overloaded if it holds its share."""
        with self._lock:
            num_held = self._held.get(client, 0)
            if not num_held or num_held < ALPHA * (self._num_free - self._num_kept):
                self._held[client] = num_held + 1
                self._num_free -= 1
                return
        raise Overloaded(
            f"{num_held:,} requests of this client are being answered, which is its share of this server: "
            "send fewer at a time"
        )

    def give_back(self, client: str) -> None:
        """Counts one less."""
        with self._lock:
            self._num_free += 1
            num_held = self._held.pop(client) - 1
            if num_held:
                self._held[client] = num_held
