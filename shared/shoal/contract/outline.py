"""The outline of a job: a few fields, which are read without unpacking the rest of the job."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import msgpack

from shoal.contract import traceparent
from shoal.contract.jobs import OPERATION_NAMES, check_name
from shoal.errors import InvalidRequest

#: Size limit of a msgpack list's header, in bytes.
_MAX_HEADER_BYTES = 5

#: Size limit of a name or a value in an outline, in bytes. Longer names and values are skipped.
_MAX_STRING_BYTES = 256

#: Largest number of a map's fields that are read. Each takes some microseconds, and a job can have millions.
MAX_FIELDS = 1_000

_FIELDS = ("id", "reply_to", "op", "traceparent")

_UNREADABLE = (msgpack.UnpackException, ValueError, TypeError, MemoryError)


@dataclass(slots=True)
class Outline:
    """The fields that identify a job, the address of its reply, and its number of texts.

    It has only fields that are among the first `MAX_FIELDS`, and that come before any cut or damage in the bytes.
    """

    fields: dict[str, str | None] = field(default_factory=dict)
    num_texts: int | None = None

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the outline of the job in `data`. Unpacking the whole job could need a hundred times its size."""
        outline = cls()
        with suppress(*_UNREADABLE):
            reader = _reader(data)
            for _ in range(min(MAX_FIELDS, reader.read_map_header())):
                start = reader.tell()
                reader.skip()
                name, start = _string(data, start, reader.tell()), reader.tell()
                if name == "texts":
                    with suppress(*_UNREADABLE):
                        header = _reader(data[start : start + _MAX_HEADER_BYTES])
                        outline.num_texts = int(header.read_array_header())
                reader.skip()
                if name in _FIELDS:
                    outline.fields[name] = _string(data, start, reader.tell())
        return outline

    @property
    def op(self) -> str | None:
        """The operation, or None if no operation has this name."""
        op = self.fields.get("op")
        return op if op in OPERATION_NAMES else None

    @property
    def id(self) -> str | None:
        """The id, or None if it is not valid."""
        return self._name("id")

    @property
    def reply_to(self) -> str | None:
        """The reply address, or None if it is not valid."""
        return self._name("reply_to")

    @property
    def traceparent(self) -> str | None:
        """The traceparent of the job, or None if it is not valid."""
        return traceparent.valid(self.fields.get("traceparent"))

    def _name(self, name: str) -> str | None:
        with suppress(InvalidRequest):
            return check_name(name, self.fields.get(name))
        return None


def _reader(data: bytes) -> msgpack.Unpacker:
    """Return an unpacker for strings and numbers. It refuses lists and maps."""
    reader = msgpack.Unpacker(
        max_buffer_size=len(data), raw=False, unicode_errors="replace", max_array_len=0, max_map_len=0
    )
    reader.feed(data)
    return reader


def _string(data: bytes, start: int, end: int) -> str | None:
    """Return the string in `data[start:end]`, or None for another value or a long string."""
    with suppress(*_UNREADABLE):
        value = _reader(data[start:end]).unpack() if end - start <= _MAX_STRING_BYTES else None
        return value if isinstance(value, str) else None
    return None
