"""A circuit breaker: while Redis is away, one caller at a time tries to reach it, and the others fail at once."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.connection import AbstractConnection
from redis.utils import SENTINEL

from shoal.broker.sentinel_cluster import Primary

#: Seconds between two attempts while Redis is away.
TRY_EVERY_S = 0.1

#: Seconds after which another caller may try, if the caller that is trying has not reported an outcome.
TRY_WITHIN_S = 1.0


class CircuitBreaker:
    """The state of one Redis: the breaker is closed while Redis answers, and open while Redis is away. Thread-safe.

    The breaker opens if a command gets no answer in its time and no other command was answered meanwhile, or if Redis
    does not accept a connection in time. It stays closed if a connection breaks or is refused, because such errors come
    at once. It also stays closed during a large command, for which Redis may need longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = 0.0
        self._cause = ""
        self._next_try_at = 0.0
        self._num_large = 0

    def check(self) -> None:
        """Raise redis.ConnectionError while Redis is away, but let one caller try every `TRY_EVERY_S`."""
        if not self._cause:
            return
        with self._lock:
            now = time.monotonic()
            if self._cause and now < self._next_try_at:
                raise redis.ConnectionError(self._cause)
            self._next_try_at = now + TRY_WITHIN_S

    def record_failure(self, error: Exception, since: float, is_silence: bool) -> None:
        """Record a failed command. `is_silence` is True if no answer came since the monotonic time `since`.

        Only silence opens the breaker. Any failure keeps an open breaker open.
        """
        with self._lock:
            if self._cause or (is_silence and self._answered_at <= since and not self._num_large):
                self._cause = str(error)
                self._next_try_at = time.monotonic() + TRY_EVERY_S

    @contextmanager
    def large(self) -> Iterator[None]:
        """Keep the breaker closed while the context sends a large command."""
        with self._lock:
            self._num_large += 1
        since, silence = time.monotonic(), None
        try:
            yield
        except redis.TimeoutError as error:
            silence = error
            raise
        finally:
            with self._lock:
                self._num_large -= 1
            if silence:
                self.record_failure(silence, since, is_silence=True)

    def record_no_connection(self, error: redis.RedisError, since: float) -> None:
        """Record a failed attempt, begun at `since`, to open a connection. A slow failure counts as silence."""
        is_refused = isinstance(error.__context__, ConnectionRefusedError)  # a refusal counts as an answer
        self.record_failure(error, since, not is_refused and time.monotonic() - since > TRY_EVERY_S)

    def record_success(self) -> None:
        """Record an answer, which closes the breaker."""
        self._answered_at = time.monotonic()
        if self._cause:
            with self._lock:
                self._cause = ""


class _Watched(AbstractConnection):
    """A connection that reports answers and failures to a circuit breaker."""

    def __init__(self, *, breaker: CircuitBreaker, primary: Primary | None = None, **options: Any):
        self.breaker = breaker
        self._primary = primary
        super().__init__(**options)

    def connect(self) -> None:
        """Connect to the primary, unless the connection is open."""
        started = time.monotonic()
        try:
            if self._primary and self._sock is None:
                self.host, self.port = self._primary.find()
            super().connect()  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            self.breaker.record_no_connection(error, started)
            if self._primary:
                self._primary.note_silence((self.host, self.port))
            raise

    def read_response(self, *args: Any, timeout: Any = SENTINEL, **options: Any) -> Any:
        """Return the next answer, read by redis-py."""
        try:
            answer = super().read_response(*args, timeout=timeout, **options)
        except redis.ResponseError:
            self.breaker.record_success()
            raise
        except redis.RedisError as error:
            waited_s = self.socket_timeout if timeout is SENTINEL else timeout
            sent_at = time.monotonic() - (waited_s or 0.0)
            self.breaker.record_failure(error, sent_at, isinstance(error, redis.TimeoutError))
            raise
        self.breaker.record_success()
        return answer


class _WatchedTcp(_Watched, redis.Connection):
    pass


class _WatchedTls(_Watched, redis.SSLConnection):
    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Check like redis-py, then send a PING to read the server's TLS tickets, which could look like an answer."""
        super().on_connect_check_health(check_health)
        self.send_command("PING", check_health=False)  # type: ignore[no-untyped-call]
        self.read_response()


class _WatchedUnix(_Watched, redis.UnixDomainSocketConnection):
    pass


#: A map from redis-py's connection classes to subclasses that report to the circuit breaker `breaker`.
WATCHED = {
    redis.Connection: _WatchedTcp,
    redis.SSLConnection: _WatchedTls,
    redis.UnixDomainSocketConnection: _WatchedUnix,
}
