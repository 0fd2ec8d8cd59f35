"""What a client knows by itself, out of the cache."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.broker.connections import Connections
from shoal.cache.cache import Cache, Entry, Table
from shoal.errors import ShoalError
from shoal.jobs import Job
from shoal.queue.pool import Pool
from shoal.replies import TIMINGS, Reply, finish


@dataclass(frozen=True, slots=True)
class Recalled:
    """A job, and for each of its texts what the cache has: an entry made by `model`, or None."""

    job: Job
    entries: Sequence[Entry | None]
    model: str = ""

    @property
    def missing(self) -> list[str]:
        """The texts that are left for a worker."""
        return [text for text, entry in zip(self.job.texts, self.entries, strict=True) if entry is None]

    def reply(self, rest: Reply | None = None) -> Reply:
        """The reply to the job; `rest` is the reply to the texts that are missing, if there are any."""
        known = [entry for entry in self.entries if entry is not None]
        reply = Reply(
            self.job.id,
            vectors=finish([entry.vectors for entry in known], self.job.options),
            tokens=[entry.num_tokens for entry in known],
            truncated=[entry.truncated for entry in known],
            timings=dict.fromkeys(TIMINGS, 0.0),
            cached=len(known),
            model=self.model,
        )
        return reply if rest is None else self._in_order(Reply.join([reply, rest]))

    def _in_order(self, reply: Reply) -> Reply:
        """`reply` has the texts that were known, then those that were missing."""
        order = np.argsort(np.argsort([entry is None for entry in self.entries], kind="stable"))
        assert reply.vectors is not None
        return replace(
            reply,
            vectors=reply.vectors[order],
            tokens=[reply.tokens[n] for n in order],
            truncated=[reply.truncated[n] for n in order],
        )


class CacheLookup:
    """Looks texts up for a client. Thread-safe; silent when it cannot know.

    Workers say in their heartbeats how the cache is to be read. Without workers, without a cache, or when they do not
    agree, nothing is known; they are asked again after `known_s`. `num_hits` and `num_misses` count texts.
    """

    def __init__(self, pool: Pool, known_s: float = 1.0):
        self.num_hits = 0
        self.num_misses = 0
        self._pool = pool
        self._known_s = known_s
        self._connections = Connections(pool.redis.connection_pool)
        self._cache: Cache | None = None
        self._known_until = 0.0
        self._lock = threading.Lock()

    def find(self, job: Job) -> Recalled:
        """What is known of the job's texts."""
        unknown = Recalled(job, [None] * len(job.texts))
        options = job.options
        cache = self._current() if job.op == "embed" and options.output == "vector" else None
        if cache is None or not cache.table.suits(options):
            return unknown
        digests = cache.table.digests(job.texts, cache.table.prompt(options.prompt_name), options)
        try:
            found = cache.find(digests)
        except ShoalError:  # without Redis the queue says so too
            return unknown
        recalled = Recalled(job, [e if e and e.suits(options) else None for e in found], cache.table.model)
        self._count(len(found), recalled.entries.count(None))
        return recalled

    def _current(self) -> Cache | None:
        """The cache as the workers announce it, asked for again when that was a while ago."""
        if time.monotonic() >= self._known_until:
            with self._lock:
                if time.monotonic() >= self._known_until:
                    self._renew()
        return self._cache

    def _renew(self) -> None:
        try:
            table = Table.agreed(self._pool.ready().values())
        except ShoalError:
            table = None
        if table is None:
            self._cache = None
        elif self._cache is None or self._cache.table != table:
            self._cache = Cache(self._connections, self._pool.keys, table)
        self._known_until = time.monotonic() + self._known_s

    def _count(self, num_texts: int, num_misses: int) -> None:
        with self._lock:
            self.num_hits += num_texts - num_misses
            self.num_misses += num_misses
