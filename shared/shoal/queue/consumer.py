"""The consumer's end of the queue, which takes jobs, answers them, and puts back jobs of dead workers."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from shoal import operations
from shoal.broker.broker import Broker
from shoal.broker.connections import BLOCK_S, MIN_BYTES_PER_S
from shoal.contract import wire
from shoal.contract.jobs import LANES, Job
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import ShoalError, TooLarge, Unavailable
from shoal.queue import scripts
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.lane import MAX_PUT_BYTES
from shoal.queue.pool import ALIVE_S
from shoal.settings import DEFAULTS

#: Number of bytes of jobs after which a `take` takes no more jobs. A single job may have more bytes.
MAX_TAKE_BYTES = 4 * 2**20

#: Seconds between two checks for jobs of dead workers. Each time, one worker checks on behalf of the whole pool.
RECLAIM_TURN_S = 0.9

#: Size limit of the replies that are written together, in bytes. A larger reply is written alone, after the others.
MAX_WRITE_BYTES = 2**20

#: A job fails after this many failed attempts to send a reply of more than `MAX_WRITE_BYTES` while Redis answers.
MAX_SENDS = 2

#: Largest number of dead letters that are kept. The oldest are deleted first.
MAX_DEAD_LETTERS = 10_000

#: Size limit of the dead letters that are kept in addition to the oldest one, in bytes. The oldest are deleted first.
MAX_DEAD_BYTES = 64 * 2**20

#: Number of bytes that are read from a job that is too large.
HEAD_BYTES = 65_536

_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)

_TAKE, _START, _ANSWER = scripts.load("take"), scripts.load("start"), scripts.load("answer")
_RECLAIM, _GIVE_BACK, _SWEEP = scripts.load("reclaim"), scripts.load("give_back"), scripts.load("sweep")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job as it came out of its lane. It is still packed, and a worker holds it until it is answered.

    `key` is the id under which the job was put, or "+" and a number if it was pushed without a script. `put_ms` is in
    Unix milliseconds. `deaths` counts the workers that died while they held the job, and `died` names the last of them.
    A job with `deaths` is a suspect. If the job is too large, `data` is only its beginning.
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
        return operations.unpack(self.data, self.put_ms / 1000, self.reply_to if self.put_as else "")

    @property
    def put_as(self) -> str | None:
        """The id under which the job was put; None if a program pushed it without a script."""
        return None if self.key.startswith("+") else self.key

    def queued_s(self, now: float) -> float:
        """Return the seconds from the put of the job until `now`, in Unix seconds."""
        return max(0.0, now - self.put_ms / 1000)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a delivery: the reply with its address, or a dead letter, or both.

    `data` is the packed reply. Raises an error of msgpack for a reply with a value that msgpack cannot express.
    """

    delivery: Delivery
    reply: Reply | None = None
    reply_to: str | None = None
    letter: DeadLetter | None = None
    data: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        if self.reply is not None:
            object.__setattr__(self, "data", self.reply.pack())

    def fields(self, max_reply_bytes: int) -> dict[str, Any]:
        """Return the answer as an argument of the script `answer`. A reply over the limit becomes TooLarge."""
        delivery = self.delivery
        fields: dict[str, Any] = {"worker": delivery.worker, "key": delivery.key}
        if self.letter:
            fields["letter"] = self.letter.fields(delivery.lane)
        if self.reply is None:
            return fields
        reply, data = self.reply, self.data
        if len(data) > max_reply_bytes:  # Redis serves no other client while it reads and copies a value
            most = f"{max_reply_bytes:,} (SHOAL_MAX_REPLY_MB)"
            error = TooLarge(f"the reply has {len(data):,} bytes and may have {most}: split the job")
            reply = Reply.failure(reply.id, error)
            data = reply.pack()
        fields |= {"id": reply.id, "reply": data, "status": reply.status, "timings": wire.pack(reply.timings)}
        if self.reply_to:
            fields["reply_to"] = self.reply_to
        return fields


