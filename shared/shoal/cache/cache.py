"""A cache of exact repeats: vectors of texts embedded before, in a table in Redis that never outgrows its room.

The digest of a text names two places of the table, and its entry may be in either. An entry replaces what was in its
place and is recognised by its whole digest. So nothing is ever evicted, and any place may be empty, overwritten or
deleted at any time. With one place for each text, a table large enough for all texts in use would miss a quarter of
them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

from shoal.blocking import blocking
from shoal.broker.broker import Broker
from shoal.broker.commands import BlockingCommands, Commands
from shoal.broker.script import Script
from shoal.cache.entry import Entry
from shoal.cache.table import Table
from shoal.keys import Keys
from shoal.settings import DEFAULTS

#: Most texts looked up in one command, so that a long list does not hold Redis up.
MAX_TEXTS_PER_READ = 512

_TWO_NUMBERS = struct.Struct("<QQ")
_STORE = Script.load("shoal.cache", "store")


class AsyncCache:
    """The table of a pool, for reading."""

    def __init__(self, commands: Commands, keys: Keys, table: Table):
        self.table = table
        self._prefix = keys.cache("")
        self._commands = commands

    async def find(self, digests: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each digest, or None where there is none.

        Raises Unavailable.
        """
        entries: list[Entry | None] = []
        for start in range(0, len(digests), MAX_TEXTS_PER_READ):
            group = digests[start : start + MAX_TEXTS_PER_READ]
            values = iter(await self._commands.execute("MGET", *self.places(group)))
            entries += [self._unpack(digest, next(values), next(values)) for digest in group]
        return entries

    def places(self, digests: Iterable[bytes]) -> list[str]:
        """Return the keys of both places of each digest."""
        numbers = (number for digest in digests for number in _TWO_NUMBERS.unpack(digest))
        return [f"{self._prefix}{number % self.table.num_places}" for number in numbers]

    def _unpack(self, digest: bytes, *values: bytes | None) -> Entry | None:
        for data in values:
            if entry := Entry.unpack(data, digest, self.table.dimension):
                return entry
        return None


class Cache:
    """The table of a pool, for reading and writing. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys, table: Table, ttl_s: int = DEFAULTS.cache_ttl_s):
        self.asynchronous = AsyncCache(BlockingCommands(broker), keys, table)
        self.table = table
        self._ttl_s = ttl_s
        self._broker = broker

    find = blocking(AsyncCache.find)

    def store(self, entries: Mapping[bytes, Entry]) -> None:
        """Put each entry into one of the two places of its digest.

        Raises Overloaded when Redis is full, and Unavailable.
        """
        if entries:
            values = [entry.pack(digest) for digest, entry in entries.items()]
            self._broker.run(_STORE, self.asynchronous.places(entries), {"ttl_s": self._ttl_s, "entries": values})
