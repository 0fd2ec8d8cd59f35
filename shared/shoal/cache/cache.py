"""A cache of exact repeats: vectors of texts embedded before, in a table in Redis that never outgrows its room.

The digest of a text says which two places of the table it may be in. What is stored there replaces what was, and is
found by the whole digest only: so nothing is ever evicted, and any place may be empty, overwritten or deleted at any
time. With one place for a text, a quarter of the texts in use would be missing from a table that could hold them all.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.broker.connections import Call, Connections, Script, checked, translated
from shoal.cache.turns import KEYS_AT_ONCE, Turns
from shoal.jobs import Options
from shoal.keys import Keys

#: What Redis may need for an entry beside its name and value. Versions 6.2 and 7.0 took 100 to 200 bytes.
PLACE_BYTES = 256

_HEADER = struct.Struct("<16sI?3x")
_CHECKSUM = struct.Struct("<I")
_WHOLE = 0x2144DF1C  # the CRC-32 of whatever ends with its own CRC-32
_HALVES = struct.Struct("<QQ")
_STORE = Script.load("store")


class Entry(NamedTuple):
    """What is known of a text: its pooled vector float32 `[1, dimension]`, its tokens, and whether it was cut."""

    vectors: NDArray[np.float32]
    num_tokens: int
    truncated: bool

    def suits(self, options: Options) -> bool:
        """Whether it may answer for a text with these options: not if they refuse what it had to cut."""
        return options.truncate or not self.truncated

    def pack(self, digest: bytes) -> bytes:
        """The entry as it is stored (docs/protocol.md)."""
        vector = self.vectors.astype("<f4", copy=False).tobytes()
        data = _HEADER.pack(digest, self.num_tokens, self.truncated) + vector
        return data + _CHECKSUM.pack(crc32(data))

    @classmethod
    def unpack(cls, data: bytes | None, digest: bytes, dimension: int) -> Self | None:
        """The entry in `data`, its vector a read-only view; None if it is another text's, or damaged."""
        if data is None or len(data) != _size_bytes(dimension) or not data.startswith(digest) or crc32(data) != _WHOLE:
            return None
        _, num_tokens, truncated = _HEADER.unpack_from(data)
        return cls(np.frombuffer(data, "<f4", dimension, _HEADER.size)[None], num_tokens, truncated)


@dataclass(frozen=True, slots=True)
class Table:
    """A pool's table as its workers announce it: its places, and what a digest depends on besides text and options.

    Workers with the same `fingerprint` make the same vectors. `prompts` are texts by the names of the prompts.
    """

    model: str
    dimension: int
    pooling: str
    fingerprint: str
    num_places: int
    prompts: dict[str, str]
    default_prompt: str

    @classmethod
    def agreed(cls, workers: Iterable[Mapping[str, Any]]) -> Self | None:
        """The table that all of these heartbeats announce; None if one has none, or they differ."""
        tables = [cls._announced(about) for about in workers]
        return tables[0] if tables and all(table == tables[0] for table in tables) else None

    @classmethod
    def _announced(cls, about: Mapping[str, Any]) -> Self | None:
        try:
            table = cls(about["model"], about["dimension"], about["pooling"], **about["cache"])
            return table if table._is_sound() else None
        except (KeyError, TypeError, AttributeError):  # it has no cache, or is of another version
            return None

    def _is_sound(self) -> bool:
        words = (self.model, self.pooling, self.fingerprint, self.default_prompt, *self.prompts, *self.prompts.values())
        sizes = (self.dimension, self.num_places)
        return all(isinstance(word, str) for word in words) and all(isinstance(n, int) and n > 0 for n in sizes)

    def about(self) -> dict[str, Any]:
        """What a heartbeat says of the cache."""
        names = ("fingerprint", "num_places", "prompts", "default_prompt")
        return {name: getattr(self, name) for name in names}

    def suits(self, options: Options) -> bool:
        """Whether the model can follow the options of an embed; if it cannot, a worker says why."""
        has_prompt = options.prompt_name is None or options.prompt_name in self.prompts
        return has_prompt and (options.dimensions or 0) <= self.dimension

    def prompt(self, name: str | None) -> str:
        """The text of the prompt of that name; without a name, of the default one."""
        return self.default_prompt if name is None else self.prompts[name]

    def digests(self, texts: Sequence[str], prompt: str, options: Options) -> list[bytes]:
        """The digest of each text after the prompt: 16 bytes over all that its entry depends on."""
        pooling = options.pooling or self.pooling
        start = "\0".join((self.fingerprint, pooling, options.truncation_side, prompt))
        hasher = blake2b(_encoded(start), digest_size=16)
        digests = []
        for text in texts:
            one = hasher.copy()
            one.update(_encoded(text))
            digests.append(one.digest())
        return digests


class Cache:
    """The table of a pool, for reading and for writing. Thread-safe."""

    def __init__(self, connections: Connections, keys: Keys, table: Table, ttl_s: int = 86_400):
        self.table = table
        self._ttl_s = ttl_s
        self._root = keys.cache("")
        self._connections = connections
        self._turns = Turns(connections)

    def find(self, digests: Sequence[bytes]) -> list[Entry | None]:
        """The entry of each digest, where there is one.

        Raises Unavailable.
        """
        found: list[Entry | None] = []
        for start in range(0, len(digests), KEYS_AT_ONCE // 2):
            some = digests[start : start + KEYS_AT_ONCE // 2]
            values = iter(self._turns.read(self._places(some)))
            found += [self._unpack(digest, next(values), next(values)) for digest in some]
        return found

    def store(self, entries: Mapping[bytes, Entry]) -> None:
        """Puts the entries into their places.

        Raises Overloaded when Redis is full, and Unavailable.
        """
        if entries:
            values = [entry.pack(digest) for digest, entry in entries.items()]
            with translated():
                (answer,) = self._connections.run(_STORE, Call(self._places(entries), [self._ttl_s, *values]))
                checked(answer)

    def _places(self, digests: Iterable[bytes]) -> list[str]:
        """The keys of both places of each digest."""
        halves = (half for digest in digests for half in _HALVES.unpack(digest))
        return [f"{self._root}{half % self.table.num_places}" for half in halves]

    def _unpack(self, digest: bytes, *values: bytes | None) -> Entry | None:
        for data in values:
            if entry := Entry.unpack(data, digest, self.table.dimension):
                return entry
        return None


def num_places(size_mb: int, dimension: int, keys: Keys) -> int:
    """How many entries fit into `size_mb` of Redis's memory."""
    value_bytes = _size_bytes(dimension) + 10
    step = 1 << ((value_bytes - 1).bit_length() - 3)  # jemalloc has four sizes from one power of two to the next
    name_bytes = len(keys.cache("")) + 8
    return size_mb * 2**20 // (-(-value_bytes // step) * step + name_bytes + PLACE_BYTES)


def _size_bytes(dimension: int) -> int:
    return _HEADER.size + 4 * dimension + _CHECKSUM.size


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # that UTF-8 cannot hold it is for others to say
