"""The queue: every Redis command that moves a job (docs/protocol.md has the keys and what they hold).

A job waits in a stream of its lane, is pending there while a worker has it, and leaves it in the same instant in which
its reply is written. Nothing is removed before it is answered.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Self

import redis

from shoal import wire
from shoal.broker.connections import BLOCK_S, SHORT_BLOCK_S, Call, Connections, Script, checked, connect, translated
from shoal.errors import Cancelled, UnknownJob
from shoal.jobs import LANES, Job
from shoal.keys import Keys
from shoal.queue.delivery import Answer, Delivery
from shoal.queue.lane import LaneLimits, LaneLoad
from shoal.queue.pool import Pool
from shoal.queue.put import MAX_FRONT_TEXTS, IdempotencyKey, Put, PutOutcome, StreamEntry
from shoal.queue.reply_stream import ReplyStream
from shoal.replies import Reply

#: Consumer group that all workers of a pool read their lanes through.
GROUP = "workers"

#: How long a dead worker's name stays in the consumer group. Long, because one that was only stopped may come back.
FORGET_AFTER_MS = 3_600_000

#: How long an idempotency key is remembered.
ONCE_TTL_S = 86_400

#: Most dead letters that are kept; the oldest go first.
MAX_DEAD_LETTERS = 10_000

#: Of the back of a lane one job is read for so many of its front: those at the back are long, or many.
BACK_PART = 4

#: Most jobs of a dead worker that are looked at to find the one to take over first.
ORPHANS_AT_ONCE = 100

_PUT, _JOIN, _START, _CLAIM, _LEAVE = map(Script.load, ("put", "join", "start", "claim", "leave"))
_REPLY, _CANCEL, _WITHDRAW = (Script.load("release", name) for name in ("reply", "cancel", "withdraw"))


class Queue:
    """The lanes, replies and records of one pool. Thread-safe."""

    def __init__(
        self, connection: redis.Redis, keys: Keys, bounds: LaneLimits | None = None, result_ttl_s: int = 3_600
    ):
        self.redis: Any = connection  # its own types leave open whether answers are str or bytes; ours are bytes
        self._connections = Connections(connection.connection_pool)
        self.keys = keys
        self.pool = Pool(connection, keys)
        self.bounds = bounds or LaneLimits()
        self.result_ttl_s = result_ttl_s
        self._streams = {lane: (keys.lane(lane), keys.back(lane)) for lane in LANES}
        self._speed, self._speed_until = 0.0, 0.0
        self._lane_of = {stream: lane for lane, streams in self._streams.items() for stream in streams}

    @classmethod
    def connect(cls, url: str, keys: Keys, bounds: LaneLimits | None = None, result_ttl_s: int = 3_600) -> Self:
        """A queue on the Redis at `url`."""
        return cls(connect(url), keys, bounds, result_ttl_s)

    def close(self) -> None:
        """Drops all connections."""
        self.redis.close()

    def ping(self) -> None:
        """Raises Unavailable if Redis does not answer."""
        with translated():
            self.redis.ping()

    # Producers

    def put(self, lane: str, jobs: Sequence[Job], client: str = "") -> None:
        """Adds the client's jobs to the lane, all or none.

        A job without a reply address gets a record; putting it a second time does nothing. Raises Overloaded.
        """
        self.put_many([Put.pack(lane, jobs, client=client)])[0].check()

    def put_once(self, lane: str, job: Job, idempotency_key: str, owner: str = "", client: str = "") -> str:
        """Adds the job unless its owner put one with the same key within a day; returns the id of the one or other.

        Raises Overloaded, and InvalidRequest if that one asked something else.
        """
        name = blake2b(f"{owner}\0{idempotency_key}".encode(), digest_size=16).hexdigest()
        put = Put.pack(lane, [job], client=client or owner, once=IdempotencyKey(name, job.digest()))
        ((place, found),) = self.put_many([put])[0].check()
        return found.decode() if place < 0 and found else job.id

    def put_many(self, puts: Sequence[Put]) -> list[PutOutcome]:
        """Several `put` in one round trip, each accepted or refused by itself."""
        with translated():
            outcomes = self._connections.run(_PUT, *map(self._call, puts))
        admissions = [PutOutcome(put, outcome, self.bounds) for put, outcome in zip(puts, outcomes, strict=True)]
        if any(admission.is_full for admission in admissions):
            admissions = [replace(admission, texts_per_s=self._texts_per_s()) for admission in admissions]
        return admissions

    def _texts_per_s(self) -> float:
        """How fast the pool answers, asked for once a second at most: many are refused at a time."""
        if time.monotonic() > self._speed_until:
            self._speed, self._speed_until = self.pool.texts_per_s(), time.monotonic() + 1.0
        return self._speed

    def _call(self, put: Put) -> Call:
        names = [*self._streams[put.lane], self.keys.load(put.lane)]
        if put.has_records:
            names += [self.keys.record(job.id) for job in put.jobs]
        once = put.once or IdempotencyKey("", "")
        if put.once:
            names.append(self.keys.once(put.once.name))
        bounds = (self.bounds.max_jobs, self.bounds.max_texts, self.bounds.max_bytes, MAX_FRONT_TEXTS)
        values = [*bounds, put.client, ONCE_TTL_S, put.jobs[0].id, once.digest]
        for job, data in zip(put.jobs, put.data, strict=True):
            values += (data, len(job.texts))
        return Call(names, values)

    def places(self, put: Put, admitted: Sequence[tuple[int, bytes]]) -> list[StreamEntry]:
        """Where each of the admitted jobs is."""
        return [StreamEntry(self._streams[put.lane][place], entry) for place, entry in admitted]

    def withdraw(self, places: Sequence[StreamEntry]) -> int:
        """Takes jobs back that no worker has yet, and that nobody is to be answered; returns how many."""
        if not places:
            return 0
        names = [name for place in places for name in (place.stream, self.keys.load(self._lane_of[place.stream]))]
        with translated():
            return int(self._run(_WITHDRAW, names, [GROUP, *(place.entry for place in places)]))

    def inbox(self, address: str) -> ReplyStream:
        """Where the replies to jobs with that reply address are read."""
        return ReplyStream(self._connections, self.keys.replies(address), self.result_ttl_s)

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """The reply to a submitted job, which stays for others to read; None if it takes longer than `timeout_s`.

        Raises UnknownJob.
        """
        key, until = self.keys.result(job_id), time.monotonic() + timeout_s
        while True:
            with translated():
                status = self.status(job_id)[0]
                data = checked(self._connections.ask(("LINDEX", key, 0))[0])
                wait_s = min(until - time.monotonic(), SHORT_BLOCK_S)
                if data is None and status in ("queued", "running") and wait_s > 0:
                    wait = ("BLMOVE", key, key, "LEFT", "LEFT", f"{wait_s:.3f}")
                    data = checked(self._connections.ask(wait, block_s=wait_s)[0])
            if data is None and status not in ("queued", "running"):
                raise UnknownJob(f"job {job_id} is {status}, and its result has expired")
            if data is not None:
                return Reply.unpack(data)
            if wait_s <= 0:
                return None

    def status(self, job_id: str) -> tuple[str, dict[str, float]]:
        """The status of a submitted job, and its timings once it is done.

        Raises UnknownJob.
        """
        with translated():
            (found,) = self._connections.ask(("HMGET", self.keys.record(job_id), "status", "timings"))
            status, timings = checked(found)
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
            stream = (self.redis.hget(record, "stream") or b"").decode()
            load = self.keys.load(self._lane_of.get(stream, LANES[0]))
            names = (record, self.keys.result(job_id), stream or self.keys.lane(LANES[0]), load)
            status = self._run(_CANCEL, names, (GROUP, self.result_ttl_s, reply.pack()))
        return bytes(status).decode() if status else self.status(job_id)[0]

    def backlog(self) -> dict[str, int]:
        """Unanswered jobs in each lane, those being computed included."""
        with translated():
            return {lane: sum(map(self.redis.xlen, streams)) for lane, streams in self._streams.items()}

    def loads(self) -> dict[str, LaneLoad]:
        """What each lane holds. Texts and bytes are those of jobs that came by a client or by the script."""
        found = {}
        for lane, num_jobs in self.backlog().items():
            with translated():
                texts, size = self.redis.hmget(self.keys.load(lane), "texts", "bytes")
            found[lane] = LaneLoad(num_jobs, int(texts or 0), int(size or 0))
        return found

    def num_dead(self) -> int:
        """How many dead letters there are."""
        with translated():
            return int(self.redis.xlen(self.keys.dead))

    # Workers

    def join(self) -> None:
        """Makes the lanes and their consumer group where they are missing."""
        with translated():
            self._run(_JOIN, list(self._lane_of), [GROUP])

    def leave(self, consumer: str) -> None:
        """Takes a stopped worker out of the consumer group, unless jobs are still pending for it."""
        self._leave(list(self._lane_of), consumer)

    def _leave(self, streams: Sequence[str], consumer: str) -> None:
        with translated():
            self._run(_LEAVE, streams, [GROUP, consumer])

    def take(
        self, consumer: str, lanes: Sequence[str], max_jobs: int, block_s: float = 0, has_back: bool = True
    ) -> list[Delivery]:
        """Up to `max_jobs` waiting jobs of the front of each of the lanes, and a quarter as many of its back.

        They stay pending for `consumer` until answered. With `block_s`, waits that long for the first of them; without
        `has_back`, takes none of the back.
        """
        fronts, backs = zip(*(self._streams[lane] for lane in lanes), strict=True)
        reads = [(max_jobs, fronts), (max(1, max_jobs // BACK_PART), backs)][: 2 if has_back else 1]
        if block_s:
            reads = [(max_jobs, fronts + backs)]
        block_s = min(block_s, BLOCK_S)
        wait = ("BLOCK", max(1, int(block_s * 1000))) if block_s else ()
        begin = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT")
        commands = [(*begin, most, *wait, "STREAMS", *names, *">" * len(names)) for most, names in reads]
        with translated():
            found = self._connections.ask(*commands, block_s=block_s)
            if any(isinstance(answer, redis.ResponseError) and "NOGROUP" in str(answer) for answer in found):
                self.join()  # Redis came back empty
                return []
            streams = [stream for answer in found for stream in checked(answer) or ()]
        return [self._delivery(name.decode(), *entry) for name, entries in streams for entry in entries]

    def _delivery(
        self, stream: str, entry: bytes, values: Sequence[bytes] | None, num_deliveries: int = 1, owner: str = ""
    ) -> Delivery:
        lane = self._lane_of[stream]
        is_back = stream == self._streams[lane][1]
        return Delivery(lane, stream, entry, _value(values, b"job"), num_deliveries, owner, is_back)

    def start(self, job_ids: Sequence[str]) -> list[bool]:
        """Marks submitted jobs as running; False for those that were cancelled and must not run."""
        if not job_ids:
            return []
        with translated():
            return [bool(started) for started in self._run(_START, [self.keys.record(id_) for id_ in job_ids], [])]

    def reply(self, answers: Iterable[Answer]) -> int:
        """Acknowledges the jobs and writes their replies and dead letters; returns how many were still unanswered."""
        names: list[str] = [self.keys.dead]
        values: list[Any] = [GROUP, self.result_ttl_s, MAX_DEAD_LETTERS]
        for answer in answers:
            delivery = answer.delivery
            names += [delivery.stream, self.keys.load(delivery.lane), *self._goes_to(answer)]
            values += [delivery.entry, *answer.pack()]
        if len(names) == 1:
            return 0
        with translated():
            return int(self._run(_REPLY, names, values))

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledges jobs that are answered already."""
        self.reply([Answer(delivery) for delivery in deliveries])

    def claim(self, consumer: str, alive: set[str] | None) -> Delivery | None:
        """One job that a worker left pending: a dead one, or `consumer` itself, which must hold none now.

        With None for those alive nobody counts as dead. One at a time, because a job that kills its worker must not
        take others with it, and of a worker's jobs one that was delivered least, as it is the least likely to.
        """
        for stream, owners in self._consumers().items():
            for owner in owners:
                name = owner[b"name"].decode()
                is_dead = alive is not None and name not in alive
                if is_dead and not owner[b"pending"] and owner[b"idle"] > FORGET_AFTER_MS:
                    self._leave([stream], name)
                is_left_behind = owner[b"pending"] and (is_dead or name == consumer)
                if is_left_behind and (delivery := self._claim_from(stream, name, consumer)):
                    return delivery
        return None

    def _consumers(self) -> dict[str, list[dict[bytes, Any]]]:
        """What Redis knows of the workers that read each stream."""
        with translated():
            answers = self._connections.ask(*(("XINFO", "CONSUMERS", stream, GROUP) for stream in self._lane_of))
            found = [[dict(zip(about[::2], about[1::2], strict=True)) for about in checked(a)] for a in answers]
        return dict(zip(self._lane_of, found, strict=True))

    def _claim_from(self, stream: str, owner: str, consumer: str) -> Delivery | None:
        with translated():
            (found,) = self._connections.run(_CLAIM, Call([stream], [GROUP, consumer, owner, ORPHANS_AT_ONCE]))
            if not checked(found):
                return None
        entry, values, count = found
        return self._delivery(stream, entry, values, count, owner)

    def _goes_to(self, answer: Answer) -> tuple[str, str]:
        """The key that the reply goes to, and that of the record."""
        if answer.reply is None:
            return self.keys.dead, self.keys.dead  # not used
        job_id = answer.reply.id
        address = self.keys.replies(answer.reply_to) if answer.reply_to else self.keys.result(job_id)
        return address, self.keys.record(job_id)

    def _run(self, script: Script, names: Sequence[str], values: Sequence[Any]) -> Any:
        (answer,) = self._connections.run(script, Call(names, values))
        return checked(answer)


def _value(values: Sequence[bytes] | None, wanted: bytes) -> bytes:
    """The value of that name among an entry's names and values, which come in turn; empty if there is none."""
    names = iter(values or ())
    return next((value for name, value in zip(names, names, strict=False) if name == wanted), b"")
