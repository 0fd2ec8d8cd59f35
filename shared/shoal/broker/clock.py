"""The clock of a pool: that of its Redis, which every process measures, so that all agree on deadlines."""

import asyncio
import time
from collections.abc import Callable
from threading import RLock

from shoal.blocking import run_now
from shoal.broker.broker import Broker
from shoal.broker.commands import BlockingCommands, Commands
from shoal.errors import Unavailable

#: Time after which the clock is measured again, in seconds.
MEASURE_EVERY_S = 60.0

#: Round trips of a measurement, of which the shortest counts.
NUM_ROUND_TRIPS = 3

#: Largest error of a measurement that may be used, in seconds. Requests wait some ten seconds for their answer.
MAX_ERROR_S = 1.0


class _RedisTime:
    """Redis's clock, computed from the monotonic clock of this process.

    The calendar clock of the machine is compared and not used: it may be wrong by any time, or be set meanwhile.
    `offset_s` is how far it is ahead of Redis's, in seconds, and `error_s` is how far both may be off, which is half of
    the round trip. They are 0.0 and None before the first measurement.
    """

    def __init__(
        self,
        commands: Commands,
        monotonic: Callable[[], float] = time.monotonic,
        calendar: Callable[[], float] = time.time,
    ):
        self.offset_s = 0.0
        self.error_s: float | None = None
        self._commands = commands
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

    async def _measure(self) -> None:
        round_trip_s, ahead_s = min([await self._ask() for _ in range(NUM_ROUND_TRIPS)])
        self.error_s = round_trip_s / 2
        self.offset_s = self._calendar() - self._monotonic() - ahead_s
        if self.is_uncertain:
            raise Unavailable(
                f"Redis's time is known to within {self.error_s:.1f} s only, and deadlines need {MAX_ERROR_S:g} s: "
                "check the load of Redis and of the network between"
            )
        self._redis_ahead_s = ahead_s
        self._measured_at = self._monotonic()

    async def _ask(self) -> tuple[float, float]:
        """Return the seconds of a round trip, and those by which Redis's clock is ahead of the monotonic one."""
        sent_at = self._monotonic()
        seconds, microseconds = await self._commands.execute("TIME")
        answered_at = self._monotonic()
        return answered_at - sent_at, int(seconds) + int(microseconds) / 1e6 - (sent_at + answered_at) / 2

    def _is_due(self) -> bool:
        measured_at = self._measured_at  # which another thread may change meanwhile
        return measured_at is None or self._monotonic() >= measured_at + MEASURE_EVERY_S


class Clock(_RedisTime):
    """Redis's clock for threads. Thread-safe."""

    def __init__(
        self,
        broker: Broker,
        monotonic: Callable[[], float] = time.monotonic,
        calendar: Callable[[], float] = time.time,
    ):
        super().__init__(BlockingCommands(broker), monotonic, calendar)
        self._broker = broker
        self._lock = RLock()

    def refresh(self) -> None:
        """Measure the clock if that was `MEASURE_EVERY_S` ago or never done; raises Unavailable as `measure` does.

        While one thread measures again, others use the measurement before. While Redis is away they fail at once.
        """
        if self._measured_at is None:
            self._broker.check()  # another thread may hold the lock until its attempt has failed
        if self._is_due() and self._lock.acquire(blocking=self._measured_at is None):
            try:
                if self._is_due():
                    self.measure()
            finally:
                self._lock.release()

    def measure(self) -> None:
        """Ask Redis for its time, and take the middle of the round trip as the moment of the answer.

        Raises Unavailable if Redis does not answer, or takes too long for its time to be known within `MAX_ERROR_S`.
        """
        with self._lock:
            run_now(self._measure())


class AsyncClock(_RedisTime):
    """Redis's clock for the tasks of an event loop."""

    def __init__(self, commands: Commands):
        super().__init__(commands)
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Measure as `Clock.refresh` does; while one task measures again, others use the measurement before."""
        if self._is_due() and (self._measured_at is None or not self._lock.locked()):
            async with self._lock:
                if self._is_due():
                    await self._measure()
