"""The shape of a pool's cache, as its workers announce it in their heartbeats, and the keys of texts in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

from shoal.cache.entry import size_bytes
from shoal.contract.keys import Keys
from shoal.contract.options import Options

#: Bytes that Redis may need for an entry beside its name and value. Versions 6.2 and 7.0 took 100 to 200.
OVERHEAD_BYTES = 256

#: Fields of `Table` that a heartbeat has under "cache"; the others stand beside it.
_CACHE_FIELDS = ("fingerprint", "num_places", "prompts", "default_prompt")


@dataclass(frozen=True, slots=True)
class Table:
    """The number of places in a pool's cache, and all that a digest depends on besides text and options.

    Workers with the same `fingerprint` compute the same vectors. `prompts` has the text of each prompt by its name.
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
        """Return the table in these heartbeats; None if they differ, or if one of them has no valid table."""
        tables = [cls._from_heartbeat(heartbeat) for heartbeat in heartbeats]
        return tables[0] if tables and all(table == tables[0] for table in tables) else None

    @classmethod
    def _from_heartbeat(cls, heartbeat: Mapping[str, Any]) -> Self | None:
        try:
            table = cls(heartbeat["model"], heartbeat["dimension"], heartbeat["pooling"], **heartbeat["cache"])
            return table if table._is_valid() else None
        except (KeyError, TypeError, AttributeError):  # the worker has no cache, or is of another version
            return None

    def _is_valid(self) -> bool:
        words = (self.model, self.pooling, self.fingerprint, self.default_prompt, *self.prompts, *self.prompts.values())
        sizes = (self.dimension, self.num_places)
        return all(isinstance(word, str) for word in words) and all(isinstance(n, int) and n > 0 for n in sizes)

    def to_heartbeat(self) -> dict[str, Any]:
        """Return the map that a heartbeat has under "cache"."""
        return {name: getattr(self, name) for name in _CACHE_FIELDS}

    def supports(self, options: Options) -> bool:
        """Return True if the model can follow the options of an embed; if not, only a worker can say why."""
        has_prompt = options.prompt_name is None or options.prompt_name in self.prompts
        return has_prompt and (options.dimensions or 0) <= self.dimension

    def prompt(self, name: str | None) -> str:
        """Return the text of the prompt of that name, or of the default one."""
        return self.default_prompt if name is None else self.prompts[name]

    def digests(self, texts: Sequence[str], prompt: str, options: Options) -> list[bytes]:
        """Return the cache key of each text: a hash of the prompt, the text and all else that its vector depends on."""
        pooling = options.pooling or self.pooling
        start = "\0".join((self.fingerprint, pooling, options.truncation_side, prompt))
        hasher = blake2b(_encode(start), digest_size=16)
        digests = []
        for text in texts:
            text_hasher = hasher.copy()
            text_hasher.update(_encode(text))
            digests.append(text_hasher.digest())
        return digests


def num_places(size_mb: int, dimension: int, keys: Keys) -> int:
    """Return how many entries fit into `size_mb` of Redis's memory."""
    value_bytes = size_bytes(dimension) + 10
    step = 1 << ((value_bytes - 1).bit_length() - 3)  # jemalloc has four sizes from one power of two to the next
    name_bytes = len(keys.cache("")) + 8
    return size_mb * 2**20 // (-(-value_bytes // step) * step + name_bytes + OVERHEAD_BYTES)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a lone surrogate is refused later, when the job is packed
