"""The queue: every Redis command that moves a job (docs/protocol.md has the keys and what they hold).

A job waits in a stream (its lane), is pending there while a worker has it, and leaves it in the same instant in which
its reply is written. Nothing is removed before it is answered.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import redis

from shoal import wire
from shoal.connections import BLOCK_S, Call, Connections, Script, checked, connect, translated
from shoal.errors import Cancelled, MalformedJob, Overloaded, UnknownJob
from shoal.jobs import LANES, Job
from shoal.keys import Keys
from shoal.replies import Reply

#: Consumer group that all workers of a pool read their lanes through.
GROUP = "workers"

#: How long a dead worker's name stays in the consumer group. Long, because one that was only stopped may come back.
FORGET_AFTER_MS = 3_600_000

#: How long the record of a job that is queued or running lives.
RECORD_TTL_S = 86_400

#: Most replies fetched at a time.
REPLIES_AT_ONCE = 1_000

_PUT, _START, _REPLY, _CANCEL = map(Script.load, ("put", "start", "reply", "cancel"))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One job as it came out of its lane: still bytes, and pending until it is answered."""

    lane: str
    entry: bytes
    data: bytes
    num_deliveries: int = 1

    def queued_s(self, now: float) -> float:
        """Seconds since Redis took the job in, which its entry id says to the millisecond."""
        return max(0.0, now - int(self.entry.partition(b"-")[0]) / 1000)


