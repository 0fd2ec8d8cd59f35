"""The clock of a pool: every worker measures Redis's clock, so that all agree on deadlines."""

import time
from collections.abc import Callable

from shoal.broker.broker import Broker


class Clock:
    """Redis's clock, computed from the monotonic clock of this process. One thread measures it, others may read it.

    `offset_s` is the time by which this machine's calendar clock is ahead of Redis's clock. `error_s` is the largest
    possible error of `offset_s` and `now`: half of the round trip, or None before the first measurement. A worker waits
    two seconds for an answer, so the error is at most a second, unless the Redis URL has a longer `socket_timeout`.
    """

    def __init__(self, broker: Broker, monotonic: Callable[[], float] = time.monotonic):
        self.offset_s = 0.0
        self.error_s: float | None = None
        self._broker = broker
        self._monotonic = monotonic
        self._ahead_s = 0.0  # Redis's clock minus the monotonic clock

    def now(self) -> float:
        """Return Redis's time in Unix seconds. Call `measure` first."""
        return self._monotonic() + self._ahead_s

    def measure(self) -> None:
        """Measure the clock. A result with a larger error is ignored unless the clock changed. Raises Unavailable."""
        sent_at = self._monotonic()
        seconds, microseconds = self._broker.execute("TIME")
        answered_at = self._monotonic()
        error_s = (answered_at - sent_at) / 2
        ahead_s = int(seconds) + int(microseconds) / 1e6 - (sent_at + answered_at) / 2
        if self.error_s is None or error_s <= self.error_s or abs(ahead_s - self._ahead_s) > error_s + self.error_s:
            self._ahead_s, self.error_s = ahead_s, error_s
        self.offset_s = time.time() - self._monotonic() - self._ahead_s
