"""A job as a worker gets it from its lane, and the answer that the worker writes to Redis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal import operations
from shoal.contract import wire
from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.errors import TooLarge
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.lane import MAX_PUT_BYTES

#: Number of bytes that are read of a job that is too large.
HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job as it came out of its lane. It is still packed, and a worker holds it until it is answered.

    `key` is the id under which the job was put, or "+" and a number if it was pushed without a script. `put_ms` is in
    Unix milliseconds. `deaths` counts the workers that died while they held the job, and `died` names the last of them.
    If the job is too large, `data` is only its beginning.
    """

    lane: str
    key: str
    data: bytes
    worker: str
    put_ms: int
    deaths: int = 0
    died: str = ""
    keeps_status: bool = False
    size_bytes: int = 0
    client: str = ""
    reply_to: str | None = None

    @classmethod
    def read(cls, worker: str, job: Mapping[str, Any]) -> Self:
        """Return the delivery of a job to a worker; `job` is one element of the answer of the script `take`."""
        return cls(
            job["lane"].decode(),
            job["key"].decode(),
            job["job"],
            worker,
            int(job["put_ms"]),
            int(job.get("deaths", 0)),
            job.get("died", b"").decode(errors="replace"),
            "status" in job,
            int(job.get("size_bytes", len(job["job"]))),
            job["client"].decode(errors="replace"),
            job["reply_to"].decode(errors="replace") if "reply_to" in job else None,
        )

    def job(self) -> Job:
        """Return the job. Raises TooLarge for more than `MAX_PUT_BYTES`, and errors of `operations.unpack`."""
        if self.size_bytes > MAX_PUT_BYTES:
            raise TooLarge(f"the job has {self.size_bytes:,} bytes and may have {MAX_PUT_BYTES:,}: split it")
        return operations.unpack(self.data, self.put_ms / 1000, self.reply_to)

    @property
    def put_as(self) -> str | None:
        """Return the id under which the job was put; None if a program pushed it without a script."""
        return None if self.key.startswith("+") else self.key

    @property
    def is_suspect(self) -> bool:
        """Return True if the job may have ended a worker."""
        return self.deaths > 0

    def queued_s(self, now: float) -> float:
        """Return the seconds from the put of the job until `now`, in Unix seconds."""
        return max(0.0, now - self.put_ms / 1000)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a delivery: the reply and its address, if a reply can be sent, and the dead letter, if one is kept."""

    delivery: Delivery
    reply: Reply | None = None
    reply_to: str | None = None
    letter: DeadLetter | None = None

    def fields(self, max_reply_bytes: int) -> dict[str, Any]:
        """Return the answer as an argument of the script `answer`. A reply over the limit becomes TooLarge."""
        delivery = self.delivery
        fields: dict[str, Any] = {"worker": delivery.worker, "key": delivery.key}
        if self.letter:
            fields["letter"] = self.letter.fields(delivery.lane)
        if self.reply is None:
            return fields
        reply, data = self.reply, self.reply.pack()
        if len(data) > max_reply_bytes:  # Redis serves no other client while it reads and copies a value
            most = f"{max_reply_bytes:,} (SHOAL_MAX_REPLY_MB)"
            error = TooLarge(f"the reply has {len(data):,} bytes and may have {most}: split the job")
            reply = Reply.failure(reply.id, error)
            data = reply.pack()
        fields |= {"id": reply.id, "reply": data, "status": reply.status, "timings": wire.pack(reply.timings)}
        if self.reply_to:
            fields["reply_to"] = self.reply_to
        return fields
