"""Threads beside an event loop, for work that blocks, such as RQ's."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from shoal.errors import Unavailable

#: Most threads of a client, for all tasks of its event loop: a piece of work takes milliseconds.
MAX_THREADS = 4

#: Seconds between two attempts to let the work that is under way fail.
_DISCONNECT_EVERY_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")


class WorkThreads:
    """Work of the tasks of one event loop that a few threads do, until it is closed.

    Both methods raise Unavailable once it is closed. To cancel a task leaves work that a thread has begun as it is.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = asyncio.Event()

    async def do(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return the result of a function that blocks."""
        self._check()
        self._threads = self._threads or ThreadPoolExecutor(MAX_THREADS, "shoal-client")
        work = partial(self._do, partial(function, *args, **named))
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_closed.wait()
        self._check()

    async def close(self, disconnect: Callable[[], object]) -> None:
        """Begin no more work, and return once the threads have ended; `disconnect` lets work that is under way fail."""
        self._is_closed.set()
        disconnect()
        if self._threads is not None:
            ending = asyncio.ensure_future(asyncio.to_thread(self._threads.shutdown))
            while not ending.done():
                await asyncio.wait([ending], timeout=_DISCONNECT_EVERY_S)
                disconnect()  # that work may have connected again

    def _do(self, work: Callable[[], T]) -> T:
        self._check()
        return work()

    def _check(self) -> None:
        if self._is_closed.is_set():
            raise Unavailable("the client was closed while this call waited: call it again")
