"""A connection to Redis for an event loop: redis-py's, with time limits of its own and a circuit breaker."""

import asyncio
import math
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.asyncio import connection as asyncio_connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shoal.broker.circuit_breaker import CircuitBreaker
from shoal.broker.connections import ANSWER_S, SMALL_BYTES, pieces, read_url, readable_url, refused, sending_s

#: Seconds for which an answer may still be read after its time limit: if other work has held up the event loop, the
#: limit is noticed before the answer that came meanwhile.
LATE_S = 0.05


class _CountingParser(asyncio_connection.DefaultParser):  # type: ignore[misc, valid-type]
    """redis-py's parser, with the number of pieces that it has read."""

    num_pieces = 0

    async def read_from_socket(self) -> Any:
        read = await super().read_from_socket()
        self.num_pieces += 1
        return read


class AsyncConnection(asyncio_connection.AbstractConnection):
    """A connection that reports its outcomes to a circuit breaker, and does not open while the breaker is open."""

    def __init__(self, *, breaker: CircuitBreaker, socket_timeout: float, **options: Any):
        self.breaker = breaker
        self.answer_s = socket_timeout
        super().__init__(parser_class=_CountingParser, socket_timeout=None, **options)

    async def connect(self) -> None:
        """Connect unless connected; raise redis.ConnectionError at once while Redis is away."""
        self.breaker.check()
        started = time.monotonic()
        try:
            with limited("Timeout connecting to server"):
                async with asyncio.timeout((self.socket_connect_timeout or 0.0) + self.answer_s):
                    await super().connect()  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            self.breaker.record_no_connection(error, started)
            raise

    async def ask(self, packed: Sequence[bytes], num_answers: int, block_s: float) -> list[Any]:
        """Send packed commands, which may block for `block_s` altogether, and return their answers.

        An error that Redis answers is one of the answers. Raises redis.RedisError when they do not come.
        """
        num_bytes = sum(map(len, packed))
        if num_bytes <= SMALL_BYTES and self._writer is not None:
            self._writer.writelines(packed)  # the time for the answer is time enough to send it
        else:
            await self._send_pieces(packed)
        limit_s = self.answer_s + block_s + sending_s(num_bytes)
        return await self._answers(num_answers, limit_s)

    async def _send_pieces(self, packed: Sequence[bytes]) -> None:
        for piece in pieces(packed, self.answer_s):
            with limited("Timeout writing to socket"):
                async with asyncio.timeout(self.answer_s):
                    await self.send_packed_command([piece], check_health=False)  # type: ignore[list-item]

    async def _answers(self, number: int, limit_s: float) -> list[Any]:
        """Return the next answers; each piece of them may take `limit_s`."""
        answers: list[Any] = []
        is_late = False
        while len(answers) < number:
            num_pieces = self._num_pieces()
            try:
                async with asyncio.timeout(LATE_S if is_late else limit_s):
                    while len(answers) < number:
                        answers.append(await self._answer(limit_s))
            except TimeoutError:
                is_silent = self._num_pieces() == num_pieces
                if is_late and is_silent:
                    error = redis.TimeoutError("Timeout reading from socket")
                    self.breaker.record_failure(error, time.monotonic() - limit_s, True)
                    raise error from None
                is_late = is_silent
        return answers

    async def _answer(self, limit_s: float) -> Any:
        try:
            answer = await self.read_response(timeout=math.inf, disconnect_on_error=False)
        except redis.ResponseError as error:
            self.breaker.record_success()
            return refused(error)
        except redis.RedisError as error:
            self.breaker.record_failure(error, time.monotonic() - limit_s, False)
            raise
        self.breaker.record_success()
        return answer

    def _num_pieces(self) -> int:
        return getattr(self._parser, "num_pieces", 0)

    def is_open(self) -> bool:
        """Return True as far as can be told: Redis may have closed an idle connection, and says nothing on one."""
        if self._reader is None or self._writer is None or self._reader.at_eof():
            return False
        poll = select.poll()  # the loop may not have looked since
        poll.register(self._writer.get_extra_info("socket"), select.POLLIN)
        return not poll.poll(0)


@contextmanager
def limited(message: str) -> Iterator[None]:
    """Raise redis.TimeoutError with that message where a time limit is reached."""
    try:
        yield
    except TimeoutError:
        raise redis.TimeoutError(message) from None


class _WatchedTcp(AsyncConnection, asyncio_connection.Connection):
    pass


class _WatchedTls(AsyncConnection, asyncio_connection.SSLConnection):
    pass


class _WatchedUnix(AsyncConnection, asyncio_connection.UnixDomainSocketConnection):
    pass


#: The class to use in place of each of redis-py's kinds of connection for threads.
_CLASSES: dict[type, type[AsyncConnection]] = {
    redis.Connection: _WatchedTcp,
    redis.SSLConnection: _WatchedTls,
    redis.UnixDomainSocketConnection: _WatchedUnix,
}


class ConnectionMaker:
    """The URL of a Redis as the options of its connections, which share a circuit breaker.

    `max_connections` is the number that the URL allows. Raises Unavailable for a URL that cannot be read.
    """

    def __init__(self, url: str, answer_s: float = ANSWER_S):
        self.breaker = CircuitBreaker(_task)
        with readable_url():
            self._options = read_url(url, answer_s) | {"retry": Retry(NoBackoff(), 0), "breaker": self.breaker}
            self.max_connections = int(self._options.pop("max_connections"))
            self._class = _CLASSES[self._options.pop("connection_class")]
            self.make()  # refuses options that it does not know

    def make(self) -> AsyncConnection:
        """Return a new connection, which is not open yet."""
        return self._class(**self._options)


def _task() -> int:
    return id(asyncio.current_task())
