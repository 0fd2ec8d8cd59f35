"""The broker for an event loop: commands of many tasks go to Redis in one round trip."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoScriptError

from shoal.broker.async_connection import AsyncConnection, ConnectionMaker
from shoal.broker.broker import checked, outcome_of, translate
from shoal.broker.connections import (
    LARGE_BYTES,
    MAX_LARGE_WAIT_S,
    MAX_WAIT_S,
    SMALL_BYTES,
    all_in_use,
    num_connections,
)
from shoal.broker.script import Script, ScriptCall
from shoal.errors import ShoalError

#: Most bytes of commands in one round trip for many tasks.
MAX_TOGETHER_BYTES = 2**20


class _Question(NamedTuple):
    """Commands of one task, packed, and the future of their answers or of the error."""

    packed: bytes
    num_answers: int
    outcome: asyncio.Future[list[Any] | Exception]


class AsyncBroker:
    """A way to Redis for the tasks of one event loop; connects on first use.

    Small commands go over one connection: all that tasks ask while one round trip is under way are sent with the next.
    Commands that block in Redis or are large have a connection for themselves.
    Every method raises Overloaded when Redis is out of memory, and Unavailable when it does not answer or refuses.
    """

    def __init__(self, maker: ConnectionMaker):
        self._maker = maker
        # It is not opened: it packs faster than the connections of an event loop.
        self._packer = redis.Connection()  # type: ignore[no-untyped-call]
        self._idle: deque[AsyncConnection] = deque()
        self._free = asyncio.Semaphore(num_connections(maker.max_connections))
        self._large = asyncio.Lock()
        self._questions: deque[_Question] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._busy: set[AsyncConnection] = set()
        self._is_asking = self._is_closed = False

    async def close(self) -> None:
        """Close all connections; commands that are under way fail."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        for connection in list(self._busy):
            await connection.disconnect(nowait=True)
        await self._drop_idle(is_patient=True)

    async def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to one command, which may block in Redis for `block_s`."""
        return (await self.pipeline(command, block_s=block_s))[0]

    async def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Return the answers to several commands, sent in one round trip; raise the first error among them."""
        try:
            return checked(await self._ask(commands, block_s))
        except redis.RedisError as error:
            raise translate(error) from error

    async def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a script."""
        (outcome,) = await self.run_many(script, [ScriptCall(keys, arguments)])
        if isinstance(outcome, ShoalError):
            raise outcome
        return outcome

    async def run_many(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run the script once for each call, in one round trip; return for each its result, or its error unraised."""
        try:
            answers = await self._ask([call.command("EVALSHA", script.digest) for call in calls])
            if unknown := [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]:
                texts = [calls[n].command("EVAL", script.text) for n in unknown]  # Redis was started since
                for n, answer in zip(unknown, await self._ask(texts), strict=True):
                    answers[n] = answer
        except redis.RedisError as error:
            raise translate(error) from error
        return [outcome_of(answer) for answer in answers]

    async def _ask(self, commands: Sequence[Sequence[Any]], block_s: float = 0.0) -> list[Any]:
        """Return the answers to the commands; an error that Redis answers is one of them."""
        if self._is_closed:
            raise _closed()
        packed = self._packer.pack_commands(commands)  # type: ignore[no-untyped-call]
        if block_s or sum(map(len, packed)) > SMALL_BYTES:
            return await self._round_trip(packed, len(commands), block_s)
        if not self._is_asking:
            return await self._ask_alone(packed, len(commands))
        question = _Question(b"".join(packed), len(commands), asyncio.get_running_loop().create_future())
        self._questions.append(question)
        outcome = await question.outcome
        if isinstance(outcome, Exception):
            raise copy(outcome)  # for each task one of its own, to which its traceback is added
        return outcome

    async def _ask_alone(self, packed: Sequence[bytes], num_answers: int) -> list[Any]:
        """Send what one task asks, and have what others ask meanwhile sent after it."""
        self._is_asking = True
        try:
            return await self._round_trip(packed, num_answers)
        finally:
            self._is_asking = bool(self._questions)
            if self._questions:
                self._asking = asyncio.create_task(self._ask_together())
                self._asking.add_done_callback(self._settle_left)

    async def _ask_together(self) -> None:
        """Send what waits, in as many round trips as it takes; a task that has been cancelled is left out."""
        while questions := self._next_questions():
            outcome: list[Any] | Exception
            try:
                packed = b"".join([question.packed for question in questions])
                outcome = await self._round_trip([packed], sum(question.num_answers for question in questions))
            except Exception as error:
                outcome = error
            except asyncio.CancelledError:
                _settle(questions, _closed())
                raise
            _settle(questions, outcome)
        self._is_asking = False

    def _settle_left(self, asking: asyncio.Task[None]) -> None:
        """Settle the questions that a cancelled task has left: it may not have begun."""
        if asking is self._asking and asking.cancelled():
            _settle(self._questions, _closed())

    def _next_questions(self) -> list[_Question]:
        questions, num_bytes = [], 0
        while self._questions and num_bytes + len(self._questions[0].packed) <= MAX_TOGETHER_BYTES:
            question = self._questions.popleft()
            if not question.outcome.done():
                questions.append(question)
                num_bytes += len(question.packed)
        return questions

    async def _round_trip(self, packed: Sequence[bytes], num_answers: int, block_s: float = 0.0) -> list[Any]:
        if sum(map(len, packed)) > LARGE_BYTES:
            async with self._turn():
                return await self._send(packed, num_answers, block_s)
        return await self._send(packed, num_answers, block_s)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a large command. Raises Unavailable if that takes too long."""
        await _acquire(self._large, MAX_LARGE_WAIT_S)
        try:
            with self._maker.breaker.large():
                yield
        finally:
            self._large.release()

    async def _send(self, packed: Sequence[bytes], num_answers: int, block_s: float) -> list[Any]:
        if self._is_closed:
            raise _closed()
        await _acquire(self._free, MAX_WAIT_S)
        try:
            connection = await self._take()
            self._busy.add(connection)
            try:
                if self._is_closed:  # while it was opened
                    raise _closed()
                answers = await connection.ask(packed, num_answers, block_s)
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, redis.ReadOnlyError):
                    await self._drop_idle()  # after a failover they lead to the former primary
                if self._is_closed and isinstance(error, redis.RedisError):
                    raise _closed() from error
                raise
            finally:
                self._busy.discard(connection)
            if self._is_closed:
                await connection.disconnect()
            else:
                self._idle.append(connection)
            return answers
        finally:
            self._free.release()

    async def _take(self) -> AsyncConnection:
        """Return a connection that is open as far as can be told."""
        self._maker.breaker.check()
        while True:
            connection = self._idle.pop() if self._idle else self._maker.make()
            try:
                if not connection.is_connected:
                    await connection.connect()
                    return connection
                if connection.is_open():
                    return connection
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            await connection.disconnect(nowait=True)

    async def _drop_idle(self, is_patient: bool = False) -> None:
        while self._idle:
            await self._idle.pop().disconnect(nowait=not is_patient)


async def _acquire(lock: asyncio.Lock | asyncio.Semaphore, within_s: float) -> None:
    """Acquire a lock; raise Unavailable if that takes too long."""
    if not lock.locked():
        await lock.acquire()  # at once
        return
    try:
        async with asyncio.timeout(within_s):
            await lock.acquire()
    except TimeoutError:
        raise all_in_use(within_s) from None


def _closed() -> redis.ConnectionError:
    return redis.ConnectionError("the client was closed")


def _settle(questions: Iterable[_Question], outcome: list[Any] | Exception) -> None:
    """Give each question its answers, or all of them the error."""
    first = 0
    for question in questions:
        after = first + question.num_answers
        if not question.outcome.done():
            question.outcome.set_result(outcome if isinstance(outcome, Exception) else outcome[first:after])
        first = after
