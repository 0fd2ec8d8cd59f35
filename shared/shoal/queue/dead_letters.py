"""Dead letters: jobs that no worker could answer. An operator can list, retry or drop them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self

from shoal import operations
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import LANES, Job
from shoal.contract.outline import Outline
from shoal.errors import ShoalError, UnknownJob
from shoal.queue import scripts
from shoal.queue.producer import Producer

#: Size limit of the job and of every other field of a letter in a list, in bytes.
MAX_LISTED_BYTES = 4_096

_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")

_NAMES = ("job", "reason", "traceback", "worker", "lane", "deliveries")

_LIST = scripts.load("dead_letters")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The reason why a job could not be answered. A letter from Redis also has an id and the job's bytes.

    `worker` had the job last. In a list of letters, `data` is only the beginning of the job; `size_bytes` is the size
    of the whole job.
    """

    reason: str
    traceback: str = ""
    worker: str = ""
    deliveries: int = 1
    lane: str = ""
    data: bytes = b""
    id: str = ""
    size_bytes: int = 0

    def fields(self, lane: str) -> dict[str, str]:
        """Return the fields that are kept in addition to the job's bytes. The job was in `lane`."""
        about = {"reason": self.reason, "lane": lane, "deliveries": str(self.deliveries)}
        texts = about | {"traceback": self.traceback, "worker": self.worker}
        return {name: text.encode(errors="replace").decode() for name, text in texts.items()}

    @classmethod
    def read(cls, entry: bytes, fields: Mapping[str, bytes], size_bytes: int) -> Self:
        """Return the letter in an entry of the stream; `entry` is the entry's id."""
        count = fields.get("deliveries", b"")
        return cls(
            _text(fields, "reason"),
            _text(fields, "traceback"),
            _text(fields, "worker"),
            int(count) if count.isdigit() and len(count) < 10 else 1,
            _text(fields, "lane"),
            fields.get("job", b""),
            entry.decode(),
            size_bytes,
        )

    @property
    def time_s(self) -> float:
        """The time of the letter, in Unix seconds."""
        return int(self.id.partition("-")[0]) / 1000

    @property
    def retried_id(self) -> str:
        """The id that the job gets when it is put again."""
        return blake2b(self.id.encode() + self.data, digest_size=12).hexdigest()

    def outline(self) -> Outline:
        """Return the outline of the job, even if `data` is only its beginning."""
        return Outline.read(self.data)

    def job(self) -> Job | None:
        """Return the job, or None if its bytes cannot be read or `data` is only their beginning."""
        try:
            return operations.unpack(self.data)
        except ShoalError:
            return None


class DeadLetters:
    """The dead letters of one pool."""

    def __init__(self, producer: Producer):
        self._producer = producer
        self._commands = producer.commands
        self._key = producer.keys.dead

    async def newest(self, max_letters: int = 100) -> list[DeadLetter]:
        """Return the newest letters, newest first, with the first `MAX_LISTED_BYTES` of each field."""
        letters: list[DeadLetter] = []
        while (num_wanted := min(100, max_letters - len(letters))) > 0:  # a run of the script reads 100
            before = f"({letters[-1].id}" if letters else "+"
            arguments = {"names": _NAMES, "before": before, "max_letters": num_wanted}
            arguments["max_value_bytes"] = MAX_LISTED_BYTES
            found = (await self._commands.run(_LIST, [self._producer.keys.root], arguments))["letters"]
            letters += [DeadLetter.read(letter["id"], letter["fields"], letter["size_bytes"]) for letter in found]
            if len(found) < num_wanted:
                break
        return letters

    async def get(self, letter_id: str) -> DeadLetter:
        """Return the letter with this id. Raises UnknownJob."""
        if _ID.fullmatch(letter_id):
            for entry, values in await self._commands.execute("XRANGE", self._key, letter_id, letter_id):
                names = [name.decode(errors="replace") for name in values[::2]]
                fields = dict(zip(names, values[1::2], strict=True))
                return DeadLetter.read(entry, fields, len(fields.get("job", b"")))
        raise UnknownJob(f"no dead letter {excerpt(letter_id)}: it was retried or dropped, or the id is wrong")

    async def retry(self, letter_id: str) -> str:
        """Put the job again, without its deadline, and return its new id. The result can be fetched by this id.

        A letter always gives the same id, so two simultaneous retries put one job. Raises UnknownJob, Overloaded, or
        another ShoalError if the job cannot be read. A letter with such a job can only be dropped.
        """
        letter = await self.get(letter_id)
        job = replace(
            operations.unpack(letter.data), id=letter.retried_id, deadline=None, timeout_s=None, reply_to=None
        )
        await self._producer.put(letter.lane if letter.lane in LANES else LANES[0], [job], client="retried")
        await self._commands.execute("XDEL", self._key, letter_id)
        return job.id

    async def drop(self, letter_id: str) -> None:
        """Delete a letter. Raises UnknownJob."""
        await self.get(letter_id)
        await self._commands.execute("XDEL", self._key, letter_id)


def _text(fields: Mapping[str, bytes], name: str) -> str:
    return fields.get(name, b"").decode(errors="replace")
