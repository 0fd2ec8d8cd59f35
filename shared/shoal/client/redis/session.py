"""All that a client has open in its event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.cache.lookup import CacheLookup
from shoal.client.work_threads import WorkThreads
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.errors import Timeout
from shoal.operations import Embed
from shoal.queue.dispatcher import Dispatcher
from shoal.queue.producer import Producer


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
