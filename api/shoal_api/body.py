"""The body of a request as a server has it: to be read whole, or piece by piece."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import BinaryIO, Protocol

#: Name of an entry of a request's environment, which has its `Body` where the server is no WSGI server.
BODY = "shoal.body"

#: Most digits of a content length that are looked at: more would still be over every limit, and slow to convert.
MAX_LENGTH_DIGITS = 18

#: Size of the pieces of a body, or of a file that is sent.
PIECE_BYTES = 2**16


class Body(Protocol):
    """A body that is read once."""

    async def all(self) -> bytes:
        """Return all of it."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield it piece by piece."""


class WsgiBody:
    """The body of a request of a WSGI server, whose reads block; `num_bytes` is None if its size is not known."""

    def __init__(self, source: BinaryIO, num_bytes: int | None):
        self._source = source
        self._num_left = sys.maxsize if num_bytes is None else num_bytes

    async def all(self) -> bytes:
        """Return all of it."""
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield it piece by piece."""
        while self._num_left and (piece := await asyncio.to_thread(self._source.read, min(self._num_left, 2**20))):
            self._num_left -= len(piece)
            yield piece
