"""The bytes that RQ keeps for long jobs. They are msgpack, which contains plain values and no code."""

from typing import Any

from shoal.contract import wire
from shoal.errors import MalformedJob

#: Largest number of values in the arrays and maps that RQ keeps for a job. Shoal's own jobs have far fewer.
MAX_VALUES = 65_536

_FIELD = "value"


class MsgpackSerializer:
    """The serializer for RQ and its tools: `rq info --serializer shoal.long_jobs.serializer.MsgpackSerializer`."""

    @staticmethod
    def dumps(value: Any, /) -> bytes:
        """Return a value, which may contain only plain values, as bytes."""
        return wire.pack({_FIELD: value})

    @staticmethod
    def loads(data: bytes, /) -> Any:
        """Return the value. Raises MalformedJob, InvalidText or TooLarge for bytes that `dumps` did not write."""
        values = wire.unpack(data, MAX_VALUES)
        if _FIELD not in values:
            raise MalformedJob(f"the {len(data):,} bytes have no {_FIELD}: they were not written by this serializer")
        return values[_FIELD]
