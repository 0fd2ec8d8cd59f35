"""The outline of a job: a few fields, which are read without unpacking the rest of the job."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import msgpack

from shoal.contract import traceparent
from shoal.contract.jobs import OPERATION_NAMES
from shoal.contract.keys import NAME

#: Largest number of a map's fields that are read. Each takes some microseconds, and a job can have millions.
MAX_FIELDS = 1_000

_UNREADABLE = (msgpack.UnpackException, ValueError, TypeError, MemoryError)


@dataclass(frozen=True, slots=True)
class Outline:
    """The fields that identify a job, the address of its reply, and its number of texts. A wrong field is None.

    It has only fields that are among the first `MAX_FIELDS`, and that come before any cut or damage in the bytes.
    """

    id: str | None = None
    reply_to: str | None = None
    op: str | None = None
    traceparent: str | None = None
    num_texts: int | None = None

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the outline of the job in `data`. Unpacking the whole job could need a hundred times its size."""
        found: dict[str | None, bytes] = {}
        with suppress(*_UNREADABLE):
            reader = _reader(data)
            for _ in range(min(MAX_FIELDS, reader.read_map_header())):
                start = reader.tell()
                reader.skip()
                name, start = _string(data[start : reader.tell()]), reader.tell()
                if name == "texts":  # known although the texts may be cut
                    found[name] = data[start : start + 5]  # the longest header of a list
                reader.skip()
                if name in ("id", "reply_to", "op", "traceparent"):
                    found[name] = data[start : reader.tell()]
        values = {name: _string(value) for name, value in found.items()}
        num_texts = None
        with suppress(*_UNREADABLE):
            num_texts = int(_reader(found.get("texts", b"")).read_array_header())
        return cls(
            _name(values.get("id")),
            _name(values.get("reply_to")),
            op if (op := values.get("op")) in OPERATION_NAMES else None,
            traceparent.valid(values.get("traceparent")),
            num_texts,
        )


def _name(value: str | None) -> str | None:
    return value if value is not None and NAME.fullmatch(value) else None


def _reader(data: bytes) -> msgpack.Unpacker:
    """Return an unpacker for strings and numbers. It refuses lists and maps."""
    reader = msgpack.Unpacker(
        max_buffer_size=len(data), raw=False, unicode_errors="replace", max_array_len=0, max_map_len=0
    )
    reader.feed(data)
    return reader


def _string(data: bytes) -> str | None:
    """Return the string in the bytes, or None for another value or over 256 bytes."""
    with suppress(*_UNREADABLE):
        value = _reader(data).unpack() if len(data) <= 256 else None
        return value if isinstance(value, str) else None
    return None
