"""The table of a pool's cache: a fixed number of places in Redis, each with one entry or none.

The digest of a text names two places, and the text's entry may be in either. If it named one place, a quarter of the
texts in use would be missing even from a table with a place for each.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

from shoal.cache.entry import Entry, size_bytes
from shoal.contract.keys import Keys
from shoal.contract.options import Options

#: Bytes that Redis may need for an entry in addition to its key and value. Versions 6.2 and 7.0 needed 100 to 200.
OVERHEAD_BYTES = 256

#: Largest number of texts that one command looks up, so that a long list does not delay Redis's other clients.
MAX_TEXTS_PER_READ = 512

_TWO_NUMBERS = struct.Struct("<QQ")

#: Fields of `Table` that are in a heartbeat's map "cache". The other fields are in the heartbeat itself.
_ANNOUNCED = ("fingerprint", "num_places", "prompts", "default_prompt")


@dataclass(frozen=True, slots=True)
class Table:
    """The number of places in a pool's cache, and what a digest depends on in addition to the text and its options.

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
        except (KeyError, TypeError, AttributeError):  # a worker has no cache, or is of another version
            return None
        return tables[0] if is_one else None

    def _is_valid(self) -> bool:
        words = (self.model, self.pooling, self.fingerprint, self.default_prompt, *self.prompts, *self.prompts.values())
        sizes = (self.dimension, self.num_places)
        return all(isinstance(word, str) for word in words) and all(isinstance(n, int) and n > 0 for n in sizes)

    def to_heartbeat(self) -> dict[str, Any]:
        """Return the map "cache" of a heartbeat."""
        return {name: getattr(self, name) for name in _ANNOUNCED}

    def supports(self, options: Options) -> bool:
        """Return True if the model supports the options of an embed. If not, only a worker can say why."""
        has_prompt = options.prompt_name is None or options.prompt_name in self.prompts
        return has_prompt and (options.dimensions or 0) <= self.dimension

    def prompt(self, name: str | None) -> str:
        """Return the text of the prompt with this name, or of the default prompt."""
        return self.default_prompt if name is None else self.prompts[name]

    def digests(self, texts: Sequence[str], prompt: str, options: Options) -> list[bytes]:
        """Return the digest of each text: a hash of everything on which its vector depends."""
        pooling = options.pooling or self.pooling
        start = "\0".join((self.fingerprint, pooling, options.truncation_side, prompt))
        hasher = blake2b(_encode(start), digest_size=16)
        digests = []
        for text in texts:
            text_hasher = hasher.copy()
            text_hasher.update(_encode(text))
            digests.append(text_hasher.digest())
        return digests

    def parts(self, digests: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Yield the digests in parts, each small enough for one command."""
        return (digests[n : n + MAX_TEXTS_PER_READ] for n in range(0, len(digests), MAX_TEXTS_PER_READ))

    def places(self, prefix: str, digests: Iterable[bytes]) -> list[str]:
        """Return the Redis keys of both places of each digest. All begin with the prefix."""
        numbers = (number for digest in digests for number in _TWO_NUMBERS.unpack(digest))
        return [f"{prefix}{number % self.num_places}" for number in numbers]

    def entries(self, digests: Sequence[bytes], values: Sequence[bytes | None]) -> list[Entry | None]:
        """Return each digest's entry, or None; `values` has the contents of each digest's two places in turn."""
        return [
            Entry.unpack(values[2 * n], digest, self.dimension)
            or Entry.unpack(values[2 * n + 1], digest, self.dimension)
            for n, digest in enumerate(digests)
        ]


def num_places(size_mb: int, dimension: int, keys: Keys) -> int:
    """Return how many entries fit into `size_mb` of Redis's memory."""
    value_bytes = size_bytes(dimension) + 10
    step = 1 << ((value_bytes - 1).bit_length() - 3)  # jemalloc has four sizes from one power of two to the next
    name_bytes = len(keys.cache("")) + 8
    return size_mb * 2**20 // (-(-value_bytes // step) * step + name_bytes + OVERHEAD_BYTES)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # `Job.pack` refuses a lone surrogate later
