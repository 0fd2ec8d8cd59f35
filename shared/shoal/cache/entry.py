"""A cached text: its vector and what the tokenizer said of it, as bytes with a digest and a checksum."""

import struct
from typing import NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.jobs import Options

_HEADER = struct.Struct("<16sI?3x")  # digest, tokens, whether the text was cut
_CHECKSUM = struct.Struct("<I")

#: The CRC-32 of any bytes that end with their own CRC-32, little-endian.
_CRC_RESIDUE = 0x2144DF1C


class Entry(NamedTuple):
    """The pooled vector of a text, float32 `[1, dimension]`, its number of tokens, and whether it was cut."""

    vectors: NDArray[np.float32]
    num_tokens: int
    truncated: bool

    def answers(self, options: Options) -> bool:
        """Return True unless the options refuse truncation and the text was cut."""
        return options.truncate or not self.truncated

    def pack(self, digest: bytes) -> bytes:
        """Return the bytes to store (docs/protocol.md)."""
        vector = self.vectors.astype("<f4", copy=False).tobytes()
        data = _HEADER.pack(digest, self.num_tokens, self.truncated) + vector
        return data + _CHECKSUM.pack(crc32(data))

    @classmethod
    def unpack(cls, data: bytes | None, digest: bytes, dimension: int) -> Self | None:
        """Return the entry in `data`, its vector a read-only view; None if it has another digest or is damaged."""
        if data is None or len(data) != size_bytes(dimension) or not data.startswith(digest):
            return None
        if crc32(data) != _CRC_RESIDUE:
            return None
        _, num_tokens, truncated = _HEADER.unpack_from(data)
        return cls(np.frombuffer(data, "<f4", dimension, _HEADER.size)[None], num_tokens, truncated)


def size_bytes(dimension: int) -> int:
    """Return the size of a packed entry."""
    return _HEADER.size + 4 * dimension + _CHECKSUM.size
