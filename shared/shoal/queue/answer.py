"""The end of a delivery, as it is written to Redis."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.contract import wire
from shoal.contract.replies import Reply
from shoal.errors import TooLarge
from shoal.queue.blame import DeadLetter
from shoal.queue.delivery import Delivery

#: Most bytes of replies that are written at a time. A larger reply is written alone, so it holds up no other.
MAX_WRITE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a delivery: the reply, if one can be sent, and where it goes; and the dead letter, if one is kept."""

    delivery: Delivery
    reply: Reply | None = None
    reply_to: str | None = None
    letter: DeadLetter | None = None

    def fields(self, max_reply_bytes: int) -> dict[str, Any]:
        """Return the answer as the script takes it.

        A reply of more than `max_reply_bytes` becomes the error TooLarge.
        """
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


def groups(answers: Sequence[tuple[Answer, dict[str, Any]]]) -> Iterator[list[tuple[Answer, dict[str, Any]]]]:
    """Yield the answers, each with its fields, in groups that are written together; the large ones alone, at last."""
    group: list[tuple[Answer, dict[str, Any]]] = []
    size = 0
    for answer, fields in sorted(answers, key=lambda pair: max(MAX_WRITE_BYTES, size_of(pair[1]))):
        size += size_of(fields)
        if group and size > MAX_WRITE_BYTES:
            yield group
            group, size = [], size_of(fields)
        group.append((answer, fields))
    if group:
        yield group


def size_of(fields: Mapping[str, Any]) -> int:
    """Return the bytes of the reply in the fields of an answer."""
    return len(fields.get("reply", b""))
