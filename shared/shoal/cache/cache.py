"""The cache of a pool, for its workers."""

from collections.abc import Mapping, Sequence

from shoal.broker.broker import Broker, Script
from shoal.cache.entry import Entry
from shoal.cache.table import Table
from shoal.contract.keys import Keys
from shoal.settings import DEFAULTS

_STORE = Script.load("shoal.cache", "store")


class Cache:
    """The entries of a pool's cache, which workers read and write. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys, table: Table, ttl_s: int = DEFAULTS.cache_ttl_s):
        self.table = table
        self._prefix = keys.cache("")
        self._ttl_s = ttl_s
        self._broker = broker

    def find(self, digests: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each digest, or None. Raises Unavailable."""
        entries: list[Entry | None] = []
        for part in self.table.parts(digests):
            values = self._broker.execute("MGET", *self.table.places(self._prefix, part))
            entries += self.table.entries(part, values)
        return entries

    def store(self, entries: Mapping[bytes, Entry]) -> None:
        """Write each entry to one of the two places of its digest. Raises Overloaded and Unavailable."""
        if entries:
            values = [entry.pack(digest) for digest, entry in entries.items()]
            places = self.table.places(self._prefix, entries)
            self._broker.run(_STORE, places, {"ttl_s": self._ttl_s, "entries": values})
