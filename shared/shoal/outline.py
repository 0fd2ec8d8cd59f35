"""The outline of a job: the few fields that name it, read without unpacking the rest."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import msgpack

from shoal.errors import InvalidRequest
from shoal.jobs import OPERATIONS, check_name

#: Most bytes of the header of a list in msgpack.
_MAX_HEADER_BYTES = 5

_UNREADABLE = (msgpack.UnpackException, ValueError, TypeError, MemoryError)


@dataclass(slots=True)
class Outline:
    """The fields that say which job it is and where its reply goes, and the number of its texts.

    `is_whole` is False if the bytes are not one map, or are cut off: then there are the fields of the part before.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    num_texts: int | None = None
    is_whole: bool = False

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the outline of the job in `data`.

        This takes a copy of the bytes and next to nothing else. To unpack a job can take a hundred times its bytes.
        """
        outline = cls()
        with suppress(*_UNREADABLE):
            outline._read(data)
        return outline

    @property
    def op(self) -> str | None:
        """Return the operation, if it is one of those that there are."""
        op = self.fields.get("op")
        return op if op in OPERATIONS else None

    @property
    def id(self) -> str | None:
        """Return the id, if it is one that a job may have."""
        with suppress(InvalidRequest):
            return check_name("id", self.fields.get("id"))
        return None

    def _read(self, data: bytes) -> None:
        reader = _reader(data)
        for _ in range(reader.read_map_header()):
            name = reader.unpack()
            if name in ("id", "reply_to", "op"):
                self.fields[name] = reader.unpack()
            else:
                if name == "texts":
                    start = reader.tell()
                    self.num_texts = _num_items(data[start : start + _MAX_HEADER_BYTES])
                reader.skip()
        self.is_whole = reader.tell() == len(data)


def address_of(data: bytes) -> tuple[str | None, str | None]:
    """Return the id and reply address of a job, whatever else it holds; None for what cannot be read."""
    outline = Outline.read(data)
    reply_to = outline.fields.get("reply_to")
    try:
        if outline.is_whole and outline.id is not None:
            return outline.id, None if reply_to is None else check_name("reply_to", reply_to)
    except InvalidRequest:
        pass
    return None, None


def _reader(data: bytes) -> msgpack.Unpacker:
    """Return a reader of the bytes that makes strings and numbers, and no list or map."""
    reader = msgpack.Unpacker(
        max_buffer_size=len(data), raw=False, unicode_errors="replace", max_array_len=0, max_map_len=0
    )
    reader.feed(data)
    return reader


def _num_items(header: bytes) -> int | None:
    """Return the number of items of the list that begins so; None for another value."""
    with suppress(*_UNREADABLE):
        return int(_reader(header).read_array_header())
    return None
