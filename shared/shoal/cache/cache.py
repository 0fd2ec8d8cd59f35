"""A cache of exact repeats: vectors of texts embedded before, in a table in Redis that never outgrows its room.

The digest of a text names two places of the table, and its entry may be in either. An entry replaces what was in its
place and is recognised by its whole digest. So nothing is ever evicted, and any place may be empty, overwritten or
deleted at any time. With one place for each text, a table large enough for all texts in use would miss a quarter of
them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.broker import Broker
from shoal.broker.script import Script
from shoal.cache.entry import Entry
from shoal.cache.table import Table
from shoal.contract.keys import Keys
from shoal.settings import DEFAULTS

#: Most texts looked up in one command, so that a long list does not hold Redis up.
MAX_TEXTS_PER_READ = 512

_TWO_NUMBERS = struct.Struct("<QQ")
_STORE = Script.load("shoal.cache", "store")


class _Places:
    """The places of a pool's table, and the entries in them."""

    def __init__(self, keys: Keys, table: Table):
        self.table = table
        self._prefix = keys.cache("")

    def _keys(self, digests: Iterable[bytes]) -> list[str]:
        """Return the keys of both places of each digest."""
        numbers = (number for digest in digests for number in _TWO_NUMBERS.unpack(digest))
        return [f"{self._prefix}{number % self.table.num_places}" for number in numbers]

    def _entries(self, digests: Sequence[bytes], values: Sequence[bytes | None]) -> list[Entry | None]:
        """Return the entry of each digest in the values of its two places, or None."""
        return [
            Entry.unpack(values[2 * n], digest, self.table.dimension)
            or Entry.unpack(values[2 * n + 1], digest, self.table.dimension)
            for n, digest in enumerate(digests)
        ]


class AsyncCache(_Places):
    """The table of a pool, as clients read it."""

    def __init__(self, broker: AsyncBroker, keys: Keys, table: Table):
        super().__init__(keys, table)
        self._broker = broker

    async def find(self, digests: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each digest, or None where there is none. Raises Unavailable."""
        entries: list[Entry | None] = []
        for start in range(0, len(digests), MAX_TEXTS_PER_READ):
            group = digests[start : start + MAX_TEXTS_PER_READ]
            entries += self._entries(group, await self._broker.execute("MGET", *self._keys(group)))
        return entries


class Cache(_Places):
    """The table of a pool, as workers read and write it. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys, table: Table, ttl_s: int = DEFAULTS.cache_ttl_s):
        super().__init__(keys, table)
        self._ttl_s = ttl_s
        self._broker = broker

    def find(self, digests: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each digest, or None where there is none. Raises Unavailable."""
        entries: list[Entry | None] = []
        for start in range(0, len(digests), MAX_TEXTS_PER_READ):
            group = digests[start : start + MAX_TEXTS_PER_READ]
            entries += self._entries(group, self._broker.execute("MGET", *self._keys(group)))
        return entries

    def store(self, entries: Mapping[bytes, Entry]) -> None:
        """Put each entry into one of the two places of its digest.

        Raises Overloaded when Redis is full, and Unavailable.
        """
        if entries:
            values = [entry.pack(digest) for digest, entry in entries.items()]
            self._broker.run(_STORE, self._keys(entries), {"ttl_s": self._ttl_s, "entries": values})
