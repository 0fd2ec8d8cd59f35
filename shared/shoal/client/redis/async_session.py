"""All that a client for asyncio has open in its event loop."""

import asyncio
from contextlib import suppress

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.async_connection import ConnectionMaker
from shoal.broker.clock import AsyncClock
from shoal.cache.lookup import AsyncCacheLookup
from shoal.client.blocking_work import InThreads
from shoal.keys import Keys
from shoal.long_jobs.long_jobs import LongJobs
from shoal.queue.async_dispatcher import AsyncDispatcher
from shoal.queue.producer import AsyncProducer


class AsyncSession:
    """All that a client has open in its event loop, until it is closed or the loop ends.

    A task of its own closes it: the task that asks may be cancelled at any moment, and at its end a loop cancels all.
    """

    def __init__(
        self,
        connections: ConnectionMaker,
        keys: Keys,
        result_ttl_s: int,
        long_jobs: LongJobs,
    ):
        self.loop = asyncio.get_running_loop()
        self._broker = AsyncBroker(connections)
        self.producer = AsyncProducer(self._broker, keys, result_ttl_s)
        self.clock = AsyncClock(self._broker)
        self.lookup = AsyncCacheLookup(self._broker, keys, self.producer.pool)
        self.dispatcher = AsyncDispatcher(self.producer, self.clock)
        #: The threads for long jobs.
        self.work = InThreads()
        self._long_jobs = long_jobs
        self.calls: set[asyncio.Future[None]] = set()
        self._is_ending = asyncio.Event()
        self.dispatcher.receiver.add_done_callback(lambda _: self._is_ending.set())
        self._closer = asyncio.create_task(self._close_at_end())

    def is_over(self) -> bool:
        """Return True once all is closed, or the loop is."""
        return self._closer.done() or self.loop.is_closed()

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
            await self.work.close(self._long_jobs.close)
        while self.calls:  # they fail now; one that went on after the client is closed would open it again
            await asyncio.wait(self.calls)
