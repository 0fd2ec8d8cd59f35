"""The fields of a job's hash in Redis, which any program that reaches it may have written."""

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shoal.contract import wire
from shoal.errors import ShoalError
from shoal.long_jobs.serializer import MsgpackSerializer

#: Most bytes of a field, uncompressed.
MAX_BYTES = 2**20


class JobFields:
    """The fields of a job's hash; one that has a value of another kind than expected counts as missing."""

    def __init__(self, raw: Mapping[bytes, bytes]):
        self._raw = raw

    def text(self, name: str) -> str:
        """Return the text of a field."""
        return self._raw.get(name.encode(), b"")[:MAX_BYTES].decode(errors="replace")

    def count(self, name: str) -> int:
        """Return the whole number of a field, from 0."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    def time(self, name: str) -> datetime | None:
        """Return the time of a field, in UTC."""
        try:
            found = datetime.fromisoformat(self.text(name))
        except ValueError:
            return None
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    def data(self) -> bytes:
        """Return the bytes that RQ compressed; none if they are of another kind, or over `MAX_BYTES`."""
        try:
            inflate = zlib.decompressobj()
            plain = inflate.decompress(self._raw.get(b"data", b""), MAX_BYTES)
        except zlib.error:
            return b""
        return plain if inflate.eof else b""

    def meta(self) -> dict[str, Any]:
        """Return the map with the progress and the error; an empty one if it cannot be read."""
        data = self._raw.get(b"meta", b"")
        try:
            value = MsgpackSerializer.loads(data) if 0 < len(data) <= MAX_BYTES else {}
        except ShoalError:
            return {}
        return value if isinstance(value, dict) and wire.is_json(value) else {}
