"""The broker for an event loop. Small commands of all tasks go to Redis over one connection."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import redis
from hiredis import pack_command
from redis.exceptions import MovedError, NoScriptError

from shoal.broker.async_connection import AsyncConnection, ConnectionMaker
from shoal.broker.broker import Script, ScriptCall, checked, outcome_of, translate
from shoal.broker.connections import (
    LARGE_BYTES,
    MAX_LARGE_WAIT_S,
    MAX_MOVES,
    MAX_WAIT_S,
    SMALL_BYTES,
    all_in_use,
    num_connections,
)
from shoal.errors import ShoalError


class AsyncBroker:
    """A client of Redis for the tasks of one event loop. It connects on first use.

    Small commands of all tasks go over one connection. A command that blocks or is large uses another connection alone.
    Every method raises Overloaded if Redis is out of memory, and Unavailable if Redis does not answer or refuses.
    """

    def __init__(self, maker: ConnectionMaker):
        self._maker = maker
        self._shared: AsyncConnection | None = None
        self._opening = asyncio.Lock()
        self._not_opened: redis.RedisError | None = None
        self._idle: deque[AsyncConnection] = deque()
        self._busy: set[AsyncConnection] = set()
        self._free = asyncio.Semaphore(num_connections(maker.max_connections))
        self._large = asyncio.Semaphore(1)  # a Lock would not be `locked` while it passes to the next task
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
        """Run the script once for each call, in one round trip; return the result or the error of each call."""
        try:
            answers = await self._ask([call.command("EVALSHA", script.digest) for call in calls])
            if unknown := [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]:
                texts = [calls[n].command("EVAL", script.text) for n in unknown]  # a new Redis lacks the script
                for n, answer in zip(unknown, await self._ask(texts), strict=True):
                    answers[n] = answer
        except redis.RedisError as error:
            raise translate(error) from error
        return [outcome_of(answer) for answer in answers]

    async def _ask(self, commands: Sequence[Sequence[Any]], block_s: float = 0.0) -> list[Any]:
        """Return the answers to the commands. An answer may be an error of Redis."""
        if not commands:
            return []
        packed = [pack_command(tuple(command)) for command in commands]
        data = packed[0] if len(packed) == 1 else b"".join(packed)
        for _ in range(MAX_MOVES):
            try:
                return await self._send(data, len(packed), block_s)
            except MovedError as error:  # the commands have had no effect
                if self._maker.primary:
                    self._maker.primary.note_move(error)
                self._drop_idle()
        return await self._send(data, len(packed), block_s)

    async def _send(self, data: bytes, num_answers: int, block_s: float) -> list[Any]:
        try:
            if block_s or len(data) > SMALL_BYTES:
                return await self._ask_alone(data, num_answers, block_s)
            self._maker.breaker.check()
            connection = self._shared
            if connection is None or not connection.is_open():
                connection = await self._open_shared()
            return await connection.ask(data, num_answers)
        except redis.RedisError as error:
            if isinstance(error, redis.ReadOnlyError):
                self._drop_idle()  # after a failover, idle connections lead to the former primary
            if self._is_closed:
                raise _closed() from error
            raise
        except asyncio.CancelledError:
            self._maker.breaker.give_up()
            raise

    async def _ask_alone(self, data: bytes, num_answers: int, block_s: float) -> list[Any]:
        """Ask over a connection that no other task uses meanwhile. Only one large command is under way at a time."""
        if len(data) <= LARGE_BYTES:
            return await self._ask_over_own(data, num_answers, block_s)
        await _acquire(self._large, MAX_LARGE_WAIT_S)
        try:
            with self._maker.breaker.large():
                return await self._ask_over_own(data, num_answers, block_s)
        finally:
            self._large.release()

    async def _ask_over_own(self, data: bytes, num_answers: int, block_s: float) -> list[Any]:
        await _acquire(self._free, MAX_WAIT_S)
        try:
            self._maker.breaker.check()
            while self._idle and not self._idle[-1].is_open():
                self._idle.pop().close()
            connection = self._idle.pop() if self._idle else await self._open()
            self._busy.add(connection)
            try:
                answers = await connection.ask(data, num_answers, block_s)
            except BaseException:
                connection.close()  # its answers may still come, and would be taken for others
                raise
            finally:
                self._busy.discard(connection)
            self._idle.append(connection)
            return answers
        finally:
            self._free.release()

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


async def _acquire(lock: asyncio.Semaphore, within_s: float) -> None:
    if not lock.locked():
        await lock.acquire()  # returns at once
        return
    try:
        async with asyncio.timeout(within_s):
            await lock.acquire()
    except TimeoutError:
        raise all_in_use(within_s) from None


def _closed() -> redis.ConnectionError:
    return redis.ConnectionError("the client was closed")