class Consumer:
    """A worker's connection to the queue of its pool. Thread-safe. Every method raises Unavailable."""

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        name: str,
        result_ttl_s: int = DEFAULTS.result_ttl_s,
        max_reply_bytes: int = DEFAULTS.max_reply_mb * 2**20,
        max_unread_bytes: int = DEFAULTS.max_result_mb * 2**20,
    ):
        self.broker = broker
        self.keys = keys
        self.name = name
        self.result_ttl_s = result_ttl_s
        self.max_reply_bytes = max_reply_bytes
        self.max_unread_bytes = max_unread_bytes
        self.more_suspects = False
        self._keys = (keys.root,)
        self._markers = {lane: keys.of_lane(lane, "wake") for lane in LANES}
        self._failed_sends: Counter[str] = Counter()
        self._sweep_fault = ""

    def leave(self) -> None:
        """Return all jobs of this consumer to the queue, for other consumers."""
        self._reclaim((), leaves=True)

    def eviction_policy(self) -> str:
        """Return Redis's `maxmemory-policy`, or "" if this user of Redis has no permission to ask."""
        with suppress(Unavailable):
            if found := _POLICY.search(self.broker.execute("INFO", "memory")):
                return found[1].decode(errors="replace")
        return ""

    # Take

    def take(
        self,
        room: Mapping[str, int],
        block_s: float = 0.0,
        takes_suspects: bool = False,
        max_jobs: int = 1_024,
    ) -> list[Delivery]:
        """Take waiting jobs. This consumer holds them until they are answered.

        `room` has the number of texts to take from each lane. Lanes are read in the order of `LANES`. A lane gives at
        most `max_jobs`, and all lanes together give about `MAX_TAKE_BYTES`. The last job may exceed the limits of texts
        and of bytes. If no job waits, wait for one for `block_s`, at most `BLOCK_S`.

        With `takes_suspects`, a suspect comes alone, before all other jobs, and no job follows until the suspect is
        answered. The caller must run it alone, because only the suspect is blamed if this consumer dies.
        The attribute `more_suspects` is then True if other suspects wait.
        """
        wanted = [lane for lane in LANES if room.get(lane, 0) > 0]
        arguments = {
            "worker": self.name,
            "room": [{"lane": lane, "texts": room[lane]} for lane in wanted],
            "max_jobs": max_jobs,
            "max_bytes": MAX_TAKE_BYTES,
            "max_job_bytes": MAX_PUT_BYTES,
            "head_bytes": HEAD_BYTES,
            "takes_suspects": takes_suspects,
        }
        taken = self.broker.run(_TAKE, self._keys, arguments)  # even without room, because suspects may wait
        if wanted and not taken["jobs"] and block_s > 0:
            wait_s = max(0.001, min(block_s, BLOCK_S))
            if self.broker.execute("BLPOP", *map(self._markers.get, wanted), f"{wait_s:.3f}", block_s=wait_s):
                taken = self.broker.run(_TAKE, self._keys, arguments)
        self.more_suspects = bool(taken["more_suspects"])
        return [Delivery.read(self.name, job) for job in taken["jobs"]]

    def has_jobs(self, lane: str) -> bool:
        """Return True if jobs wait in the lane. Pushed jobs do not count. Return False if Redis does not answer."""
        with suppress(ShoalError):
            return bool(self.broker.execute("EXISTS", self._markers[lane]))
        return False

    # Hold

    def reclaim(self, holds: Collection[Delivery]) -> tuple[int, dict[str, int]]:
        """Put back jobs that Redis gave to this consumer but `holds` lacks, and the jobs of dead workers as suspects.

        Returns the number of this consumer's jobs that were put back, and the number for each dead worker.
        """
        found = self._reclaim([delivery.key for delivery in holds])
        return found["own"], {one["worker"].decode(errors="replace"): one["jobs"] for one in found["dead"]}

    def _reclaim(self, holds: Sequence[str], leaves: bool = False) -> Any:
        times = {"every_ms": int(RECLAIM_TURN_S * 1000), "alive_ms": int(ALIVE_S * 1000)}
        return self.broker.run(_RECLAIM, self._keys, {"worker": self.name, "holds": holds, "leaves": leaves} | times)

    def start(self, jobs: Sequence[tuple[Delivery, str]]) -> list[bool]:
        """Mark jobs as running. Return for each job whether this consumer still holds it.

        `jobs` are deliveries of jobs whose status is kept, each with the id in the job's bytes.
        """
        listed = [{"key": delivery.key, "id": job_id} for delivery, job_id in jobs]
        return list(self.broker.run(_START, self._keys, {"worker": self.name, "jobs": listed})["started"])

    def lost(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that this consumer no longer holds: they were cancelled, withdrawn or put back."""
        commands = [("ZSCORE", self.keys.held(self.name), delivery.key) for delivery in deliveries]
        scores = self.broker.pipeline(*commands) if commands else []
        return [delivery for delivery, score in zip(deliveries, scores, strict=True) if score is None]

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return jobs that this consumer still holds to their lanes, for any consumer."""
        self.broker.run(
            _GIVE_BACK, self._keys, {"worker": self.name, "jobs": [delivery.key for delivery in deliveries]}
        )

    # Answer

    def reply(self, answers: Iterable[Answer], before_each: Callable[[], object] = lambda: None) -> int:
        """Write replies and dead letters, large replies last. Return the number of jobs that were still unanswered.

        `before_each` is called before each group of answers, of at most `MAX_WRITE_BYTES`, is written.
        """
        num_written = size = 0
        groups: list[list[dict[str, Any]]] = []
        packed = [answer.fields(self.max_reply_bytes) for answer in answers]
        sizes = [len(fields.get("reply", b"")) for fields in packed]
        for n in sorted(range(len(packed)), key=lambda n: max(MAX_WRITE_BYTES, sizes[n])):
            size += sizes[n]
            if not groups or size > MAX_WRITE_BYTES:
                groups.append([])
                size = sizes[n]
            groups[-1].append(packed[n])
        limits = {
            "result_ttl_s": self.result_ttl_s,
            "max_kept_bytes": 2 * self.max_unread_bytes,  # jobs that were put earlier are still answered
            "max_own_bytes": self.max_unread_bytes // 64,
            "max_dead_letters": MAX_DEAD_LETTERS,
            "max_dead_bytes": MAX_DEAD_BYTES,
        }
        for group in groups:
            before_each()
            try:
                num_written += self.broker.run(_ANSWER, self._keys, limits | {"answers": group})["written"]
            except Unavailable:
                if len(group[0].get("reply", b"")) > MAX_WRITE_BYTES:  # a large reply, alone in its group
                    with suppress(ShoalError):
                        self.broker.ping()  # if Redis does not answer this either, the failure does not count
                        self._failed_sends[group[0]["key"]] += 1
                raise
            for fields in group:
                self._failed_sends.pop(fields["key"], None)
        return num_written

    def check_sends(self, delivery: Delivery) -> None:
        """Raise TooLarge if this consumer has failed `MAX_SENDS` times to send the job's reply."""
        if self._failed_sends[delivery.key] >= MAX_SENDS:
            raise TooLarge(
                f"the reply was sent to Redis {MAX_SENDS} times and did not arrive: split the job, or give the worker "
                f"a connection that sends {MIN_BYTES_PER_S:,} bytes a second"
            )

    def sweep_unread(self) -> bool:
        """Stop counting results that no longer exist. Return True if more results should be checked now."""
        try:
            has_more = bool(self.broker.run(_SWEEP, self._keys, {})["more"])
        except ShoalError as error:  # only logged, because the worker must go on
            if str(error) != self._sweep_fault:
                log.warning("unread results were not checked: %s", error)
            self._sweep_fault = str(error)
            return False
        self._sweep_fault = ""
        return has_more
