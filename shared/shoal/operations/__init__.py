"""Operations: everything that workers can do. Each operation has a class of jobs, which a table finds by its name."""

from typing import Any

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import Job
from shoal.errors import InvalidRequest, MalformedJob, UnsupportedVersion
from shoal.operations.embed import Embed
from shoal.operations.rerank import Rerank
from shoal.operations.search import Search
from shoal.operations.tokenize import Decode, Tokenize

__all__ = ["OPERATIONS", "Decode", "Embed", "Rerank", "Search", "Tokenize", "job_class", "unpack"]

#: The class of an operation's jobs, by the operation's name.
OPERATIONS: dict[str, type[Job]] = {job.op: job for job in (Embed, Search, Rerank, Tokenize, Decode)}

#: Largest number of values in the arrays and maps of a job. The scripts accept no job with this many texts.
MAX_VALUES = 2**20


def unpack(data: bytes, put_s: float = 0.0, reply_to: str | None = "") -> Job:
    """Return the job in `data`. It was put at `put_s`, in Unix seconds by Redis's clock.

    The reply goes to the address `reply_to`. None means the result list, and "" means the address in the bytes.

    Raises MalformedJob, UnsupportedVersion, InvalidRequest, which names the wrong field, and TooLarge for more than
    `MAX_VALUES` values.
    """
    values = wire.unpack(data, MAX_VALUES)
    if bytes in map(type, values):
        raise MalformedJob("a key of the msgpack map is a byte string: write each key as a string")
    if (version := values.get("v")) != wire.VERSION:
        raise UnsupportedVersion(f"the job has v {excerpt(version)}: this worker speaks version {wire.VERSION}")
    for name in ("id", "op", "texts"):
        if name not in values:
            raise MalformedJob(f"the job has no field {name!r}: id, op and texts are required")
    if reply_to != "":
        values["reply_to"] = reply_to
    return job_class(values["op"]).of_map(values, put_s)


def job_class(op: Any) -> type[Job]:
    """Return the class of the operation's jobs. Raises InvalidRequest if no operation has this name."""
    if not isinstance(op, str) or op not in OPERATIONS:
        raise InvalidRequest(f"op is {excerpt(op)}: it takes one of {', '.join(OPERATIONS)}")
    return OPERATIONS[op]
