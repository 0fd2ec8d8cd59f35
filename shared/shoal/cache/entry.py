"""An entry of the cache: the vector of a text and its number of tokens, packed with a digest and a checksum."""

import struct
from typing import NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import Options

_HEADER = struct.Struct("<16sI?3s")  # digest, tokens, 1 for a cut text, characters that were read of it
_CHECKSUM = struct.Struct("<I")

#: Highest number of characters that fits into an entry. A worker reads fewer characters of a text.
_MAX_CHARACTERS = 2**24 - 1

#: The CRC-32 of any bytes that are followed by their own CRC-32, little-endian.
_CRC_RESIDUE = 0x2144DF1C


class Entry(NamedTuple):
    """The pooled vector of a text, float32 `[1, dimension]`, its number of tokens, and whether the text was cut.

    `characters` says how many characters of a cut text were read. It is 0 for other texts.
    """

    vectors: NDArray[np.float32]
    num_tokens: int
    truncated: bool
    characters: int = 0

    def num_read(self, text: str) -> int:
        """Return how many characters of the entry's text were read."""
        return self.characters if self.truncated else len(text)

    def answers(self, options: Options) -> bool:
        """Return False if the text was cut and the options refuse truncation."""
        return options.truncate or not self.truncated

    def pack(self, digest: bytes) -> bytes:
        """Return the entry as bytes (docs/protocol.md)."""
        vector = self.vectors.astype("<f4", copy=False).tobytes()
        characters = min(self.characters, _MAX_CHARACTERS).to_bytes(3, "little")
        data = _HEADER.pack(digest, self.num_tokens, self.truncated, characters) + vector
        return data + _CHECKSUM.pack(crc32(data))

    @classmethod
    def unpack(cls, data: bytes | None, digest: bytes, dimension: int) -> Self | None:
        """Return the entry in `data`, with a read-only vector; None if `data` has another digest or is damaged."""
        if data is None or len(data) != size_bytes(dimension) or not data.startswith(digest):
            return None
        if crc32(data) != _CRC_RESIDUE:
            return None
        _, num_tokens, truncated, read = _HEADER.unpack_from(data)
        vectors, characters = np.frombuffer(data, "<f4", dimension, _HEADER.size)[None], int.from_bytes(read, "little")
        return cls(vectors, num_tokens, truncated, characters)


def size_bytes(dimension: int) -> int:
    """Return the size of a packed entry."""
    return _HEADER.size + 4 * dimension + _CHECKSUM.size
