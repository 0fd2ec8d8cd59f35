"""Dead letters: jobs that could not be answered as they asked, kept for an operator to look at, retry or drop."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self

from shoal.errors import ShoalError, UnknownJob
from shoal.excerpt import excerpt
from shoal.jobs import LANES, Job
from shoal.queue.producer import Producer

_ID = re.compile(r"\d{1,19}-\d{1,19}")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The reason why a job could not be answered; once it is kept, also the bytes of the job and the letter's id.

    `worker` had the job last, in the last of so many `deliveries`. `traceback` says where that worker was, if it could
    still tell.
    """

    reason: str
    traceback: str = ""
    worker: str = ""
    deliveries: int = 1
    lane: str = ""
    data: bytes = b""
    id: str = ""

    def fields(self, lane: str) -> dict[str, str]:
        """Return the fields that are kept beside the bytes of a job of that lane."""
        about = {"reason": self.reason, "lane": lane, "deliveries": str(self.deliveries)}
        texts = about | {"traceback": self.traceback, "worker": self.worker}
        return {name: text.encode(errors="replace").decode() for name, text in texts.items()}

    @classmethod
    def read(cls, entry: bytes, values: Sequence[bytes]) -> Self:
        """Return the letter in an entry of the stream, a flat list of names and values."""
        fields = dict(zip(values[::2], values[1::2], strict=False))
        count = fields.get(b"deliveries", b"")
        return cls(
            _text(fields, b"reason"),
            _text(fields, b"traceback"),
            _text(fields, b"worker"),
            int(count) if count.isdigit() and len(count) < 10 else 1,
            _text(fields, b"lane"),
            fields.get(b"job", b""),
            entry.decode(),
        )

    @property
    def time_s(self) -> float:
        """Return when it was kept, in Unix seconds."""
        return int(self.id.partition("-")[0]) / 1000

    @property
    def retried_id(self) -> str:
        """Return the id that the job gets when it is put again."""
        return blake2b(self.id.encode() + self.data, digest_size=12).hexdigest()

    def job(self) -> Job | None:
        """Return the job; None if its bytes cannot be read."""
        try:
            return Job.unpack(self.data)
        except ShoalError:
            return None


class DeadLetters:
    """The dead letters of one pool."""

    def __init__(self, producer: Producer):
        self._producer = producer
        self._broker = producer.broker
        self._key = producer.keys.dead

    def __len__(self) -> int:
        return self._producer.num_dead()

    def newest(self, max_letters: int = 100) -> list[DeadLetter]:
        """Return at most so many letters, the newest first."""
        return [
            DeadLetter.read(*e) for e in self._broker.execute("XREVRANGE", self._key, "+", "-", "COUNT", max_letters)
        ]

    def get(self, letter_id: str) -> DeadLetter:
        """Return one letter.

        Raises UnknownJob.
        """
        if _ID.fullmatch(letter_id):
            for entry in self._broker.execute("XRANGE", self._key, letter_id, letter_id):
                return DeadLetter.read(*entry)
        raise UnknownJob(f"no dead letter {excerpt(letter_id)}: it was retried or dropped, or its id is not right")

    def retry(self, letter_id: str) -> str:
        """Put the job again, without its deadline, and return the new id by which its result can be fetched.

        The same letter gives the same id, so retries at the same time put one job.
        Raises UnknownJob, Overloaded, or the error that keeps the job from being read: then it can only be dropped.
        """
        letter = self.get(letter_id)
        job = replace(Job.unpack(letter.data), id=letter.retried_id, deadline=None, reply_to=None)
        self._producer.put(letter.lane if letter.lane in LANES else LANES[0], [job], client="retried")
        self._broker.execute("XDEL", self._key, letter_id)
        return job.id

    def drop(self, letter_id: str) -> None:
        """Delete a letter.

        Raises UnknownJob.
        """
        self.get(letter_id)
        self._broker.execute("XDEL", self._key, letter_id)


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode(errors="replace")
