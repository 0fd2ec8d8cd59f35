"""A job as a worker gets it from the queue, and the answer that ends it."""

from dataclasses import dataclass
from typing import Any

from shoal import wire
from shoal.errors import TooLarge
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.lane import Source
from shoal.replies import Reply

#: Largest reply in bytes. Redis takes no value of 512 MB, and is busy for a second with one of half that.
MAX_REPLY_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Delivery:
    """One job as it came out of its lane: still bytes, and pending until it is answered.

    `put_ms` is when Redis took the job in, in Unix milliseconds. `num_deliveries` counts workers that the job may have
    ended, and this delivery. `owner` is the worker that left the job behind, if this one claimed it.
    """

    lane: str
    entry: bytes
    data: bytes
    put_ms: int
    is_overflow: bool = False
    num_deliveries: int = 1
    owner: str = ""

    @property
    def source(self) -> Source:
        """Return the source that the job came from."""
        return Source(self.lane, self.is_overflow)

    def queued_s(self, now: float) -> float:
        """Return the seconds from when Redis took the job in until `now`, in Unix seconds."""
        return max(0.0, now - self.put_ms / 1000)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a delivery: the reply, if one can be sent, and where it goes; and the dead letter, if one is kept."""

    delivery: Delivery
    reply: Reply | None = None
    reply_to: str | None = None
    letter: DeadLetter | None = None

    def fields(self) -> dict[str, Any]:
        """Return the answer as the script takes it, without the keys that it goes to."""
        delivery = self.delivery
        fields = {"lane": delivery.lane, "is_overflow": delivery.is_overflow, "entry": delivery.entry}
        if self.letter:
            fields["letter"] = self.letter.fields(delivery.lane)
        if self.reply is None:
            return fields
        reply, data = self.reply, self.reply.pack()
        if len(data) > MAX_REPLY_BYTES:  # Redis would end the connection, each time anew
            error = TooLarge(f"the reply has {len(data):,} bytes, over {MAX_REPLY_BYTES:,}: split the job")
            reply = Reply.failure(reply.id, error)
            data = reply.pack()
        fields["reply"] = data
        if self.reply_to is None:
            fields |= {"status": reply.status, "timings": wire.pack(reply.timings)}
        return fields
