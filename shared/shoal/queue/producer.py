"""The producer's end of the queue: putting jobs, reading replies, taking jobs back (docs/protocol.md has the keys)."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.broker import ScriptCall
from shoal.broker.connections import SHORT_BLOCK_S
from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import LANES, Job
from shoal.contract.keys import LANE_KEYS, NAME, Keys
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, MalformedJob, ShoalError, Unavailable, UnknownJob
from shoal.queue import scripts
from shoal.queue.lane import (
    LaneLimits,
    LaneLoad,
    PackedJobs,
    UnreadLoad,
    group_puts,
    overloaded,
    too_large,
    too_much_unread,
)
from shoal.queue.pool import AsyncPool

#: Time for which a measured rate of the pool is used again, in seconds: workers announce their rates no more often.
SPEED_KNOWN_S = 5.0

#: Most replies fetched at a time.
REPLIES_AT_ONCE = 1_000

#: Replies fetched by the first read. Each read sets the number for the next one by the sizes that it found.
FIRST_REPLIES = 100

#: Bytes of replies that a read is meant to fetch. Redis serves no other client while it copies them, and none of them
#: is delivered before all have come.
READ_BYTES = 2**20

#: Replies are read from here, and deleted once they are read: after a failover to a Redis whose clock is behind, new
#: ids may be lower than those that were read.
_BEGINNING = b"0"

#: Field of an entry that is not a reply but a note: its value is the id of a job whose result is ready.
_ANSWERED = b"answered"

_PUT, _CANCEL = scripts.PUT, scripts.CANCEL
_WITHDRAW, _READ, _WATCH = scripts.load("withdraw"), scripts.load("read"), scripts.load("watch")


class Producer:
    """The lanes, results and records of a pool, for programs that put jobs. Every method raises Unavailable."""

    def __init__(self, commands: AsyncBroker, keys: Keys, result_ttl_s: int = 3_600):
        self.keys = keys
        self.result_ttl_s = result_ttl_s
        self.pool = AsyncPool(commands, keys)
        self.commands = commands
        self._keys = (keys.root,)
        self._texts_per_s, self._speed_known_until = 0.0, 0.0

    async def now(self) -> float:
        """Return the time by Redis's clock, in Unix seconds."""
        seconds, microseconds = await self.commands.execute("TIME")
        return int(seconds) + int(microseconds) / 1e6

    # Put

    async def put(self, lane: str, jobs: Sequence[Job], client: str = "") -> None:
        """Add the client's jobs to the lane, all or none; to put a job again does nothing. Raises Overloaded."""
        (outcome,) = await self._put(PackedJobs.pack(lane, jobs, client=client))
        if isinstance(outcome, ShoalError):
            raise outcome

    async def put_once(self, lane: str, job: Job, idempotency_key: str, owner: str = "", client: str = "") -> str:
        """Add the job unless its owner put one with the same key within a day; return the id of this or that job.

        Raises Overloaded, and InvalidRequest if that job asked something else.
        """
        once = {"key": idempotency_key, "owner": owner, "digest": job.digest()}
        put = replace(PackedJobs.pack(lane, [job], client=client or owner), once=once)
        (outcome,) = await self._put(put)
        if isinstance(outcome, ShoalError):
            raise outcome
        return bytes(outcome["id"]).decode() if outcome["status"] == b"known" else job.id

    async def put_many(self, puts: Sequence[PackedJobs]) -> list[list[str | None] | ShoalError]:
        """Make several puts in one round trip, each accepted or refused by itself.

        One run of the script makes a group of them, or one by one if it refuses them together. Returns for each put the
        ids of its jobs, with None for a job that was there already; or its error, as Overloaded or TooLarge.
        """
        groups = group_puts(puts)
        outcomes: list[list[str | None] | ShoalError] = []
        for group, outcome in zip(groups, await self._put(*map(PackedJobs.join, groups)), strict=True):
            if len(group) == 1 or not isinstance(outcome, ShoalError):
                outcomes += _new_ids(group, outcome)
                continue
            try:
                again = await self._put(*group)
            except ShoalError as error:  # of these puts alone: others were accepted
                again = [error] * len(group)
            for put, of_put in zip(group, again, strict=True):
                outcomes += _new_ids([put], of_put)
        return outcomes

    async def _put(self, *puts: PackedJobs) -> list[dict[str, Any] | ShoalError]:
        outcomes = await self.commands.run_many(_PUT, [ScriptCall(self._keys, put.arguments()) for put in puts])
        return [await self._checked(put, outcome) for put, outcome in zip(puts, outcomes, strict=True)]

    async def _checked(self, put: PackedJobs, outcome: dict[str, Any] | ShoalError) -> dict[str, Any] | ShoalError:
        if isinstance(outcome, ShoalError):
            return outcome
        if outcome["status"] == b"full":
            return overloaded(put.lane, outcome, await self._speed())
        if outcome["status"] == b"too_large":
            return too_large(put, outcome)
        if outcome["status"] == b"unread":
            return too_much_unread(outcome)
        if outcome["status"] == b"reused":
            job_id = bytes(outcome["id"]).decode()
            return InvalidRequest(f"the idempotency key was used for job {job_id}, which asks something else")
        return outcome

    async def _speed(self) -> float:
        if time.monotonic() > self._speed_known_until:
            with suppress(ShoalError):
                self._texts_per_s = await self.pool.texts_per_s()
            self._speed_known_until = time.monotonic() + SPEED_KNOWN_S
        return self._texts_per_s

    async def holds(self, job_ids: Sequence[str]) -> list[bool]:
        """Return for each id True while its job is in a lane: waiting, or with a worker."""
        found = await self.commands.pipeline(*(("HEXISTS", self.keys.record(job_id), "lane") for job_id in job_ids))
        return [bool(is_there) for is_there in found]

    # Take back

    async def withdraw(self, job_ids: Sequence[str]) -> int:
        """Take jobs back without a reply, whether a worker has them or not; return how many were still unanswered."""
        if not job_ids:
            return 0
        return int((await self.commands.run(_WITHDRAW, self._keys, {"jobs": list(job_ids)}))["withdrawn"])

    async def cancel(self, job_id: str) -> str:
        """Cancel a submitted job that is not answered yet; return its status then. Raises UnknownJob."""
        if not NAME.fullmatch(job_id):  # the script would fail, as if Redis were at fault
            raise _unknown(job_id)
        status = (await self.commands.run(_CANCEL, self._keys, {"id": job_id})).get("status")
        if status is None:
            raise _unknown(job_id)
        return bytes(status).decode()

    # Results

    def inbox(self, address: str) -> "ReplyStream":
        """Return the stream of the replies to jobs with that reply address, and of notes of watched results."""
        return ReplyStream(self.commands, self.keys.replies(address))

    async def status(self, job_id: str) -> tuple[str, dict[str, float]]:
        """Return the status of a submitted job, and its timings once it is done. Raises UnknownJob."""
        status, timings = await self.commands.execute("HMGET", self.keys.record(job_id), "status", "timings")
        if status is None:
            raise _unknown(job_id)
        return status.decode(), wire.unpack(timings) if timings else {}

    async def read_result(self, job_id: str) -> Reply | None:
        """Return the reply to a submitted job, which can be read for 60 s more; None before it. Raises UnknownJob."""
        read = ("HMGET", self.keys.record(job_id), "status", "reply_to")
        (status, reply_to), data = await self.commands.pipeline(read, ("LINDEX", self.keys.result(job_id), 0))
        if status is None:
            raise _unknown(job_id)
        if data is not None:
            with suppress(ShoalError):  # then the result is kept and counted as one that was not read
                await self.commands.run(_READ, self._keys, {"id": job_id})
            return Reply.unpack(data)
        if reply_to is not None:
            address = reply_to.decode(errors="replace")
            raise UnknownJob(f"job {job_id} has no result: its reply goes to the address {excerpt(address)}")
        if status not in (b"queued", b"running"):
            raise UnknownJob(
                f"job {job_id} is {status.decode()}, and its result has expired: it is kept {self.result_ttl_s} s, "
                "and 60 s once it was read"
            )
        return None

    async def watch_result(self, job_id: str, address: str) -> bool:
        """Have a note sent to the address when the job is answered; return False if it is answered already."""
        return bool((await self.commands.run(_WATCH, self._keys, {"id": job_id, "address": address}))["is_open"])

    # Loads

    async def loads(self) -> dict[str, LaneLoad]:
        """Return the load of each lane; jobs that were pushed without a script count once a worker has looked."""
        commands: list[tuple[Any, ...]] = [("TIME",)]
        for lane in LANES:
            jobs = self.keys.of_lane(lane, "jobs")
            commands += [("ZCARD", jobs), ("ZRANGE", jobs, 0, 0, "WITHSCORES")]
            commands += [("HMGET", self.keys.of_lane(lane, "load"), "texts", "bytes"), ("LLEN", self.keys.lane(lane))]
        (seconds, _), *found = await self.commands.pipeline(*commands)
        loads = {}
        of_lanes = zip(LANES, found[::4], found[1::4], found[2::4], found[3::4], strict=True)
        for lane, num_jobs, oldest, (texts, num_bytes), num_pushed in of_lanes:
            age_s = max(0.0, int(seconds) - float(oldest[1]) / 1000) if oldest else 0.0
            loads[lane] = LaneLoad(num_jobs + num_pushed, int(texts or 0), int(num_bytes or 0), age_s)
        return loads

    async def num_dead(self) -> int:
        """Return the number of dead letters."""
        return int(await self.commands.execute("XLEN", self.keys.dead))

    async def unread_load(self) -> UnreadLoad:
        """Return the load of results that were not read; one that was taken or has expired counts until a sweep."""
        num_results, num_bytes = await self.commands.execute("HMGET", self.keys.unread_load, "result", "bytes")
        return UnreadLoad(int(num_results or 0), int(num_bytes or 0))

    async def limits(self) -> LaneLimits:
        """Return the most that a lane may hold, as workers have announced it."""
        names = [field.name for field in fields(LaneLimits)]
        found = await self.commands.execute("HMGET", self.keys.limits, *names)
        return LaneLimits(**{name: int(most) for name, most in zip(names, found, strict=True) if most is not None})

    async def check_lanes(self) -> None:
        """Raise Unavailable if jobs cannot be put or taken, because another program wrote a key of the lanes."""
        types = {self.keys.lane(lane): "list" for lane in LANES}
        types |= {self.keys.of_lane(lane, what): kind for lane in LANES for what, kind in LANE_KEYS.items()}
        types |= {self.keys.suspects: "list", self.keys.holders: "set"}
        types |= {self.keys.unread: "zset", self.keys.unread_load: "hash", self.keys.limits: "hash"}
        found = await self.commands.pipeline(*(("TYPE", key) for key in types))
        for (key, wanted), kind in zip(types.items(), found, strict=True):
            if (is_now := kind.decode()) not in (wanted, "none"):
                raise Unavailable(f"{key} is a {is_now} in place of a {wanted}: another program wrote it; delete it")


