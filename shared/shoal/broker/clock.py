"""The clock of a pool: every worker measures Redis's clock, so that all agree on deadlines."""

import time
from collections.abc import Callable

from shoal.broker.broker import Broker

#: Seconds after which the clock is measured again.
MEASURE_EVERY_S = 60.0

#: Number of round trips in a measurement. Only the shortest round trip counts.
NUM_ROUND_TRIPS = 3


class Clock:
    """Redis's clock, computed from the monotonic clock of this process. One thread measures it, others may read it.

    `offset_s` is the time by which this machine's calendar clock is ahead of Redis's clock. `error_s` is the largest
    possible error of `offset_s` and `now`, half of the round trip: at most a second, because a worker waits two seconds
    for an answer, unless the Redis URL has a longer `socket_timeout`. It is None before the first measurement.
    """

    def __init__(self, broker: Broker, monotonic: Callable[[], float] = time.monotonic):
        self.offset_s = 0.0
        self.error_s: float | None = None
        self._broker = broker
        self._monotonic = monotonic
        self._measured_at: float | None = None
        self._redis_ahead_s = 0.0  # Redis's clock minus the monotonic clock

    def now(self) -> float:
        """Return Redis's time in Unix seconds. Call `refresh` first."""
        return self._monotonic() + self._redis_ahead_s

    def refresh(self) -> None:
        """Measure the clock, unless it was measured in the last `MEASURE_EVERY_S` seconds. Raises Unavailable."""
        if self._measured_at is None or self._monotonic() >= self._measured_at + MEASURE_EVERY_S:
            self.measure()

    def measure(self) -> None:
        """Measure the clock. Raises Unavailable."""
        round_trips = []
        for _ in range(NUM_ROUND_TRIPS):
            sent_at = self._monotonic()
            seconds, microseconds = self._broker.execute("TIME")
            answered_at = self._monotonic()
            redis_time = int(seconds) + int(microseconds) / 1e6
            round_trips.append((answered_at - sent_at, redis_time - (sent_at + answered_at) / 2))
        shortest_s, self._redis_ahead_s = min(round_trips)
        self._measured_at = self._monotonic()
        self.error_s = shortest_s / 2
        self.offset_s = time.time() - self._measured_at - self._redis_ahead_s
