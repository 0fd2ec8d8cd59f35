"""The broker for an event loop, and its connections. Small commands of all tasks go to Redis over one connection.

redis-py opens connections. Its streams are not used after that, because they need ten times the processor time.
"""

import asyncio
import select
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, NamedTuple, cast

import redis
from hiredis import Reader, pack_command
from redis.asyncio import connection as asyncio_connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError

from shoal.broker.broker import Script, checked, translate
from shoal.broker.circuit_breaker import CircuitBreaker
from shoal.broker.connections import (
    ANSWER_S,
    LARGE_BYTES,
    MAX_LARGE_WAIT_S,
    MAX_MOVES,
    MAX_WAIT_S,
    MIN_BYTES_PER_S,
    SMALL_BYTES,
    all_in_use,
    read_url,
    readable_url,
    refused,
)
from shoal.broker.sentinel_cluster import Primary
from shoal.contract import wire
from shoal.errors import ShoalError

#: Seconds for which an answer may still be read after its time limit. An event loop with much other work may run the
#: timeout before it reads an answer that came in time.
LATE_S = 0.05

#: A map from redis-py's connection classes for threads to its classes for an event loop.
_CLASSES: dict[type, type[asyncio_connection.AbstractConnection]] = {
    redis.Connection: asyncio_connection.Connection,
    redis.SSLConnection: asyncio_connection.SSLConnection,
    redis.UnixDomainSocketConnection: asyncio_connection.UnixDomainSocketConnection,
}

_NO_ANSWER = object()


