"""Whether Redis is away, as all connections of a process to it know together: one waits for it, and the others do not.

Without this every request would wait by itself until its time is up, and those behind it in a queue once more.
"""

import threading
import time
from typing import Any

import redis
from redis.connection import AbstractConnection
from redis.utils import SENTINEL

#: How often somebody may try whether Redis is back.
TRY_EVERY_S = 0.1

#: How long one who tries keeps the others from it, should nothing be heard of the attempt.
_TRY_WITHIN_S = 5.0


class CircuitBreaker:
    """What is known of one Redis. Thread-safe.

    Redis is away when a command is not answered in its time and no other one has been answered since it was sent, or
    when it took long to learn that no connection can be made. A single connection that breaks says nothing of Redis,
    and where connections are refused at once, nobody need be kept from trying.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = 0.0
        self._cause = ""
        self._next_try_at = 0.0
        self._tries = 0  # which thread does

    def check(self) -> None:
        """Raises redis.ConnectionError while Redis is away, but every `TRY_EVERY_S` lets one pass, to try."""
        if not self._cause:
            return
        with self._lock:
            now, thread = time.monotonic(), threading.get_ident()
            if self._cause and now < self._next_try_at and self._tries != thread:
                raise redis.ConnectionError(self._cause)
            self._tries = thread  # it may pass again: an idle connection that it got had been closed by Redis
            self._next_try_at = now + _TRY_WITHIN_S

    def fail(self, error: Exception, since: float, is_silence: bool) -> None:
        """Takes note of what failed; `is_silence` if it was for want of any answer since then, by the monotonic clock.

        Other failures begin no outage, but an attempt in one that fails so has not ended it.
        """
        with self._lock:
            if self._cause or (is_silence and self._answered_at <= since):
                self._cause = str(error)
                self._next_try_at = time.monotonic() + TRY_EVERY_S
                self._tries = 0

    def end(self) -> None:
        """Takes note of an answer."""
        self._answered_at = time.monotonic()
        if self._cause:
            with self._lock:
                self._cause = ""


class _Watched(AbstractConnection):
    """A connection that tells an outage what becomes of its commands, and is not used in one."""

    def __init__(self, *, outage: CircuitBreaker, **options: Any):
        self.outage = outage
        super().__init__(**options)

    def connect(self) -> None:
        """Connects unless it is connected; raises redis.ConnectionError at once while Redis is away."""
        self.outage.check()
        started = time.monotonic()
        try:
            super().connect()  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            self.outage.fail(error, started, time.monotonic() - started > TRY_EVERY_S)
            raise

    def read_response(self, *args: Any, timeout: Any = SENTINEL, **options: Any) -> Any:
        """The next answer, as redis-py reads it."""
        try:
            answer = super().read_response(*args, timeout=timeout, **options)
        except redis.ResponseError:
            self.outage.end()
            raise
        except redis.RedisError as error:
            waited_s = self.socket_timeout if timeout is SENTINEL else timeout
            self.outage.fail(error, time.monotonic() - (waited_s or 0.0), isinstance(error, redis.TimeoutError))
            raise
        self.outage.end()
        return answer


class _WatchedTcp(_Watched, redis.Connection):
    pass


class _WatchedTls(_Watched, redis.SSLConnection):
    def on_connect_check_health(self, check_health: bool = True) -> None:
        """What redis-py does, and one more round trip: a server's TLS tickets come before it, and not as if late."""
        super().on_connect_check_health(check_health)
        self.send_command("PING", check_health=False)  # type: ignore[no-untyped-call]
        self.read_response()


class _WatchedUnix(_Watched, redis.UnixDomainSocketConnection):
    pass


#: What to use in place of each of redis-py's kinds of connection; these take an `outage`.
WATCHED = {
    redis.Connection: _WatchedTcp,
    redis.SSLConnection: _WatchedTls,
    redis.UnixDomainSocketConnection: _WatchedUnix,
}
