"""A connection to Redis for an event loop. It sends commands at once, and Redis answers them in their order.

redis-py opens the connection. After that redis-py's streams are not used: they need ten times the processor time.
"""

import asyncio
import select
import time
from collections import deque
from copy import copy
from typing import Any, cast

import redis
from hiredis import Reader
from redis.asyncio import connection as asyncio_connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shoal.broker.circuit_breaker import CircuitBreaker
from shoal.broker.connections import ANSWER_S, read_url, readable_url, refused, sending_s
from shoal.broker.primary import Primary

#: Seconds for which an answer may still be read after its time limit. An event loop that other work has delayed notices
#: the end of the limit before it reads an answer that came in time.
LATE_S = 0.05

#: redis-py's classes of connections for threads, each with the class of the same kind for an event loop.
_CLASSES: dict[type, type[asyncio_connection.AbstractConnection]] = {
    redis.Connection: asyncio_connection.Connection,
    redis.SSLConnection: asyncio_connection.SSLConnection,
    redis.UnixDomainSocketConnection: asyncio_connection.UnixDomainSocketConnection,
}

_NO_ANSWER = object()


class _Question:
    """Commands that were sent together, with the answers that have come and a future for all answers."""

    __slots__ = ("answers", "asked_at", "limit_s", "num_answers", "outcome")

    def __init__(self, num_answers: int, limit_s: float, asked_at: float, outcome: asyncio.Future[list[Any]]):
        self.answers: list[Any] = []
        self.num_answers = num_answers
        self.limit_s = limit_s
        self.asked_at = asked_at
        self.outcome = outcome


class AsyncConnection(asyncio.Protocol):
    """An open connection for several tasks. It reports answers and failures to a circuit breaker.

    If Redis does not answer, is unreachable or is a replica, all waiting tasks get the error, and the connection is
    closed.
    """

    def __init__(self, writer: asyncio.StreamWriter, breaker: CircuitBreaker, answer_s: float):
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept, because its deletion would close the transport
        self._transport = writer.transport
        self._breaker = breaker
        self._answer_s = answer_s
        self._reader = Reader(
            protocolError=redis.InvalidResponse,
            replyError=asyncio_connection.DefaultParser.parse_error,
            notEnoughData=_NO_ANSWER,
        )
        self._questions: deque[_Question] = deque()
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._transport.set_protocol(self)

    def ask(self, packed: bytes, num_answers: int, block_s: float = 0.0) -> asyncio.Future[list[Any]]:
        """Send packed commands, which together may block for `block_s`; return the future of their answers."""
        limit_s = self._answer_s + block_s + sending_s(len(packed))
        question = _Question(num_answers, limit_s, self._loop.time(), self._loop.create_future())
        self._questions.append(question)
        self._transport.write(packed)
        if self._timer is None or self._timer.when() > question.asked_at + limit_s:
            self._look_after(limit_s)
        return question.outcome

    def is_open(self) -> bool:
        """Return False if the connection has certainly ended. If an idle connection is readable, Redis closed it."""
        if self._transport.is_closing():
            return False
        if self._questions:
            return True
        poll = select.poll()  # the event loop may not have noticed the end yet
        poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return not poll.poll(0)

    def is_idle(self) -> bool:
        """Return True if no task waits for an answer."""
        return not self._questions

    def close(self, error: redis.RedisError | None = None) -> None:
        """Close the connection. Tasks that wait for answers get the error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()
        while self._questions:
            outcome = self._questions.popleft().outcome
            if not outcome.done():  # a copy for each task, because each adds its own traceback
                outcome.set_exception(copy(error) if error else redis.ConnectionError("the connection was closed"))

    # The protocol of the event loop

    def data_received(self, data: bytes) -> None:
        """Read bytes from Redis, and give each complete answer to the oldest question."""
        self._heard_at, self._is_late = self._loop.time(), False
        self._breaker.record_success()
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets(False)) is not _NO_ANSWER:
                if isinstance(answer, redis.RedisError):
                    if not isinstance(answer, redis.ResponseError):
                        raise answer
                    answer = refused(answer)
                if not self._questions:
                    raise redis.ConnectionError("Redis answered what was not asked")
                question = self._questions[0]
                question.answers.append(answer)
                if len(question.answers) == question.num_answers:
                    self._questions.popleft()
                    if not question.outcome.done():  # its task may have been cancelled
                        question.outcome.set_result(question.answers)
        except redis.RedisError as error:  # a replica has answered, or the bytes are no answer of Redis
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all open questions, because the connection has ended."""
        if self._questions:
            self._fail(redis.ConnectionError(str(error or "Connection closed by server.")))

    # Time limits

    def _look_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, seconds), self._look)

    def _look(self) -> None:
        """Fail all questions if Redis has been silent for longer than the oldest question allows."""
        self._timer = None
        if not self._questions:
            return
        oldest = self._questions[0]
        left_s = max(oldest.asked_at, self._heard_at) + oldest.limit_s - self._loop.time()
        if left_s > 0:
            self._look_after(left_s)
        elif not self._is_late:
            self._is_late = True
            self._look_after(LATE_S)
        else:
            error = redis.TimeoutError("Timeout reading from socket")
            self._breaker.record_failure(error, time.monotonic() - oldest.limit_s, is_silence=True)
            self.close(error)

    def _fail(self, error: redis.RedisError) -> None:
        self._breaker.record_failure(error, time.monotonic(), is_silence=False)
        self.close(error)


class ConnectionMaker:
    """A maker of connections to the Redis at a URL, which share a circuit breaker. Raises Unavailable for a bad URL."""

    def __init__(self, url: str, answer_s: float = ANSWER_S):
        self.breaker = CircuitBreaker(lambda: id(asyncio.current_task()))
        with readable_url():
            self._options = read_url(url, answer_s) | {"retry": Retry(NoBackoff(), 0)}
            self.max_connections = int(self._options.pop("max_connections"))
            self._class = _CLASSES[self._options.pop("connection_class")]
            self._answer_s = float(self._options["socket_timeout"])
            self.primary: Primary | None = self._options.pop("primary")
            self._class(**self._options)  # raises an error for unknown options

    async def open(self) -> AsyncConnection:
        """Return a new connection. Raises redis.RedisError, at once while Redis is away."""
        self.breaker.check()
        started = time.monotonic()
        opened: Any = self._class(**self._options)
        try:
            if self.primary:
                opened.host, opened.port = await asyncio.to_thread(self.primary.find)
            await opened.connect()
            await opened.send_command("PING", check_health=False)
            await opened.read_response()  # raises an error if Redis allows no more clients
        except BaseException as error:
            await opened.disconnect(nowait=True)
            if isinstance(error, redis.RedisError):
                self.breaker.record_no_connection(error, started)
                if self.primary:
                    self.primary.note_silence((opened.host, opened.port))
            raise
        writer = cast(asyncio.StreamWriter, opened._writer)
        opened._reader = opened._writer = None  # otherwise the deletion of `opened` would close them
        return AsyncConnection(writer, self.breaker, self._answer_s)
