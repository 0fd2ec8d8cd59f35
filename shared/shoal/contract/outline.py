"""The outline of a job: the few fields that name it, read without unpacking the rest."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import msgpack

from shoal.contract import traceparent
from shoal.contract.jobs import OPERATION_NAMES, check_name
from shoal.errors import InvalidRequest

#: Most bytes of the header of a list in msgpack.
_MAX_HEADER_BYTES = 5

#: Most bytes of a field's name or value that are looked at: an outline has no longer ones.
_MAX_STRING_BYTES = 256

_FIELDS = ("id", "reply_to", "op", "traceparent")

_UNREADABLE = (msgpack.UnpackException, ValueError, TypeError, MemoryError)


@dataclass(slots=True)
class Outline:
    """The fields that say which job it is and where its reply goes, if they are strings, and the number of its texts.

    Of bytes that are cut off or damaged, there are the fields of the part before.
    """

    fields: dict[str, str | None] = field(default_factory=dict)
    num_texts: int | None = None

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the outline of the job in `data`; to unpack the job could take a hundred times its bytes."""
        outline = cls()
        with suppress(*_UNREADABLE):
            reader = _reader(data)
            for _ in range(reader.read_map_header()):
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
        """Return the operation, if it is one of those that there are."""
        op = self.fields.get("op")
        return op if op in OPERATION_NAMES else None

    @property
    def id(self) -> str | None:
        """Return the id, if it is one that a job may have."""
        return self._name("id")

    @property
    def reply_to(self) -> str | None:
        """Return the reply address, if it is one that a job may have."""
        return self._name("reply_to")

    @property
    def traceparent(self) -> str | None:
        """Return the trace that the job belongs to, if it is one."""
        return traceparent.valid(self.fields.get("traceparent"))

    def _name(self, name: str) -> str | None:
        with suppress(InvalidRequest):
            return check_name(name, self.fields.get(name))
        return None


def _reader(data: bytes) -> msgpack.Unpacker:
    """Return a reader of the bytes that makes strings and numbers, and no list or map."""
    reader = msgpack.Unpacker(
        max_buffer_size=len(data), raw=False, unicode_errors="replace", max_array_len=0, max_map_len=0
    )
    reader.feed(data)
    return reader


def _string(data: bytes, start: int, end: int) -> str | None:
    """Return the string that lies there; None for another value, or a long string."""
    with suppress(*_UNREADABLE):
        value = _reader(data[start:end]).unpack() if end - start <= _MAX_STRING_BYTES else None
        return value if isinstance(value, str) else None
    return None