class ReplyStream:
    """The replies at one address, for one task: a connection that breaks while some are on their way loses none.

    `answered` has the ids of the watched jobs whose results the last call of `wait` has found to be there.
    """

    def __init__(self, commands: AsyncBroker, key: str):
        self.answered: list[str] = []
        self._commands = commands
        self._key = key
        self._read: list[bytes] = []  # and not deleted yet
        self._max_replies = FIRST_REPLIES

    async def wait(self, timeout_s: float = SHORT_BLOCK_S) -> list[Reply]:
        """Return some `READ_BYTES` of replies, waiting for one; after an error, some may come a second time."""
        block_ms = max(1, int(min(timeout_s, SHORT_BLOCK_S) * 1000))
        read = ("XREAD", "COUNT", self._max_replies, "BLOCK", block_ms, "STREAMS", self._key, _BEGINNING)
        commands: list[tuple[Any, ...]] = [read]
        if self._read:
            commands.insert(0, ("XDEL", self._key, *self._read))
        try:
            found = (await self._commands.pipeline(*commands, block_s=block_ms / 1000))[-1]
        finally:
            self._read = []  # after an error as well: Redis may be another one now
        self.answered = []
        if not found:
            return []
        entries = found[0][1]
        self._read = [entry for entry, _ in entries]
        replies, num_bytes = [], 0
        for _, (kind, value, *_) in entries:
            num_bytes += len(value)
            if kind == _ANSWERED:
                self.answered.append(value.decode(errors="replace"))
            elif value:
                with suppress(MalformedJob):
                    replies.append(Reply.unpack(value))
        of_this_size = len(entries) * READ_BYTES // max(1, num_bytes)
        # at most twice as many: large replies may come after small ones
        self._max_replies = max(1, min(of_this_size, 2 * self._max_replies, REPLIES_AT_ONCE))
        return replies


def _new_ids(puts: Sequence[PackedJobs], result: dict[str, Any] | ShoalError) -> list[list[str | None] | ShoalError]:
    if isinstance(result, ShoalError):
        return [result for _ in puts]
    is_new = iter(result.get("is_new", ()))
    return [[job.id if new else None for job, new in zip(put.jobs, is_new, strict=False)] for put in puts]


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"no job {excerpt(job_id)}: it was never submitted, or its result has expired")
