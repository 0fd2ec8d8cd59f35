"""A job as a worker gets it out of its lane."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Self

from shoal.errors import TooLarge
from shoal.queue.lane import MAX_PUT_BYTES, Source

#: The fields of an entry that a worker reads beside the job.
FIELDS = ("id", "client", "put_by", "put_ms", "record", "delivered")

#: Most bytes of a job that are looked at to tell it from another one, and all that is read of one that is too large.
HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Delivery:
    """One job as it came out of its lane: still bytes, and pending until it is answered.

    If the script put the job, `id` is the job's id, `client` is the name of the client that put it, and `has_record` is
    true if it made a record. `put_ms` is when Redis took the job in, in Unix milliseconds. `num_deliveries` counts
    workers that the job may have ended, and this delivery. `owner` is the worker that left the job behind, if this one
    claimed it: a dead one, or itself. A job that is too large has only its beginning in `data`.
    """

    lane: str
    entry: bytes
    data: bytes
    put_ms: int
    is_overflow: bool = False
    num_deliveries: int = 1
    owner: str = ""
    id: bytes = b""
    has_record: bool = False
    size_bytes: int = 0
    client: str = ""

    @classmethod
    def read(cls, source: Source, job: Mapping[str, Any], num_deliveries: int = 1, owner: str = "") -> Self:
        """Return the delivery of a job, given as the scripts return its entry.

        `num_deliveries` counts those since the job came into its stream, in which it may have been before.
        """
        put_ms, former = job.get("put_ms") or b"", job.get("delivered") or b""
        if not (put_ms.isdigit() and len(put_ms) < 16):
            put_ms = job["entry"].partition(b"-")[0]
        if former.isdigit() and len(former) < 3:
            num_deliveries += int(former)
        size_bytes = int(job.get("size_bytes", len(job["job"])))
        return cls(
            source.lane,
            job["entry"],
            job["job"] if size_bytes <= MAX_PUT_BYTES else job["job"][:HEAD_BYTES],
            int(put_ms),
            source.is_overflow,
            num_deliveries,
            owner,
            job.get("id") or b"",
            job.get("record") is not None,
            size_bytes,
            (job.get("client") or job.get("put_by") or b"").decode(errors="replace"),
        )

    def check_size(self) -> None:
        """Raise TooLarge for a job of more than `MAX_PUT_BYTES`."""
        if self.size_bytes > MAX_PUT_BYTES:
            raise TooLarge(f"the job has {self.size_bytes:,} bytes and may have {MAX_PUT_BYTES:,}: split it")

    @property
    def identity(self) -> str | bytes:
        """Return what tells the job from another one in the same entry; `holds` in `lane.lua` compares it."""
        return self.id or sha1(self.data[:HEAD_BYTES], usedforsecurity=False).hexdigest()

    @property
    def is_suspect(self) -> bool:
        """Return True if the job may have ended a worker."""
        return self.num_deliveries > 1

    @property
    def source(self) -> Source:
        """Return the source that the job came from."""
        return Source(self.lane, self.is_overflow)

    def queued_s(self, now: float) -> float:
        """Return the seconds from when Redis took the job in until `now`, in Unix seconds."""
        return max(0.0, now - self.put_ms / 1000)
