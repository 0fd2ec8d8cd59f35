"""The watch over the pool: one task of a process reads Redis for all viewers, and before the first comes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import Any, NamedTuple

from shoal.client.redis.async_client import AsyncClient
from shoal.errors import Internal, ShoalError
from shoal.process import logs
from shoal.viewers.pool_history import EVERY_S, PoolHistory
from shoal.viewers.pool_snapshot import PoolSnapshot

_log = logging.getLogger(__name__)

#: Most recent jobs that are shown.
MAX_RECENT = 100


class Details(NamedTuple):
    """The part that is read only for viewers, as it has no history: dead letters and long jobs as JSON has them."""

    dead: Sequence[dict[str, Any]] = ()
    long_jobs: Sequence[dict[str, Any]] = ()


class PoolWatch:
    """The task that samples the pool until `stopping` is set, and what was read, for the tasks of one event loop.

    `read_details` is awaited for a client, or for None, which stands for all of them, once after each sample that
    viewers of theirs ask for.
    """

    def __init__(
        self,
        history: PoolHistory,
        client: AsyncClient,
        read_details: Callable[[str | None], Awaitable[Details]],
        stopping: Event,
        every_s: float = EVERY_S,
    ):
        self.every_s = every_s
        #: The number of samples so far; a try in vain counts as one.
        self.number = 0
        #: Why the last sample was a try in vain.
        self.error: ShoalError | None = None
        self._history = history
        self._client = client
        self._read_details = read_details
        self._stopping = stopping
        self._details: dict[str | None, tuple[int, Details]] = {}  # each with the number of the sample it followed
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sample, unless that was done before. Call this in the event loop."""
        if self._task is None and not self._stopping.is_set():
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Sample no more, and let all viewers go."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def is_stopped(self) -> bool:
        """True once no more samples come."""
        return self._stopping.is_set()

    async def view(self, client: str | None, since_s: float = 0.0) -> dict[str, Any]:
        """Return what a viewer may see, with the samples later than `since_s`, as docs/http.md has it.

        That are the jobs of a client and no dead letters, or for None everything.
        """
        details = await self._details_of(client)
        found, error = self._history.snapshot(since_s), self.error
        return found | {
            "is_admin": client is None,
            "error": {"code": error.code, "message": error.message} if error else None,
            "recent": [job for job in found["recent"] if client in (None, job["client"])][:MAX_RECENT],
            "dead": list(details.dead) if client is None else None,
            "long_jobs": list(details.long_jobs),
        }

    async def _details_of(self, client: str | None) -> Details:
        """Return the details of a client after the last sample; those before it if Redis fails."""
        async with self._reading:
            number, details = self._details.get(client, (-1, Details()))
            if number != self.number:
                self._details = {name: one for name, one in self._details.items() if one[0] >= self.number - 1}
                number = self.number
                if not self.error:
                    with suppress(ShoalError):
                        details = await self._read_details(client)
                self._details[client] = number, details
            return details

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self.error = await self._sample()
            self.number += 1
            await asyncio.sleep(self.every_s)

    async def _sample(self) -> ShoalError | None:
        """Read the pool; return why that failed, if so."""
        try:
            self._history.add(await PoolSnapshot.take(self._client.queue))
        except ShoalError as error:
            return error
        except Exception as error:
            _log.error("the watch over the pool goes on after an error: %s", logs.places(error))
            return Internal("the pool could not be read; the log of the API has the traceback")
        return None