class _Question(NamedTuple):
    """Commands that were sent together: the answers so far, and a future that gets the list of all answers."""

    answers: list[Any]
    num_answers: int
    limit_s: float
    asked_at: float
    outcome: asyncio.Future[list[Any]]


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
        limit_s = self._answer_s + block_s
        if len(packed) > SMALL_BYTES:
            limit_s += len(packed) / MIN_BYTES_PER_S
        question = _Question([], num_answers, limit_s, self._loop.time(), self._loop.create_future())
        self._questions.append(question)
        self._transport.write(packed)
        if self._timer is None or self._timer.when() > question.asked_at + limit_s:
            self._check_in(limit_s)
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
                    raise redis.ConnectionError("Redis sent an answer without a question")
                question = self._questions[0]
                question.answers.append(answer)
                if len(question.answers) == question.num_answers:
                    self._questions.popleft()
                    if not question.outcome.done():  # the task that asked may have been cancelled
                        question.outcome.set_result(question.answers)
        except redis.RedisError as error:  # a replica has answered, or the bytes are not valid in Redis's protocol
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all open questions, because the connection has ended."""
        if self._questions:
            self._fail(redis.ConnectionError(str(error or "Connection closed by server.")))

    # Time limits

    def _check_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, seconds), self._check_silence)

    def _check_silence(self) -> None:
        """Fail all questions if Redis has been silent for longer than the oldest question allows."""
        self._timer = None
        if not self._questions:
            return
        oldest = self._questions[0]
        left_s = max(oldest.asked_at, self._heard_at) + oldest.limit_s - self._loop.time()
        if left_s > 0:
            self._check_in(left_s)
        elif not self._is_late:
            self._is_late = True
            self._check_in(LATE_S)
        else:
            error = redis.TimeoutError("Timeout reading from socket")
            self._breaker.record_failure(error, time.monotonic() - oldest.limit_s, is_silence=True)
            self.close(error)

    def _fail(self, error: redis.RedisError) -> None:
        self._breaker.record_failure(error, time.monotonic(), is_silence=False)
        self.close(error)


class ConnectionMaker:
    """A maker of connections to one Redis, which share a circuit breaker. Raises Unavailable for a bad URL."""

    def __init__(self, url: str, answer_s: float = ANSWER_S):
        self.breaker = CircuitBreaker()
        with readable_url():
            self._options = read_url(url, answer_s) | {"retry": Retry(NoBackoff(), 0)}
            self.max_connections = int(self._options.pop("max_connections"))
            self._class = _CLASSES[self._options.pop("connection_class")]
            self._answer_s = float(self._options["socket_timeout"])
            self.primary: Primary | None = self._options.pop("primary")
            self._class(**self._options)  # raises an error for unknown options

    async def open(self) -> AsyncConnection:
        """Return a new connection. Raises redis.RedisError."""
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


class AsyncBroker:
    """A client of Redis for the tasks of one event loop. It connects on first use.

    Small commands of all tasks go over one connection. A large or blocking command has a connection for itself. Every
    method raises Overloaded if Redis is out of memory, and Unavailable if Redis does not answer or refuses a command.
    """

    def __init__(self, maker: ConnectionMaker):
        self._maker = maker
        self._shared: AsyncConnection | None = None
        self._opening = asyncio.Lock()
        self._not_opened: redis.RedisError | None = None
        self._idle: deque[AsyncConnection] = deque()
        self._busy: set[AsyncConnection] = set()
        self._free = asyncio.Semaphore(maker.max_connections)
        self._large = asyncio.Semaphore(1)
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections. Commands that wait for their answers fail."""
        self._is_closed = True
        for connection in self._busy:
            connection.close()
        if self._shared is not None:
            self._shared.close()
        self._drop_idle()
        await asyncio.sleep(0)  # lets the event loop end the transports

    async def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to one command, which may block in Redis for `block_s`."""
        return (await self.pipeline(command, block_s=block_s))[0]

    async def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Send commands in one round trip; return their answers, or raise the first error among them."""
        answers = await self._ask(commands, block_s)
        try:
            return checked(answers)
        except redis.RedisError as error:
            raise translate(error) from error

    async def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a script."""
        (outcome,) = await self.run_many(script, keys, [arguments])
        if isinstance(outcome, ShoalError):
            raise outcome
        return outcome

    async def run_many(self, script: Script, keys: Sequence[str], calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Run the script once for each call's arguments, in one round trip; return the result or error of each call."""
        commands = [("EVALSHA", script.digest, len(keys), *keys, wire.pack_arguments(call)) for call in calls]
        answers = await self._ask(commands)
        if unknown := [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]:
            texts = [("EVAL", script.text, *commands[n][2:]) for n in unknown]  # a new Redis lacks the script
            for n, answer in zip(unknown, await self._ask(texts), strict=True):
                answers[n] = answer
        return [
            translate(answer) if isinstance(answer, redis.ResponseError) else wire.unpack_result(answer)
            for answer in answers
        ]

    async def _ask(self, commands: Sequence[Sequence[Any]], block_s: float = 0.0) -> list[Any]:
        """Return the answers to the commands. An answer may be an error of Redis. Raises Unavailable."""
        data, num_answers = b"".join([pack_command(tuple(command)) for command in commands]), len(commands)
        for num_moves in range(MAX_MOVES + 1 if commands else 0):
            try:
                if len(data) > LARGE_BYTES:
                    async with _held(self._large, MAX_LARGE_WAIT_S):
                        with self._maker.breaker.large():
                            return await self._ask_alone(data, num_answers, block_s)
                if block_s or len(data) > SMALL_BYTES:
                    return await self._ask_alone(data, num_answers, block_s)
                self._maker.breaker.check()
                connection = self._shared
                if connection is None or not connection.is_open():
                    connection = await self._open_shared()
                return await connection.ask(data, num_answers)
            except redis.RedisError as error:
                self._drop_if_moved(error)
                if not isinstance(error, MovedError) or num_moves == MAX_MOVES:
                    raise translate(_closed() if self._is_closed else error) from error
        return []

    def _drop_if_moved(self, error: redis.RedisError) -> None:
        """Drop idle connections if the error says that another Redis is the primary now."""
        if isinstance(error, MovedError) and self._maker.primary:  # the commands have had no effect
            self._maker.primary.note_move(error)
        if isinstance(error, MovedError | redis.ReadOnlyError):
            self._drop_idle()

    async def _ask_alone(self, data: bytes, num_answers: int, block_s: float) -> list[Any]:
        """Ask over a connection that no other task uses at the same time."""
        async with _held(self._free, MAX_WAIT_S):
            self._maker.breaker.check()
            while self._idle and not self._idle[-1].is_open():
                self._idle.pop().close()
            connection = self._idle.pop() if self._idle else await self._open()
            self._busy.add(connection)
            try:
                answers = await connection.ask(data, num_answers, block_s)
            except BaseException:
                connection.close()  # late answers would be taken for answers to the next commands
                raise
            finally:
                self._busy.discard(connection)
            self._idle.append(connection)
            return answers

    async def _open_shared(self) -> AsyncConnection:
        """Return the shared connection. If one task fails to open it, all tasks that wait for it get the error."""
        earlier = self._not_opened
        async with self._opening:
            if self._not_opened and self._not_opened is not earlier:
                raise copy(self._not_opened)
            if self._shared is None or not self._shared.is_open():
                try:
                    self._shared = await self._open()
                except redis.RedisError as error:
                    self._not_opened = copy(error)  # the copy has no traceback
                    raise
            return self._shared

    async def _open(self) -> AsyncConnection:
        if self._is_closed:
            raise _closed()
        connection = await self._maker.open()
        if self._is_closed:
            connection.close()
            raise _closed()
        return connection

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
        if self._shared is not None and self._shared.is_idle():
            self._shared.close()


@asynccontextmanager
async def _held(lock: asyncio.Semaphore, within_s: float) -> AsyncIterator[None]:
    """Hold a lock. Raises Unavailable if it is not free within `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            await lock.acquire()
    except TimeoutError:
        raise all_in_use(within_s) from None
    try:
        yield
    finally:
        lock.release()


def _closed() -> redis.ConnectionError:
    return redis.ConnectionError("the client was closed")
