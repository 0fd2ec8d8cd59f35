"""A client's look-up in the cache. Texts that are found there are not sent to a worker."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from shoal.broker.async_broker import AsyncBroker
from shoal.cache.cache import MAX_TEXTS_PER_READ, Entry, Table, size_bytes
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.contract.replies import TIMINGS, Reply
from shoal.contract.vectors import cut_and_normalise
from shoal.errors import ShoalError
from shoal.operations import Embed
from shoal.queue.pool import ALIVE_S, AsyncPool

#: Bytes of memory that the Python objects of an entry need in addition to the packed entry.
OBJECT_BYTES = 512


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A job with its texts' cached entries, which were made by `model` with this `fingerprint`.

    `missing` has the texts whose entry is None. A worker must embed them.
    """

    job: Job
    entries: Sequence[Entry | None]
    missing: list[str]
    model: str = ""
    fingerprint: str = ""

    def reply(self, rest: Reply | None = None) -> Reply:
        """Return the reply to the job; `rest` is a worker's reply to the missing texts, if any are missing."""
        pairs = [(entry, text) for entry, text in zip(self.entries, self.job.texts, strict=True) if entry is not None]
        found = [entry for entry, _ in pairs]
        reply = Reply(
            self.job.id,
            vectors=cut_and_normalise([entry.vectors for entry in found], self.job.options),
            tokens=[entry.num_tokens for entry in found],
            truncated=[entry.truncated for entry in found],
            characters=[entry.characters if entry.truncated else len(text) for entry, text in pairs],
            timings=dict.fromkeys(TIMINGS, 0.0),
            cached=len(found),
            model=self.model,
            fingerprint=self.fingerprint,
        )
        return reply if rest is None else self._in_order(Reply.join([reply, rest]))

    def _in_order(self, reply: Reply) -> Reply:
        order = np.argsort(np.argsort([entry is None for entry in self.entries], kind="stable"))
        assert reply.vectors is not None
        return replace(
            reply,
            vectors=reply.vectors[order],
            tokens=[reply.tokens[n] for n in order],
            truncated=[reply.truncated[n] for n in order],
            characters=[reply.characters[n] for n in order if reply.characters],
        )


class CacheLookup:
    """A client's look-up of texts in the cache of the pool. If it fails, all texts are missing.

    Workers announce the table in their heartbeats. The heartbeats of new workers are read every `refresh_s`. Without a
    table, or while workers announce different tables, all texts are missing. Found entries stay in memory for about
    `hold_s`, in at most `max_held_bytes`, so that repeated texts need no round trip. Each look-up calls `count` with
    the numbers of texts that were found and not found.
    """

    def __init__(
        self,
        commands: AsyncBroker,
        keys: Keys,
        pool: AsyncPool,
        refresh_s: float = ALIVE_S,
        max_held_bytes: int = 8 * 2**20,
        hold_s: float = 30.0,
        count: Callable[[int, int], object] = lambda *_: None,
    ):
        self._count = count
        self._commands = commands
        self._prefix = keys.cache("")
        self._pool = pool
        self._refresh_s = refresh_s
        self._max_held_bytes = max_held_bytes
        self._hold_s = hold_s
        self._table: Table | None = None
        self._fingerprint = ""
        self._held: dict[bytes, Entry] = {}
        self._refresh_at = self._drop_at = 0.0
        self._refreshing = asyncio.Lock()

    async def find(self, job: Job) -> LookupResult:
        """Look up the texts of a job. All are missing unless the job is an embed with one vector for each text."""
        all_missing = LookupResult(job, [None] * len(job.texts), job.texts)
        if not (isinstance(job, Embed) and job.options.is_cacheable):
            return all_missing
        if time.monotonic() >= self._refresh_at:
            async with self._refreshing:
                if time.monotonic() >= self._refresh_at:
                    await self._refresh()
        table, fingerprint, options = self._table, self._fingerprint, job.options  # a refresh may change them
        is_of_pin = job.fingerprint in (None, fingerprint)
        if table is None or not is_of_pin or (prompt := table.prompt_for(options)) is None:
            return all_missing
        digests = table.digests(job.texts, prompt, options)
        try:
            found = await self._entries(table, digests)
        except ShoalError:  # the put of the job will raise the same error
            return all_missing
        entries = [entry if entry and entry.answers(options) else None for entry in found]
        missing = [text for text, entry in zip(job.texts, entries, strict=True) if entry is None]
        self._count(len(entries) - len(missing), len(missing))
        return LookupResult(job, entries, missing, table.model, fingerprint)

    async def _entries(self, table: Table, digests: Sequence[bytes]) -> list[Entry | None]:
        held = self._held
        found = {digest: held.get(digest) for digest in digests}
        if missing := [digest for digest, entry in found.items() if entry is None]:
            new: dict[bytes, Entry] = {}
            for n in range(0, len(missing), MAX_TEXTS_PER_READ):
                part = missing[n : n + MAX_TEXTS_PER_READ]
                (values,) = await self._commands.pipeline(("MGET", *table.places(self._prefix, part)))
                read = zip(part, table.entries(part, values), strict=True)
                new.update((digest, entry) for digest, entry in read if entry is not None)
            if new:
                most = self._max_held_bytes // (size_bytes(table.dimension) + OBJECT_BYTES)
                if len(held) + len(new) > most:
                    held = self._held = {}  # a new dict, because other tasks may still read the old one
                held.update(islice(new.items(), most))
                found |= new
        return [found[digest] for digest in digests]

    async def _refresh(self) -> None:
        try:
            workers = (await self._pool.first_heartbeats()).values()
            self._table = Table.from_heartbeats(workers)
            self._fingerprint = next((str(about.get("fingerprint", "")) for about in workers), "")
        except ShoalError:
            self._table = None
        now = time.monotonic()
        if now >= self._drop_at:
            self._held, self._drop_at = {}, now + self._hold_s
        self._refresh_at = now + self._refresh_s
