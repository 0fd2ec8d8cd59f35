"""The producer's end of the queue: it puts jobs, reads replies and withdraws jobs. docs/protocol.md has the keys."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from shoal.broker.async_broker import AsyncBroker
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
    overloaded,
    too_large,
    too_much_unread,
)
from shoal.queue.pool import AsyncPool

#: Time for which a reading of the pool's speed is reused, in seconds.
SPEED_KNOWN_S = 5.0

#: Number of bytes of replies that a read should fetch. Redis serves no other client while it copies the replies, and no
#: reply is delivered before all have come.
READ_BYTES = 2**20

_WITHDRAW, _READ, _WATCH = scripts.load("withdraw"), scripts.load("note_read"), scripts.load("watch")


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
        """Add the client's jobs to the lane, all or none, except jobs that are there already. Raises Overloaded."""
        (outcome,) = await self.put_many([PackedJobs.pack(lane, jobs, client=client)])
        if isinstance(outcome, ShoalError):
            raise outcome

    async def put_once(self, lane: str, job: Job, idempotency_key: str, owner: str = "", client: str = "") -> str:
        """Add the job, unless the owner has used the key in the last day; return the id of the job that used it first.

        Raises Overloaded, and InvalidRequest if the first job asked for something else.
        """
        once = {"key": idempotency_key, "owner": owner, "digest": job.digest()}
        put = replace(PackedJobs.pack(lane, [job], client=client or owner), once=once)
        (outcome,) = await self.put_many([put])
        if isinstance(outcome, ShoalError):
            raise outcome
        return bytes(outcome["id"]).decode() if outcome["status"] == b"known" else job.id

    async def put_many(self, puts: Sequence[PackedJobs]) -> list[dict[str, Any] | ShoalError]:
        """Make puts in one round trip. Return the script's answer for each put, or the error if the put is refused."""
        outcomes = await self.commands.run_many(scripts.PUT, self._keys, [put.arguments() for put in puts])
        for n, (put, outcome) in enumerate(zip(puts, outcomes, strict=True)):
            status = None if isinstance(outcome, ShoalError) else outcome["status"]
            if status == b"full":
                outcomes[n] = overloaded(put.lane, outcome, await self._speed())
            elif status == b"too_large":
                outcomes[n] = too_large(put, outcome)
            elif status == b"unread":
                outcomes[n] = too_much_unread(outcome)
            elif status == b"reused":
                job_id = bytes(outcome["id"]).decode()
                words = f"the idempotency key was used for job {job_id}, which asks for something else"
                outcomes[n] = InvalidRequest(words)
        return outcomes

    async def _speed(self) -> float:
        if time.monotonic() > self._speed_known_until:
            with suppress(ShoalError):
                self._texts_per_s = await self.pool.texts_per_s()
            self._speed_known_until = time.monotonic() + SPEED_KNOWN_S
        return self._texts_per_s

    async def holds(self, job_ids: Sequence[str]) -> list[bool]:
        """Return for each id whether its job is unanswered, either in a lane or with a worker."""
        found = await self.commands.pipeline(*(("HEXISTS", self.keys.record(job_id), "lane") for job_id in job_ids))
        return [bool(is_there) for is_there in found]

    # Withdraw and cancel

    async def withdraw(self, job_ids: Sequence[str]) -> int:
        """Remove jobs without a reply, even if a worker has them; return the number of jobs that were unanswered."""
        if not job_ids:
            return 0
        return int((await self.commands.run(_WITHDRAW, self._keys, {"jobs": list(job_ids)}))["withdrawn"])

    async def cancel(self, job_id: str) -> str:
        """Cancel a submitted job if it is not answered yet; return its status after that. Raises UnknownJob."""
        if not NAME.fullmatch(job_id):  # the script would fail, and the error would blame Redis
            raise _unknown(job_id)
        status = (await self.commands.run(scripts.CANCEL, self._keys, {"id": job_id})).get("status")
        if status is None:
            raise _unknown(job_id)
        return bytes(status).decode()

    # Results

    def inbox(self, address: str) -> "ReplyStream":
        """Return the stream at a reply address, with replies to jobs and notes of results that are watched."""
        return ReplyStream(self.commands, self.keys.replies(address))

    async def status(self, job_id: str) -> tuple[str, dict[str, float]]:
        """Return the status of a submitted job and, once it is done, its timings. Raises UnknownJob."""
        status, timings = await self.commands.execute("HMGET", self.keys.record(job_id), "status", "timings")
        if status is None:
            raise _unknown(job_id)
        return status.decode(), wire.unpack(timings) if timings else {}

    async def read_result(self, job_id: str) -> Reply | None:
        """Return the reply to a submitted job, or None if it is not answered yet. Raises UnknownJob.

        Redis keeps the reply for 60 s after this.
        """
        read = ("HMGET", self.keys.record(job_id), "status", "reply_to")
        (status, reply_to), data = await self.commands.pipeline(read, ("LINDEX", self.keys.result(job_id), 0))
        if status is None:
            raise _unknown(job_id)
        if data is not None:
            with suppress(ShoalError):  # the result then stays until it expires, and counts as unread
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
        """Ask for a note at the address when the job is answered; return False if it is answered already."""
        return bool((await self.commands.run(_WATCH, self._keys, {"id": job_id, "address": address}))["is_open"])

    # Loads

    async def loads(self) -> dict[str, LaneLoad]:
        """Return the load of each lane. Texts and bytes of pushed jobs count once a worker has seen them."""
        commands: list[tuple[Any, ...]] = [("TIME",)]
        for lane in LANES:
            jobs = self.keys.of_lane(lane, "jobs")
            commands += [("ZCARD", jobs), ("ZRANGE", jobs, 0, 0, "WITHSCORES")]
            commands += [("HMGET", self.keys.of_lane(lane, "load"), "texts", "bytes"), ("LLEN", self.keys.lane(lane))]
        (seconds, _), *found = await self.commands.pipeline(*commands)
        loads = {}
        of_lanes = zip(LANES, found[::4], found[1::4], found[2::4], found[3::4], strict=True)
        for lane, num_jobs, oldest, sums, num_pushed in of_lanes:
            age_s = max(0.0, int(seconds) - float(oldest[1]) / 1000) if oldest else 0.0
            texts, num_bytes = _whole_numbers(self.keys.of_lane(lane, "load"), sums)
            loads[lane] = LaneLoad(num_jobs + num_pushed, texts or 0, num_bytes or 0, age_s)
        return loads

    async def num_dead(self) -> int:
        """Return the number of dead letters."""
        return int(await self.commands.execute("XLEN", self.keys.dead))

    async def unread_load(self) -> UnreadLoad:
        """Return the load of unread results. A popped or expired result counts until the next sweep."""
        found = await self.commands.execute("HMGET", self.keys.unread_load, "result", "bytes")
        num_results, num_bytes = _whole_numbers(self.keys.unread_load, found)
        return UnreadLoad(num_results or 0, num_bytes or 0)

    async def limits(self) -> LaneLimits:
        """Return the limits of a lane, as workers have announced them."""
        names = [field.name for field in fields(LaneLimits)]
        found = _whole_numbers(self.keys.limits, await self.commands.execute("HMGET", self.keys.limits, *names))
        return LaneLimits(**{name: most for name, most in zip(names, found, strict=True) if most is not None})

    async def check_lanes(self) -> None:
        """Raise Unavailable if another program wrote a key of the lanes, so that jobs cannot be put or taken."""
        types = {self.keys.lane(lane): "list" for lane in LANES}
        types |= {self.keys.of_lane(lane, what): kind for lane in LANES for what, kind in LANE_KEYS.items()}
        types |= {self.keys.suspects: "list", self.keys.holders: "set"}
        types |= {self.keys.unread: "zset", self.keys.unread_load: "hash", self.keys.limits: "hash"}
        found = await self.commands.pipeline(*(("TYPE", key) for key in types))
        for (key, wanted), kind in zip(types.items(), found, strict=True):
            if (is_now := kind.decode()) not in (wanted, "none"):
                raise Unavailable(f"{key} is a {is_now} in place of a {wanted}: another program wrote it; delete it")
        await self.limits()  # raises an error if they are not numbers


