"""A job's way through a worker, as the queue sees it: what was delivered, and how it ends."""

from dataclasses import dataclass

from shoal import wire
from shoal.errors import TooLarge
from shoal.replies import Reply

#: Largest reply. Redis takes no value of 512 MB, and is busy for a second with one of half that.
MAX_REPLY_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Delivery:
    """One job as it came out of its lane: still bytes, and pending until it is answered.

    `is_back` says that it was at the back of its lane; `owner` is the worker that had it before and left it behind.
    """

    lane: str
    stream: str
    entry: bytes
    data: bytes
    num_deliveries: int = 1
    owner: str = ""
    is_back: bool = False

    def queued_s(self, now: float) -> float:
        """Seconds since Redis took the job in, which its entry id says to the millisecond."""
        return max(0.0, now - int(self.entry.partition(b"-")[0]) / 1000)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a job could not be answered as it asked: kept with the job for somebody to look at.

    `worker` had it last, the last of so many `deliveries`.
    """

    reason: str
    traceback: str = ""
    worker: str = ""
    deliveries: int = 1

    def pack(self, delivery: Delivery) -> bytes:
        """What is kept beside the bytes of the job."""
        about = {"reason": self.reason, "lane": delivery.lane, "deliveries": str(self.deliveries)}
        return wire.pack(about | {"traceback": self.traceback, "worker": self.worker})


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a delivery: the reply, if somebody can be answered, and where it goes; and a dead letter, if any."""

    delivery: Delivery
    reply: Reply | None = None
    reply_to: str | None = None
    letter: DeadLetter | None = None

    def pack(self) -> tuple[bytes, str, bytes, bytes]:
        """The bytes of the reply, status and timings for its record, and the dead letter; empty where there is none."""
        reply, letter = self.reply, self.letter.pack(self.delivery) if self.letter else b""
        if reply is None:
            return b"", "", b"", letter
        data = reply.pack()
        if len(data) > MAX_REPLY_BYTES:  # Redis would end the connection, each time anew
            reply = Reply.failure(
                reply.id, TooLarge(f"the reply has {len(data):,} bytes, over {MAX_REPLY_BYTES:,}: split the job")
            )
            data = reply.pack()
        has_record = self.reply_to is None
        return data, reply.status if has_record else "", wire.pack(reply.timings) if has_record else b"", letter
