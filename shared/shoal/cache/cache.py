"""The cache of a pool: a hash table in Redis, with a fixed number of places for vectors of texts.

A place has one entry or none. A text's entry may be in either of the two places that its digest gives. If a digest
gave only one place, a quarter of the texts would find that place taken, even in a table with as many places as texts.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.broker.broker import Broker, Script
from shoal.contract.keys import Keys
from shoal.contract.options import Options

#: Seconds for which an entry is kept.
TTL_S = 86_400

#: Largest number of texts that one command looks up, so that a long list does not delay Redis's other clients.
MAX_TEXTS_PER_READ = 512

_TWO_NUMBERS = struct.Struct("<QQ")

_STORE = Script.load("shoal.cache", "store")

_HEADER = struct.Struct("<16sI?3s")  # digest, number of tokens, whether the text was cut, `characters`
_CHECKSUM = struct.Struct("<I")


class Entry(NamedTuple):
    """The pooled vector of a text, float32 `[1, dimension]`, its number of tokens, and whether the text was cut.

    `characters` is the number of characters that were read of a cut text. It is 0 for other texts.
    """

    vectors: NDArray[np.float32]
    num_tokens: int
    truncated: bool
    characters: int = 0

    def answers(self, options: Options) -> bool:
        """Return False if the text was cut and the options refuse truncation."""
        return options.truncate or not self.truncated

    def pack(self, digest: bytes) -> bytes:
        """Return the entry as bytes (docs/protocol.md)."""
        vector = self.vectors.astype("<f4", copy=False).tobytes()
        characters = min(self.characters, 2**24 - 1).to_bytes(3, "little")  # a worker reads fewer
        data = _HEADER.pack(digest, self.num_tokens, self.truncated, characters) + vector
        return data + _CHECKSUM.pack(crc32(data))

    @classmethod
    def unpack(cls, data: bytes, digest: bytes, dimension: int) -> Self | None:
        """Return the entry in `data`, with a read-only vector; None if `data` has another digest or is damaged."""
        if len(data) != size_bytes(dimension) or not data.startswith(digest):
            return None
        if crc32(data) != 0x2144DF1C:  # the CRC-32 of any data that end with their own CRC-32, little-endian
            return None
        _, num_tokens, truncated, read = _HEADER.unpack_from(data)
        vectors, characters = np.frombuffer(data, "<f4", dimension, _HEADER.size)[None], int.from_bytes(read, "little")
        return cls(vectors, num_tokens, truncated, characters)


@dataclass(frozen=True, slots=True)
class Table:
    """The number of places in a pool's cache, and the values that a digest contains besides the text and its options.

    Workers with equal `fingerprint` compute the same vectors. `prompts` maps the name of each prompt to its text.
    """

    model: str
    dimension: int
    pooling: str
    fingerprint: str
    num_places: int
    prompts: dict[str, str]
    default_prompt: str

    @classmethod
    def from_heartbeats(cls, heartbeats: Iterable[Mapping[str, Any]]) -> Self | None:
        """Return the table that all heartbeats announce; None if they differ, or if one has no valid table."""
        try:
            tables = [
                cls(about["model"], about["dimension"], about["pooling"], **about["cache"]) for about in heartbeats
            ]
            is_one = bool(tables) and all(table._is_valid() and table == tables[0] for table in tables)
        except (KeyError, TypeError, AttributeError):  # a worker has no cache, or another version of Shoal
            return None
        return tables[0] if is_one else None

    def _is_valid(self) -> bool:
        words = (self.model, self.pooling, self.fingerprint, self.default_prompt, *self.prompts, *self.prompts.values())
        sizes = (self.dimension, self.num_places)
        return all(isinstance(word, str) for word in words) and all(isinstance(n, int) and n > 0 for n in sizes)

    def to_heartbeat(self) -> dict[str, Any]:
        """Return the map "cache" of a heartbeat. The other fields are in the heartbeat itself."""
        return {name: getattr(self, name) for name in ("fingerprint", "num_places", "prompts", "default_prompt")}

    def prompt_for(self, options: Options) -> str | None:
        """Return the prompt of an embed job, as text; None for options that only a worker can answer or refuse."""
        if (options.dimensions or 0) > self.dimension:
            return None
        return self.default_prompt if options.prompt_name is None else self.prompts.get(options.prompt_name)

    def digests(self, texts: Sequence[str], prompt: str, options: Options) -> list[bytes]:
        """Return the digest of each text: a hash of everything on which its vector depends."""
        pooling = options.pooling or self.pooling
        start = "\0".join((self.fingerprint, pooling, options.truncation_side, prompt))
        hasher = blake2b(start.encode("utf-8", "surrogatepass"), digest_size=16)
        digests = []
        for text in texts:
            text_hasher = hasher.copy()
            text_hasher.update(text.encode("utf-8", "surrogatepass"))  # `Job.pack` refuses a lone surrogate later
            digests.append(text_hasher.digest())
        return digests

    def places(self, prefix: str, digests: Iterable[bytes]) -> list[str]:
        """Return the Redis keys of both places of each digest. All keys begin with `prefix`."""
        numbers = (number for digest in digests for number in _TWO_NUMBERS.unpack(digest))
        return [f"{prefix}{number % self.num_places}" for number in numbers]

    def entries(self, digests: Sequence[bytes], values: Sequence[bytes | None]) -> list[Entry | None]:
        """Return each digest's entry, or None; `values` has the contents of each digest's two places in turn."""
        found: list[Entry | None] = []
        for n, digest in enumerate(digests):
            places = (Entry.unpack(data, digest, self.dimension) for data in values[2 * n : 2 * n + 2] if data)
            found.append(next(filter(None, places), None))
        return found


class Cache:
    """The entries of a pool's cache, which workers read and write. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys, table: Table, ttl_s: int = TTL_S):
        self.table = table
        self._prefix = keys.cache("")
        self._ttl_s = ttl_s
        self._broker = broker

    def find(self, digests: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each digest, or None. Raises Unavailable."""
        entries: list[Entry | None] = []
        for n in range(0, len(digests), MAX_TEXTS_PER_READ):
            part = digests[n : n + MAX_TEXTS_PER_READ]
            values = self._broker.execute("MGET", *self.table.places(self._prefix, part))
            entries += self.table.entries(part, values)
        return entries

    def store(self, entries: Mapping[bytes, Entry]) -> None:
        """Write each entry to one of the two places of its digest. Raises Overloaded and Unavailable."""
        if entries:
            values = [entry.pack(digest) for digest, entry in entries.items()]
            places = self.table.places(self._prefix, entries)
            self._broker.run(_STORE, places, {"ttl_s": self._ttl_s, "entries": values})


def size_bytes(dimension: int) -> int:
    """Return the size of a packed entry."""
    return _HEADER.size + 4 * dimension + _CHECKSUM.size


def num_places(size_mb: int, dimension: int, keys: Keys) -> int:
    """Return the number of entries that fit into `size_mb` of Redis's memory."""
    value_bytes = size_bytes(dimension) + 10
    step = 1 << ((value_bytes - 1).bit_length() - 3)  # jemalloc has four sizes from one power of two to the next
    name_bytes = len(keys.cache("")) + 8
    overhead_bytes = 256  # Redis 6.2 and 7.0 needed 100 to 200 in addition
    return size_mb * 2**20 // (-(-value_bytes // step) * step + name_bytes + overhead_bytes)
