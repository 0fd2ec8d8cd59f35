"""Dead letters: jobs that could not be answered as they asked, kept for somebody to look at, retry or drop."""

import re
from dataclasses import dataclass, replace
from typing import Self

from shoal.broker.connections import translated
from shoal.errors import ShoalError, UnknownJob
from shoal.jobs import LANES, Job, new_id
from shoal.queue.queue import Queue


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: the bytes of a job, and why it is here.

    `worker` had the job last. Where no worker could tell more than the reason, `traceback` is empty.
    """

    id: str
    data: bytes
    reason: str
    lane: str = ""
    deliveries: int = 1
    traceback: str = ""
    worker: str = ""

    @classmethod
    def read(cls, entry: bytes, fields: dict[bytes, bytes]) -> Self:
        """The letter in an entry of the stream."""
        words = {name: fields.get(name.encode(), b"").decode(errors="replace") for name in _WORDS}
        count = fields.get(b"deliveries", b"")
        deliveries = int(count) if count.isdigit() and len(count) < 10 else 1
        return cls(entry.decode(), fields.get(b"job", b""), deliveries=deliveries, **words)

    @property
    def time_s(self) -> float:
        """When it came, in Unix seconds."""
        return int(self.id.partition("-")[0]) / 1000

    def job(self) -> Job | None:
        """The job, if it can be read."""
        try:
            return Job.unpack(self.data)
        except ShoalError:
            return None


_WORDS = ("reason", "lane", "traceback", "worker")


class DeadLetters:
    """The dead letters of one pool."""

    def __init__(self, queue: Queue):
        self._queue = queue
        self._redis = queue.redis
        self._key = queue.keys.dead

    def __len__(self) -> int:
        return self._queue.num_dead()

    def newest(self, max_letters: int = 100) -> list[Letter]:
        """The last so many letters, the newest first."""
        with translated():
            return [Letter.read(*entry) for entry in self._redis.xrevrange(self._key, count=max_letters)]

    def get(self, letter_id: str) -> Letter:
        """One letter.

        Raises UnknownJob.
        """
        if _ID.fullmatch(letter_id):
            with translated():
                for entry in self._redis.xrange(self._key, letter_id, letter_id):
                    return Letter.read(*entry)
        raise UnknownJob(f"no dead letter {letter_id!r:.150}: it was retried or dropped, or its id is not right")

    def retry(self, letter_id: str) -> str:
        """Puts the job again, without its deadline, and returns the id that its result can be fetched by: a new one.

        Raises UnknownJob, Overloaded, or what keeps the job from being read: then it can only be dropped.
        """
        letter = self.get(letter_id)
        job = replace(Job.unpack(letter.data), id=new_id(), deadline=None, reply_to=None)
        self._queue.put(letter.lane if letter.lane in LANES else LANES[0], [job], client="retried")
        self.drop(letter_id)
        return job.id

    def drop(self, letter_id: str) -> None:
        """Deletes a letter.

        Raises UnknownJob.
        """
        self.get(letter_id)
        with translated():
            self._redis.xdel(self._key, letter_id)


_ID = re.compile(r"\d{1,19}-\d{1,19}")