def _whole_numbers(key: str, values: Sequence[bytes | None]) -> list[int | None]:
    """Return the numbers in fields of a hash, and None for each field that is missing. Raises Unavailable."""
    # Python refuses to convert thousands of digits
    if any(value is not None and not (value.isdigit() and len(value) <= 18) for value in values):
        raise Unavailable(f"{key} has fields that are no whole numbers: another program wrote it; delete it")
    return [None if value is None else int(value) for value in values]


class ReplyStream:
    """The replies at one address, for one task. No reply is lost if a connection breaks while the reply is on its way.

    `answered` has the ids of watched jobs whose results the last call of `wait` found to be ready.
    """

    def __init__(self, commands: AsyncBroker, key: str):
        self.answered: list[str] = []
        self._commands = commands
        self._key = key
        self._read: list[bytes] = []  # ids of entries that were read and are not deleted yet
        self._max_replies = 100  # each read computes the number for the next read from the sizes of its replies

    async def wait(self, timeout_s: float = SHORT_BLOCK_S) -> list[Reply]:
        """Return about `READ_BYTES` of replies; wait up to `timeout_s` for the first one.

        After an error, a reply may come a second time.
        """
        block_ms = max(1, int(min(timeout_s, SHORT_BLOCK_S) * 1000))
        # From 0, and not from the last id: after a failover to a Redis whose clock is behind, new ids may be lower.
        read = ("XREAD", "COUNT", self._max_replies, "BLOCK", block_ms, "STREAMS", self._key, b"0")
        commands: list[tuple[Any, ...]] = [read]
        if self._read:
            commands.insert(0, ("XDEL", self._key, *self._read))
        try:
            found = (await self._commands.pipeline(*commands, block_s=block_ms / 1000))[-1]
        finally:
            self._read = []  # after an error too: another Redis may answer from now on, with ids of its own
        self.answered = []
        if not found:
            return []
        entries = found[0][1]
        self._read = [entry for entry, _ in entries]
        replies, num_bytes = [], 0
        for _, (kind, value, *_) in entries:
            num_bytes += len(value)
            if kind == b"answered":  # a note, whose value is the id of a job
                self.answered.append(value.decode(errors="replace"))
            elif value:
                with suppress(MalformedJob):
                    replies.append(Reply.unpack(value))
        of_this_size = len(entries) * READ_BYTES // max(1, num_bytes)
        # at most twice the last number, because large replies may follow small ones
        self._max_replies = max(1, min(of_this_size, 2 * self._max_replies, 1_000))
        return replies


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"no job {excerpt(job_id)}: it was never submitted, or its result has expired")
