"""Turns of threads that run Python: a few at a time, clients in rotation, and the threads of each client in order.

Only one thread can run Python at a time. Many threads that are woken together would all wait for the interpreter's
lock, and so would any other thread behind them. With turns, only those that have one wait for it.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: If no thread got a turn for this time, in seconds, one gets a turn although none is free: the threads that have one
#: wait for something else than a reply.
PATIENCE_S = 0.02


class Turns:
    """Turns, of which threads have `number` at a time. Thread-safe."""

    def __init__(self, number: int):
        self._num_free = number
        self._waiting: OrderedDict[str, deque[threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self._given_at = 0.0

    @contextmanager
    def turn(self, client: str) -> Iterator[None]:
        """Have a turn, as one of the threads of a client. It is given back while the thread waits for a reply.

        `end_own_turn` ends it earlier.
        """
        turn = Turn(self, client)
        turn.take()
        _own.turn = turn
        try:
            yield
        finally:
            end_own_turn()

    def _enter(self, client: str, waiter: threading.Lock) -> None:
        """Release the lock, on which a thread waits, when it is its turn."""
        with self._lock:
            self._waiting.setdefault(client, deque()).append(waiter)
            if self._num_free > 0:
                self._give()
        self._relieve()

    def _give_back(self) -> None:
        with self._lock:
            self._num_free += 1
            if self._waiting and self._num_free > 0:
                self._give()

    def _relieve(self) -> None:
        """Give one more turn if none was given for long."""
        if time.monotonic() - self._given_at > PATIENCE_S:
            with self._lock:
                if self._waiting:
                    self._give()

    def _give(self) -> None:
        client, waiters = self._waiting.popitem(last=False)
        waiter = waiters.popleft()
        if waiters:
            self._waiting[client] = waiters
        self._num_free -= 1
        self._given_at = time.monotonic()
        waiter.release()


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of this thread, for a client."""

    turns: Turns
    client: str

    def take(self) -> None:
        """Wait for the turn."""
        waiter = threading.Lock()
        waiter.acquire()
        self.take_later(waiter)
        while not waiter.acquire(timeout=PATIENCE_S):
            self.turns._relieve()

    def take_later(self, waiter: threading.Lock) -> None:
        """Have a thread that waits for the lock go on when it is its turn. Any thread may call this."""
        self.turns._enter(self.client, waiter)

    def give_back(self) -> None:
        """Let another thread have the turn."""
        self.turns._give_back()


class _Own(threading.local):
    """The turn that this thread has, if it has one."""

    turn: Turn | None = None


_own = _Own()


def own_turn() -> Turn | None:
    """Return the turn that this thread has."""
    return _own.turn


def end_own_turn() -> None:
    """Give back the turn of this thread, if it has one, for good: it goes on to wait for something else than a reply.

    A thread whose reply has come waits for a turn without a limit, so none may be kept for as long as a client likes.
    """
    if turn := _own.turn:
        _own.turn = None
        turn.give_back()
