"""All that a client has open in its event loop: the connections of its jobs, and threads for work that blocks."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.cache.lookup import CacheLookup
from shoal.client.redis.call import Call
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import Expired, Timeout, Unavailable
from shoal.operations import Embed
from shoal.queue.dispatcher import Dispatcher
from shoal.queue.producer import Producer

#: Most threads of a client, for all tasks of its event loop: a piece of work takes milliseconds.
MAX_THREADS = 4

#: Seconds between two attempts to let the work that is under way fail.
_DISCONNECT_EVERY_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """All that a client has open in its event loop, until it is closed or the loop ends.

    A task of its own closes it: the task that asks may be cancelled at any moment, and at its end a loop cancels all.
    `close_jobs` closes what the threads for long jobs use.
    """

    def __init__(self, connections: ConnectionMaker, keys: Keys, result_ttl_s: int, close_jobs: Callable[[], object]):
        self.loop = asyncio.get_running_loop()
        self._broker = AsyncBroker(connections)
        self.producer = Producer(self._broker, keys, result_ttl_s)
        self.lookup = CacheLookup(self._broker, keys, self.producer.pool)
        self.dispatcher = Dispatcher(self.producer)
        #: The threads for long jobs.
        self.threads = WorkThreads()
        self._close_jobs = close_jobs
        self._is_ending = asyncio.Event()
        self.dispatcher.receiver.add_done_callback(lambda _: self._is_ending.set())
        self._closer = asyncio.create_task(self._close_at_end())

    def is_over(self) -> bool:
        """Return True once all is closed, or the loop is."""
        return self._closer.done() or self.loop.is_closed()

    async def call(self, job: Job, lane: str, client: str, timeout_s: float, max_reply_bytes: int) -> Reply:
        """Return the reply to a client's job; raise Timeout if there is none in its time."""
        await self.check_num_vectors(job, max_reply_bytes)
        call = Call(self.lookup, self.dispatcher, lane, client, time.monotonic() + timeout_s, max_reply_bytes)
        try:
            return await call.reply_to(job)
        except (TimeoutError, Expired) as error:
            raise await self.timeout(timeout_s) from error

    async def check_num_vectors(self, job: Job, max_bytes: int) -> None:
        """Raise TooLarge if the job asks for vectors of tokens or chunks that certainly take more than `max_bytes`."""
        if isinstance(job, Embed) and job.options.output != "vector":
            job.check_num_vectors(await self.producer.pool.first_heartbeats(), max_bytes)

    async def timeout(self, timeout_s: float) -> Timeout:
        """Return the error of a call without an answer in its time."""
        num_alive = len(await self.producer.pool.alive())
        cause = f"{num_alive} workers are alive but busy; try again or add some"
        return Timeout(f"no answer within {timeout_s:g} s: {cause if num_alive else 'no worker is alive; start one'}")

    async def close(self) -> None:
        """Close all; to cancel this does not end that, and another call waits for it."""
        self._is_ending.set()
        await asyncio.shield(self._closer)

    async def _close_at_end(self) -> None:
        with suppress(asyncio.CancelledError):  # by the loop, which ends
            await self._is_ending.wait()
        try:
            await self.dispatcher.close()
        finally:
            await self._broker.close()
            await self.threads.close(self._close_jobs)


class WorkThreads:
    """Work of the tasks of one event loop, such as RQ's, that a few threads do, until it is closed.

    Methods raise Unavailable once it is closed. To cancel a task leaves work that a thread has begun as it is.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = asyncio.Event()

    async def do(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return the result of a function that blocks."""
        self._check()
        self._threads = self._threads or ThreadPoolExecutor(MAX_THREADS, "shoal-client")

        def work() -> T:
            self._check()
            return function(*args, **named)

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

    def _check(self) -> None:
        if self._is_closed.is_set():
            raise Unavailable("the client was closed while this call waited: call it again")
