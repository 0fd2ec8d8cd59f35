"""The workers and indexes of the pool, which all requests of a process share for a moment."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal.client.redis.async_client import AsyncClient
from shoal.errors import ShoalError
from shoal.queue.pool import ANSWERING

Heartbeats = Mapping[str, Mapping[str, Any]]

#: Time for which a state of the pool is reused, in seconds. Reading the heartbeats of hundreds of workers takes
#: milliseconds, and some routes that need the state are open to clients without a key.
MAX_AGE_S = 0.25

#: Time for which a state is used to choose among pools while the next one is read, in seconds.
USABLE_S = 1.0

#: Longest wait for the state of a pool, in seconds. Then another pool answers the request.
MAX_WAIT_S = 0.1

#: The fields of a heartbeat that name the worker's model and reranker, each with the field of its fingerprint.
_FINGERPRINTS = {"model": "fingerprint", "reranker": "reranker_fingerprint"}


@dataclass(frozen=True)
class PoolState:
    """The heartbeats of live workers, keyed by id. If no job can be put into a lane, `lane_fault` says why."""

    workers: Heartbeats
    lane_fault: str = ""

    @cached_property
    def ready(self) -> Heartbeats:
        """The heartbeats of the workers that answer jobs, sleeping workers included."""
        return {worker_id: about for worker_id, about in self.workers.items() if about.get("state") in ANSWERING}

    @cached_property
    def served(self) -> Mapping[str, frozenset[tuple[str, str]]]:
        """The names and fingerprints of the ready workers' models, and of their rerankers if each worker has one."""
        found = {}
        for part, fingerprint in _FINGERPRINTS.items():
            beats = self.ready.values()
            pairs = frozenset((str(about.get(part) or ""), str(about.get(fingerprint) or "")) for about in beats)
            if all(map(all, pairs)):
                found[part] = pairs
        return found

    @property
    def indexes(self) -> dict[str, dict[str, Any]]:
        """All indexes that ready workers serve, keyed by name, in the order of the names."""
        found = {name: about for worker in self.ready.values() for name, about in worker.get("indexes", {}).items()}
        return dict(sorted(found.items()))

    @property
    def index_errors(self) -> dict[str, str]:
        """The reasons why a ready worker does not serve the current version of an index, keyed by the index's name."""
        return {name: why for worker in self.ready.values() for name, why in worker.get("index_errors", {}).items()}

    @property
    def dimension(self) -> int:
        """The greatest dimension of the vectors of ready workers; 0 if none is ready."""
        dimensions = [about.get("dimension") for about in self.ready.values()]
        return max((known for known in dimensions if isinstance(known, int)), default=0)


class PoolReader:
    """Reads the pool for all requests of a process, with heartbeats from Redis that are at most `max_age_s` old."""

    def __init__(self, client: AsyncClient):
        self.max_age_s, self.usable_s, self.max_wait_s = MAX_AGE_S, USABLE_S, MAX_WAIT_S
        #: The last state with ready workers.
        self.last_ready = PoolState({})
        self._client = client
        self._state: PoolState | None = None
        self._read_at = 0.0
        self._reading: asyncio.Future[PoolState] | None = None

    async def read(self) -> PoolState:
        """Return the state of the pool. A pool without workers is read anew, so the first worker is seen at once."""
        if self._state and self._state.workers and self._is_young():
            return self._state
        return await asyncio.shield(self._begin())

    async def look(self) -> PoolState:
        """Return a state at most `usable_s` old, or an empty one if Redis does not answer within `max_wait_s`.

        If the state is older than `max_age_s`, a new read begins.
        """
        if not self._is_young():
            self._begin()
        if self._state and time.monotonic() - self._read_at < self.usable_s:
            return self._state
        with suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(self.max_wait_s):
                return await self.read()
        return PoolState({})

    def _is_young(self) -> bool:
        return time.monotonic() - self._read_at < self.max_age_s

    def _begin(self) -> asyncio.Future[PoolState]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._reading

    async def _read(self) -> PoolState:
        try:
            workers, lane_fault = await self._client.queue.pool.workers(), ""
            try:
                await self._client.queue.check_lanes()
            except ShoalError as error:
                lane_fault = error.message
            self._state = PoolState(workers, lane_fault)
            self._read_at = time.monotonic()
            self.last_ready = self._state if self._state.ready else self.last_ready
            return self._state
        finally:
            self._reading = None

    async def dimension(self) -> int:
        """Return the dimension of the vectors of the workers that are ready or were ready last; 0 if none ever was."""
        await self.read()
        return self.last_ready.dimension
