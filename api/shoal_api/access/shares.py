"""Shares: how much of something that a process has a little of one client may take."""

from threading import Lock

from shoal.errors import Overloaded


class Shares:
    """The shares that clients hold of `total`. Thread-safe.

    A client may hold at most as much as it leaves free for all others (dynamic thresholds, Choudhury and Hahne, 1998):
    so one that is alone gets half, several greedy ones get less each, and something is left for the next client. A
    client that holds nothing gets whatever is free. `name` is what error messages call the whole.
    """

    def __init__(self, total: int, name: str):
        self._total = total
        self._name = name
        self._num_free = total
        self._held: dict[str, int] = {}
        self._lock = Lock()

    def acquire(self, client: str, num: int) -> None:
        """Count `num` more for the client; raise Overloaded if it would then hold more than its share."""
        with self._lock:
            held, free = self._held.get(client, 0), self._num_free - num
            if free < 0 or (held and held + num > free):
                raise Overloaded(
                    f"this client has {held:,} of {self._total:,} {self._name}, and {num:,} more are not granted now: "
                    "send fewer or smaller requests at a time"
                )
            self._held[client] = held + num
            self._num_free = free

    def release(self, client: str, num: int) -> None:
        """Count `num` fewer for the client."""
        with self._lock:
            self._num_free += num
            if left := self._held.pop(client, 0) - num:
                self._held[client] = left
