"""The clock of a pool is its Redis's, which every worker measures, so that all agree on deadlines."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.broker.broker import Broker
from shoal.errors import Unavailable

#: Time after which the clock is measured again, in seconds.
MEASURE_EVERY_S = 60.0

#: Round trips of a measurement, of which the shortest counts.
NUM_ROUND_TRIPS = 3

#: Largest error of a measurement that may be used, in seconds. Requests wait some ten seconds for their answer.
MAX_ERROR_S = 1.0


class _RoundTrip(NamedTuple):
    """The seconds that Redis took to tell its time, and those by which its clock is ahead of the monotonic one."""

    seconds: float
    ahead_s: float

    @classmethod
    def of(cls, sent_at: float, time: tuple[bytes, bytes], answered_at: float) -> "_RoundTrip":
        """Return the round trip with that answer to `TIME`: the middle of it is the moment of the answer."""
        redis_time = int(time[0]) + int(time[1]) / 1e6
        return cls(answered_at - sent_at, redis_time - (sent_at + answered_at) / 2)


class _RedisTime:
    """Redis's clock, computed from the monotonic clock of this process.

    The calendar clock of the machine is compared and not used: it may be wrong by any time, or be set meanwhile.
    `offset_s` is how far it is ahead of Redis's, in seconds, and `error_s` is how far both may be off, which is half of
    the round trip. They are 0.0 and None before the first measurement.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, calendar: Callable[[], float] = time.time):
        self.offset_s = 0.0
        self.error_s: float | None = None
        self._monotonic = monotonic
        self._calendar = calendar
        self._measured_at: float | None = None
        self._redis_ahead_s = 0.0  # of the monotonic clock

    @property
    def is_uncertain(self) -> bool:
        """Return True if the last measurement was not exact enough to be used."""
        return self.error_s is not None and self.error_s > MAX_ERROR_S

    def now(self) -> float:
        """Return Redis's time in Unix seconds. `refresh` must have been called before."""
        return self._monotonic() + self._redis_ahead_s

    def invalidate(self) -> None:
        """Have the next `refresh` measure again: after a failover the URL leads to a Redis on another machine."""
        self._measured_at = None

    def _take(self, round_trips: Sequence[_RoundTrip]) -> None:
        """Set the clock by the shortest of the round trips; raise Unavailable if that is too long."""
        shortest = min(round_trips)
        self.error_s = shortest.seconds / 2
        self.offset_s = self._calendar() - self._monotonic() - shortest.ahead_s
        if self.is_uncertain:
            raise Unavailable(
                f"Redis's time is known to within {self.error_s:.1f} s only, and deadlines need {MAX_ERROR_S:g} s: "
                "check the load of Redis and of the network between"
            )
        self._redis_ahead_s = shortest.ahead_s
        self._measured_at = self._monotonic()

    def _is_due(self) -> bool:
        return self._measured_at is None or self._monotonic() >= self._measured_at + MEASURE_EVERY_S


class Clock(_RedisTime):
    """Redis's clock for one thread, which measures it; others may read it."""

    def __init__(
        self,
        broker: Broker,
        monotonic: Callable[[], float] = time.monotonic,
        calendar: Callable[[], float] = time.time,
    ):
        super().__init__(monotonic, calendar)
        self._broker = broker

    def refresh(self) -> None:
        """Measure the clock if that was `MEASURE_EVERY_S` ago or never done; raises Unavailable as `measure` does."""
        if self._is_due():
            self.measure()

    def measure(self) -> None:
        """Ask Redis for its time, and take the middle of the round trip as the moment of the answer.

        Raises Unavailable if Redis does not answer, or takes too long for its time to be known within `MAX_ERROR_S`.
        """
        self._take([self._ask() for _ in range(NUM_ROUND_TRIPS)])

    def _ask(self) -> _RoundTrip:
        return _RoundTrip.of(self._monotonic(), self._broker.execute("TIME"), self._monotonic())
