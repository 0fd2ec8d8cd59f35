"""How many threads read from Redis over one connection: in turns, each for all who wait."""

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice

from shoal.broker.connections import Connections, checked, translated
from shoal.errors import ShoalError

#: Most keys read in one command, so that a long list does not hold Redis up.
KEYS_AT_ONCE = 1_024


class Turns:
    """Reads for many threads with one command at a time: what comes while one is under way goes together with the next.

    Whoever finds nobody reading reads at once, and hands over to one of those who have come meanwhile. So a lone thread
    loses no time, many need fewer round trips than one each, and there is no thread that does nothing else.
    """

    def __init__(self, connections: Connections):
        self._connections = connections
        self._lock = threading.Lock()
        self._is_reading = False
        self._waiting: deque[_Ask] = deque()

    def read(self, keys: list[str]) -> list[bytes | None]:
        """The values of the keys.

        Raises Unavailable.
        """
        ask = _Ask(keys)
        with self._lock:
            waits, self._is_reading = self._is_reading, True
            if waits:
                self._waiting.append(ask)
        if waits:
            ask.woken.acquire()
        if ask.outcome is None:
            self._lead(ask)
        if isinstance(ask.outcome, list):
            return ask.outcome
        raise ask.outcome or AssertionError

    def _lead(self, ask: "_Ask") -> None:
        asks = self._gather(ask)
        try:
            self._answer(asks)
        finally:  # were this thread interrupted, those left without an outcome would read for themselves
            for other in asks[1:]:
                other.woken.release()
            self._hand_over()

    def _gather(self, ask: "_Ask") -> "list[_Ask]":
        asks, num_keys = [ask], len(ask.keys)
        with self._lock:
            while self._waiting and (num_keys := num_keys + len(self._waiting[0].keys)) <= KEYS_AT_ONCE:
                asks.append(self._waiting.popleft())
        return asks

    def _answer(self, asks: "Sequence[_Ask]") -> None:
        try:
            with translated():
                (found,) = self._connections.ask(("MGET", *(key for ask in asks for key in ask.keys)))
                values = iter(checked(found))
            for ask in asks:
                ask.outcome = list(islice(values, len(ask.keys)))
        except ShoalError as error:
            for ask in asks:
                ask.outcome = error

    def _hand_over(self) -> None:
        with self._lock:
            self._is_reading = bool(self._waiting)
            if self._waiting:
                self._waiting.popleft().woken.release()


class _Ask:
    """What one thread wants to read, and what came of it."""

    __slots__ = ("keys", "outcome", "woken")

    def __init__(self, keys: list[str]):
        self.keys = keys
        self.outcome: list[bytes | None] | ShoalError | None = None
        self.woken = threading.Lock()
        self.woken.acquire()