@dataclass(frozen=True, slots=True)
class Put:
    """Jobs on their way into a lane, and their bytes: packed by whoever asks, so that a bad text is its own failure."""

    lane: str
    jobs: Sequence[Job]
    data: Sequence[bytes]
    has_records: bool

    @classmethod
    def pack(cls, lane: str, jobs: Sequence[Job], reply_to: str | None = None) -> Self:
        """The jobs, packed, with `reply_to` for their reply address; jobs without one get a record each.

        Raises InvalidText.
        """
        return cls(lane, jobs, [job.pack(reply_to) for job in jobs], not (reply_to or jobs[0].reply_to))


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply on its way to whoever asked: the delivery it acknowledges, and where it goes."""

    delivery: Delivery
    reply: Reply
    reply_to: str | None


class Queue:
    """The lanes, replies and records of one pool. Thread-safe."""

    def __init__(self, connection: redis.Redis, keys: Keys, max_backlog: int = 10_000, result_ttl_s: int = 3_600):
        self.redis: Any = connection  # its own types leave open whether answers are str or bytes; ours are bytes
        self._connections = Connections(connection.connection_pool)
        self._has_blmpop = True
        self.keys = keys
        self.max_backlog = max_backlog
        self.result_ttl_s = result_ttl_s

    @classmethod
    def connect(cls, url: str, keys: Keys, **limits: int) -> Self:
        """A queue on the Redis at `url`."""
        return cls(connect(url), keys, **limits)

    def close(self) -> None:
        """Drops all connections."""
        self.redis.close()

    def ping(self) -> None:
        """Raises Unavailable if Redis does not answer."""
        with translated():
            self.redis.ping()

    # Producers

    def put(self, lane: str, jobs: Sequence[Job]) -> None:
        """Adds the jobs to the lane, all or none.

        A job without a reply address gets a record; putting it a second time does nothing. Raises Overloaded.
        """
        self.put_many([Put.pack(lane, jobs)])[0].check()

    def put_many(self, puts: Sequence[Put]) -> "list[Admission]":
        """Several `put` in one round trip, each accepted or refused by itself."""
        with translated():
            backlogs = self._connections.run(_PUT, *map(self._call, puts))
        return [Admission(put.lane, backlog) for put, backlog in zip(puts, backlogs, strict=True)]

    def _call(self, put: Put) -> Call:
        records = [self.keys.record(job.id) for job in put.jobs] if put.has_records else []
        return Call([self.keys.lane(put.lane), *records], [self.max_backlog, RECORD_TTL_S, *put.data])

    def wait_replies(self, address: str, timeout_s: float = BLOCK_S) -> list[Reply]:
        """The replies that are at the address, waited for if there is none; none if that takes over `timeout_s`."""
        with translated():
            found = self._pop(self.keys.replies(address), min(timeout_s, BLOCK_S))
        return list(_readable(found))

    def _pop(self, key: str, timeout_s: float) -> list[bytes]:
        if self._has_blmpop:
            (found,) = self._connections.ask(("BLMPOP", timeout_s, 1, key, "LEFT", "COUNT", REPLIES_AT_ONCE))
            if not isinstance(found, redis.ResponseError):
                return found[1] if found else []
            self._has_blmpop = False  # Redis before 7, or its rules do not allow it
        (first,) = self._connections.ask(("BLPOP", key, timeout_s))
        if not checked(first):
            return []
        found = [first[1]]
        with suppress(redis.RedisError):  # the first must not be lost for it
            (others,) = self._connections.ask(("LPOP", key, REPLIES_AT_ONCE))
            found += checked(others) or ()
        return found

    def wake(self, address: str) -> None:
        """Ends the wait of whoever waits for replies at the address."""
        with translated():
            self.redis.rpush(self.keys.replies(address), b"")
            self.redis.expire(self.keys.replies(address), self.result_ttl_s)

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """The reply to a submitted job, which stays for others to read; None if it takes longer than `timeout_s`.

        Raises UnknownJob.
        """
        key, until = self.keys.result(job_id), time.monotonic() + timeout_s
        while True:
            with translated():
                data = self.redis.lindex(key, 0)
                wait_s = min(until - time.monotonic(), BLOCK_S)
                if data is None and self.status(job_id) and wait_s > 0:
                    data = self.redis.blmove(key, key, wait_s, "LEFT", "LEFT")
            if data is not None:
                return Reply.unpack(data)
            if wait_s <= 0:
                return None

    def status(self, job_id: str) -> tuple[str, dict[str, float]]:
        """The status of a submitted job, and its timings once it is done.

        Raises UnknownJob.
        """
        with translated():
            status, timings = self.redis.hmget(self.keys.record(job_id), "status", "timings")
        if status is None:
            raise UnknownJob(f"no job {job_id!r:.150}: it was never submitted, or its result has expired")
        return status.decode(), wire.unpack(timings) if timings else {}

    def cancel(self, job_id: str) -> str:
        """Takes a submitted job back if no worker has started it, and returns the status it then has.

        Raises UnknownJob.
        """
        self.status(job_id)
        record = self.keys.record(job_id)
        reply = Reply.failure(job_id, Cancelled(f"job {job_id} was cancelled before a worker started it"))
        with translated():
            lane = self.redis.hget(record, "lane") or self.keys.lane(LANES[0])
            names = (record, self.keys.result(job_id), lane)
            status = self._run(_CANCEL, names, (GROUP, self.result_ttl_s, reply.pack()))
        return bytes(status).decode() if status else self.status(job_id)[0]

    def backlog(self) -> dict[str, int]:
        """Unanswered jobs in each lane, those being computed included."""
        with translated():
            return {lane: self.redis.xlen(self.keys.lane(lane)) for lane in LANES}

    # Workers

    def join(self) -> None:
        """Makes the lanes and their consumer group where they are missing."""
        with translated():
            for lane in LANES:
                try:
                    self.redis.xgroup_create(self.keys.lane(lane), GROUP, id="0", mkstream=True)
                except redis.ResponseError as error:
                    if not str(error).startswith("BUSYGROUP"):
                        raise

    def leave(self, consumer: str) -> None:
        """Takes a stopped worker out of the consumer group, unless jobs are still pending for it."""
        with translated():
            for lane in map(self.keys.lane, LANES):
                if not self.redis.xpending_range(lane, GROUP, "-", "+", 1, consumername=consumer):
                    self.redis.xgroup_delconsumer(lane, GROUP, consumer)

    def take(self, consumer: str, lanes: Sequence[str], max_jobs: int, block_s: float = 0) -> list[Delivery]:
        """Up to `max_jobs` waiting jobs of each of the lanes; they stay pending for `consumer` until answered.

        With `block_s`, waits that long for the first of them.
        """
        wait = ("BLOCK", max(1, int(min(block_s, BLOCK_S) * 1000))) if block_s else ()
        names = [self.keys.lane(lane) for lane in lanes]
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", max_jobs, *wait, "STREAMS", *names)
        with translated():
            (found,) = self._connections.ask((*command, *">" * len(names)))
            if isinstance(found, redis.ResponseError) and "NOGROUP" in str(found):
                self.join()  # Redis came back empty
                return []
            streams = checked(found) or ()
        return [Delivery(lane.decode(), entry, _job(values)) for lane, entries in streams for entry, values in entries]

    def start(self, job_ids: Sequence[str]) -> list[bool]:
        """Marks submitted jobs as running; False for those that were cancelled and must not run."""
        if not job_ids:
            return []
        records = [self.keys.record(job_id) for job_id in job_ids]
        with translated():
            return [bool(started) for started in self._run(_START, records, [RECORD_TTL_S])]

    def reply(self, answers: Iterable[Answer]) -> int:
        """Acknowledges the jobs and writes their replies; returns how many were still unanswered."""
        names: list[str] = []
        values: list[Any] = []
        for answer in answers:
            reply = answer.reply
            list_key = self.keys.replies(answer.reply_to) if answer.reply_to else self.keys.result(reply.id)
            names += [answer.delivery.lane, list_key, self.keys.record(reply.id)]
            record = ("", b"") if answer.reply_to else (reply.status, wire.pack(reply.timings))
            values += [answer.delivery.entry, reply.pack(), *record]
        if not names:
            return 0
        with translated():
            return int(self._run(_REPLY, names, [GROUP, self.result_ttl_s, *values]))

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledges jobs that are answered already."""
        if not deliveries:
            return
        with translated(), self.redis.pipeline(transaction=True) as pipeline:
            for delivery in deliveries:
                pipeline.xack(delivery.lane, GROUP, delivery.entry)
                pipeline.xdel(delivery.lane, delivery.entry)
            pipeline.execute()

    def bury(self, delivery: Delivery, reason: str) -> None:
        """Moves a job that cannot be answered to the dead-letter stream, with the reason."""
        with translated(), self.redis.pipeline(transaction=True) as pipeline:
            pipeline.xadd(self.keys.dead, {"job": delivery.data, "reason": reason}, maxlen=10_000)
            pipeline.xack(delivery.lane, GROUP, delivery.entry)
            pipeline.xdel(delivery.lane, delivery.entry)
            pipeline.execute()

    def claim(self, consumer: str, alive: set[str]) -> Delivery | None:
        """One job that a worker left pending: a dead one, or `consumer` itself, which must hold none now.

        One at a time, because a job that kills its worker must not take others with it.
        """
        with translated():
            for lane in map(self.keys.lane, LANES):
                for owner in self.redis.xinfo_consumers(lane, GROUP):
                    name = owner["name"].decode()
                    left_behind = owner["pending"] and (name not in alive or name == consumer)
                    if not owner["pending"] and name not in alive and owner["idle"] > FORGET_AFTER_MS:
                        self.redis.xgroup_delconsumer(lane, GROUP, name)
                    if left_behind and (delivery := self._claim_from(lane, name, consumer)):
                        return delivery
        return None

    def _run(self, script: Script, names: Sequence[str], values: Sequence[Any]) -> Any:
        (answer,) = self._connections.run(script, Call(names, values))
        return checked(answer)

    def _claim_from(self, lane: str, owner: str, consumer: str) -> Delivery | None:
        for entry in self.redis.xpending_range(lane, GROUP, "-", "+", 1, consumername=owner):
            entry_id, count = entry["message_id"], entry["times_delivered"] + 1
            claimed = self.redis.xclaim(
                lane, GROUP, consumer, min_idle_time=entry["time_since_delivered"], message_ids=[entry_id]
            )
            for _, values in claimed:
                if values is not None:
                    return Delivery(lane, entry_id, values.get(b"job", b""), count)
            self.redis.xack(lane, GROUP, entry_id)  # deleted while it was pending: nothing is left to answer
        return None


def _readable(found: Iterable[bytes]) -> Iterator[Reply]:
    """The replies among what came: an empty one only wakes, and one that cannot be read does not say whose it is."""
    for data in filter(None, found):
        with suppress(MalformedJob):
            yield Reply.unpack(data)


def _job(values: Sequence[bytes] | None) -> bytes:
    """The bytes of the job among an entry's names and values, which come in turn; none for an entry without one."""
    names = iter(values or ())
    return next((value for name, value in zip(names, names, strict=False) if name == b"job"), b"")


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a put."""

    lane: str
    outcome: Any

    def check(self) -> None:
        """Raises Overloaded or Unavailable if the jobs were refused."""
        if isinstance(self.outcome, Exception):
            with translated():
                raise self.outcome
        if self.outcome != -1:
            raise Overloaded(
                f"no room in the {self.lane} lane, which holds {self.outcome:,} unanswered jobs: "
                "try again later, or send less at a time"
            )
