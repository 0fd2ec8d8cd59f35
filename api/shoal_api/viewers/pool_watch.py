"""The watch over the pool: one task of a process reads Redis for all viewers, and before the first comes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from threading import Event
from typing import Any, NamedTuple

from shoal.client.redis.async_client import AsyncClient
from shoal.errors import Internal, ShoalError
from shoal.process import logs
from shoal.viewers.pool_history import EVERY_S, PoolHistory
from shoal_api.answers.response import json_line

_log = logging.getLogger(__name__)


#: Most recent jobs that are shown.
MAX_RECENT = 100

#: Views that are kept for the next viewer who may see the same.
_MAX_SHARED = 16


class View(NamedTuple):
    """A sample as a viewer may see it: its time, in Unix seconds, and all of it as a line of JSON."""

    time_s: float
    json: bytes


class Details(NamedTuple):
    """The part that is read only for viewers, as it has no history: dead letters and long jobs as JSON has them."""

    dead: Sequence[dict[str, Any]] = ()
    long_jobs: Sequence[dict[str, Any]] = ()


class PoolWatch:
    """The task that samples the pool until `stopping` is set, and what was read, for the tasks of one event loop.

    `read_details` is awaited for a client, or for None, which stands for all of them, by its first viewer who asks
    after a sample; its others get the same, also the same bytes if they have seen as much.
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
        self._history = history
        self._client = client
        self._read_details = read_details
        self._stopping = stopping
        self._error: ShoalError | None = None
        self._details: dict[str | None, Details] = {}
        self._earlier: dict[str | None, Details] = {}
        self._views: dict[tuple[str | None, float], View] = {}
        self._viewed_number = 0
        self._viewing = asyncio.Lock()
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
    def has_failed(self) -> bool:
        """True if the last sample was a try in vain."""
        return self._error is not None

    @property
    def is_stopped(self) -> bool:
        """True once no more samples come."""
        return self._stopping.is_set()

    async def view(self, client: str | None, since_s: float = 0.0) -> View:
        """Return what a viewer may see, with the samples later than `since_s`, as docs/http.md has it.

        That are the jobs of a client and no dead letters, or for None everything.
        """
        async with self._viewing:
            if self._viewed_number != self.number or len(self._views) >= _MAX_SHARED:
                self._views = {}
            if self._viewed_number != self.number:
                self._viewed_number, self._earlier, self._details = self.number, self._details, {}
            if (client, since_s) not in self._views:
                self._views[client, since_s] = await self._render(client, since_s)
            return self._views[client, since_s]

    async def _render(self, client: str | None, since_s: float) -> View:
        """Return what may be seen after the present number of samples."""
        if client not in self._details:
            self._details[client] = await self._try_to_read(client, self._earlier.get(client, Details()))
        found, details, error = self._history.snapshot(since_s), self._details[client], self._error
        recent = [job for job in found["recent"] if client in (None, job["client"])][:MAX_RECENT]
        seen = found | {
            "is_admin": client is None,
            "error": {"code": error.code, "message": error.message} if error else None,
            "recent": recent,
            "dead": list(details.dead) if client is None else None,
            "long_jobs": list(details.long_jobs),
        }
        return View(found["time"], json_line(seen))

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._error = await self._sample()
            self.number += 1
            await asyncio.sleep(self.every_s)

    async def _sample(self) -> ShoalError | None:
        try:
            await self._history.sample(self._client.queue)
        except ShoalError as error:
            return error
        except Exception as error:
            _log.error("the watch over the pool goes on after an error: %s", logs.places(error))
            return Internal("the pool could not be read; the log of the API has the traceback")
        return None

    async def _try_to_read(self, client: str | None, earlier: Details) -> Details:
        """Return the details of a client; those of the sample before if Redis fails."""
        if self._error:
            return earlier
        try:
            return await self._read_details(client)
        except ShoalError:
            return earlier
