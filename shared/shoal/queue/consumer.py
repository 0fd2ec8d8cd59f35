"""The consumer's end of the queue: taking jobs, answering them, and claiming those that dead workers left behind."""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shoal.broker.broker import Broker
from shoal.broker.connections import BLOCK_S, MIN_BYTES_PER_S
from shoal.broker.script import Script, ScriptCall
from shoal.errors import ShoalError, TooLarge, Unavailable
from shoal.jobs import LANES
from shoal.keys import Keys
from shoal.queue.answer import MAX_WRITE_BYTES, Answer, groups, size_of
from shoal.queue.delivery import FIELDS, Delivery
from shoal.queue.job_notice import JobNotice
from shoal.queue.lane import MAX_PUT_BYTES, SOURCES, Source
from shoal.queue.unread import UnreadResults
from shoal.settings import DEFAULTS

#: Consumer group through which all workers of a pool read their lanes.
GROUP = "workers"

#: Most bytes of jobs that are taken at a time; a single job may have more.
MAX_TAKE_BYTES = 4 * 2**20

#: Time after which a dead worker's name leaves the consumer group. Long, because a worker may only be suspended.
FORGET_AFTER_MS = 3_600_000

#: Time for which the suspect that a worker read or ran is remembered.
ISOLATED_TTL_S = 3_600

#: Most times that a reply of more than `MAX_WRITE_BYTES` is sent in vain while Redis answers other commands.
MAX_SENDS = 2

#: Times the limit of unread results that results may take: jobs that were put before it was reached are answered too.
MAX_EXCESS = 2

#: Most dead letters that are kept; the oldest go first.
MAX_DEAD_LETTERS = 10_000

#: Most bytes of dead letters that are kept beside the oldest one; the oldest go first.
MAX_DEAD_BYTES = 64 * 2**20

#: Most idle workers of a pool that block on its streams. Each costs Redis some microseconds at every job. So many jobs
#: that come together are taken without a worker that has to be woken.
MAX_LISTENING = 4

#: Time after which an idle worker that sleeps looks for jobs by itself: those that listen may have died.
SLEEP_S = 2.0

#: Most jobs of a dead worker that are looked at to find the one to claim first.
MAX_LOOKED_AT = 100


_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)

#: Stands for the job that Redis names for a consumer while it is not known.
_UNKNOWN = object()


def _load(name: str) -> Script:
    return Script.load("shoal.queue", "lane", name)


_JOIN, _LEAVE, _REFILL, _CLAIM_TURN = map(_load, ("join", "leave", "refill", "claim_turn"))
_HAND_ON = Script.load("shoal.queue", "lane", "idle", "hand_on")
_HAND_BACK, _ISOLATE, _LOST, _START = map(_load, ("hand_back", "isolate", "lost", "start"))
_TAKE = Script.load("shoal.queue", "lane", "delivery", "idle", "take")
_CLAIM = Script.load("shoal.queue", "lane", "delivery", "claim")
_REPLY = Script.load("shoal.queue", "lane", "letter", "reply")


class Consumer:
    """One worker's place in the consumer group of its pool. Thread-safe.

    Every method raises Unavailable when Redis does not answer.
    """

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
        self.unread = UnreadResults(broker, keys, result_ttl_s)
        self._all_keys = [key for lane in LANES for key in keys.of_lane(lane)]
        self._idle_keys = [keys.listening, keys.sleeping, keys.alive]
        self._idle = {
            "consumer": name,
            "max_listening": MAX_LISTENING,
            "listen_ms": int(BLOCK_S * 1000),
            "sleep_ms": int(SLEEP_S * 1000),
            "wake": keys.wake(""),
        }
        self._streams = {s: keys.overflow(s.lane) if s.is_overflow else keys.lane(s.lane) for s in SOURCES}
        self._source_of = {stream: source for source, stream in self._streams.items()}
        self.is_asleep = False
        self._asleep_until = 0.0
        self._named: object = None
        self._failed_sends: Counter[tuple[Source, bytes]] = Counter()

    def join(self) -> None:
        """Make the lanes and their consumer group where they are missing; forget names that are long out of use."""
        self.broker.run(_JOIN, list(self._source_of), {"forget_after_ms": FORGET_AFTER_MS})

    def leave(self) -> None:
        """Leave the consumer group, unless jobs are still pending for this consumer, and hand its idle place on."""
        self.broker.run(_HAND_ON, self._idle_keys, self._idle)
        self.broker.run(_LEAVE, list(self._source_of), {"consumer": self.name})

    def eviction_policy(self) -> str:
        """Return Redis's `maxmemory-policy`; "" where its rules do not let this user ask."""
        with suppress(Unavailable):
            if found := _POLICY.search(self.broker.execute("INFO", "memory")):
                return found[1].decode(errors="replace")
        return ""

    # Take

    def take(self, room: Mapping[Source, int], block_s: float = 0.0) -> list[Delivery]:
        """Take waiting jobs, which stay pending for this consumer until they are answered.

        `room` has the number of texts that are wanted of each source. Sources are read in the order of `SOURCES`, each
        until its texts reach the room, and all until their bytes reach `MAX_TAKE_BYTES`; the last job may exceed both.
        If there is no job and `block_s` is given, wait that long for one, `BLOCK_S` at most. In a large pool, a worker
        that waits for all sources may first sleep that long until another one wakes it.
        """
        wanted = [source for source in SOURCES if room.get(source, 0) > 0]
        if not wanted:
            return []
        waits, block_s = block_s > 0 and len(wanted) == len(SOURCES), min(block_s, BLOCK_S)
        if waits and time.monotonic() < self._asleep_until:
            return self._sleep(wanted, block_s)
        sources = [{**source._asdict(), "room": room[source]} for source in wanted]
        sizes = {"max_bytes": MAX_TAKE_BYTES, "max_job_bytes": MAX_PUT_BYTES}
        arguments = {"lanes": LANES, "sources": sources, "waits": waits} | sizes | self._idle
        keys = [*self._all_keys, *self._idle_keys]
        found = self.broker.run(_TAKE, keys, arguments)
        if not found["has_group"]:  # Redis came back empty
            self.join()
            found["jobs"] += self.broker.run(_TAKE, keys, arguments)["jobs"]
        elif found["sleeps"]:
            self.is_asleep, self._asleep_until = True, time.monotonic() + SLEEP_S
            return self._sleep(wanted, block_s)
        elif not found["jobs"] and block_s > 0:
            self.is_asleep = False
            return self._listen(wanted, block_s, waits and found["is_large"])
        self.is_asleep = False
        return [Delivery.read(Source(job["lane"].decode(), job["is_overflow"]), job) for job in found["jobs"]]

    def notice(self, source: Source) -> JobNotice:
        """Return the notice that jobs have come to a source."""
        return JobNotice(self.broker, self._streams[source])

    def _sleep(self, sources: Sequence[Source], block_s: float) -> list[Delivery]:
        """Sleep until another consumer wakes this one, then wait for the first job of any of the sources."""
        wakes = self.broker.execute("BLPOP", self.keys.wake(self.name), f"{max(0.001, block_s):.3f}", block_s=block_s)
        if wakes is None:
            return []
        self.is_asleep, self._asleep_until = False, 0.0
        return self._listen(sources, block_s, hands_on=True)

    def _listen(self, sources: Sequence[Source], block_s: float, hands_on: bool) -> list[Delivery]:
        """Wait for the first job of any of the sources; with `hands_on`, another worker listens once it is there."""
        streams = [self._streams[source] for source in sources]
        block = ("BLOCK", max(1, int(block_s * 1000)))
        read = ("XREADGROUP", "GROUP", GROUP, self.name, "COUNT", 1, *block, "STREAMS", *streams, *">" * len(streams))
        try:
            if hands_on:
                call = ScriptCall(self._idle_keys, self._idle)
                found = self.broker.execute_before(_HAND_ON, call, *read, block_s=block_s)
            else:
                found = self.broker.execute(*read, block_s=block_s)
        except Unavailable as error:
            if "NOGROUP" not in str(error):
                raise
            self.join()  # Redis came back empty
            return []
        deliveries = []
        for stream, entries in found or ():
            source = self._source_of[stream.decode()]
            deliveries += [Delivery.read(source, _fields(*entry)) for entry in entries]
            if source.is_overflow:
                with suppress(ShoalError):  # the next script on this lane does the same
                    self.broker.run(_REFILL, self.keys.of_lane(source.lane), {})
        return deliveries

    # Claim

    def claim(
        self,
        alive: Callable[[], set[str]] | None,
        holds: Collection[Delivery] = (),
        sources: Sequence[Source] = SOURCES,
    ) -> Delivery | None:
        """Claim one job that a dead worker left pending, or that this consumer lost on a broken connection.

        `alive` returns the names of the living workers; with None no worker counts as dead. It is called after the
        owners of jobs are read: otherwise a worker that joins between the two would seem dead. `holds` are the
        deliveries that this consumer has in memory. Jobs of `sources` only are claimed. Of a worker's jobs the one
        delivered least is claimed first, as the least likely to end its worker. A claim counts as a delivery, unless
        the job certainly did not end its worker. A suspect is named as by `isolate`.
        """
        if alive is not None:
            owners_by_source = self._owners(sources)
            names_alive = alive() | {self.name}
            for source, owners in owners_by_source.items():
                for owner in owners:
                    if owner not in names_alive and (delivery := self._claim_from(owner, [source])):
                        return delivery
        return self._claim_from(self.name, sources, holds)

    def take_claim_turn(self, every_s: float) -> bool:
        """Return True unless a worker has taken a turn within `every_s` to look for jobs of dead workers."""
        arguments = {"worker": self.name, "every_ms": int(every_s * 1000)}
        return bool(self.broker.run(_CLAIM_TURN, [self.keys.claim_turn], arguments)["is_taken"])

    def end_claim_turn(self) -> None:
        """Let any worker look at once: there may be more jobs to claim."""
        self.broker.execute("DEL", self.keys.claim_turn)

    def _owners(self, sources: Sequence[Source]) -> dict[Source, list[str]]:
        """Return for each source the workers for which jobs are pending."""
        summaries = self.broker.pipeline(*(("XPENDING", self._streams[source], GROUP) for source in sources))
        owners = [[name.decode(errors="replace") for name, _ in summary[3] or ()] for summary in summaries]
        return dict(zip(sources, owners, strict=True))

    def _claim_from(self, owner: str, sources: Sequence[Source], holds: Collection[Delivery] = ()) -> Delivery | None:
        """Claim a job that is pending for the owner and not held, of the first source that has one."""
        arguments = {
            "consumer": self.name,
            "owner": owner,
            "held": [[delivery.entry for delivery in holds if delivery.source == source] for source in sources],
            "max_looked_at": MAX_LOOKED_AT,
            "max_job_bytes": MAX_PUT_BYTES,
            "ttl_s": ISOLATED_TTL_S,
        }
        streams = (self._streams[source] for source in sources)
        keys = [self.keys.isolated(owner), self.keys.isolated(self.name), *streams]
        self._named = _UNKNOWN
        found = self.broker.run(_CLAIM, keys, arguments)
        if "none" in found:
            return None
        return Delivery.read(sources[int(found["source"]) - 1], found, found["deliveries"], owner)

    def isolate(self, suspect: Delivery | None) -> None:
        """Name in Redis the suspect that this consumer reads or runs, and nothing else meanwhile; with None, name none.

        If the consumer dies meanwhile, a claim counts as a delivery for that job only. While none is named, a claim
        counts for all jobs that are no suspects.
        """
        if suspect is self._named:
            return
        self._named = _UNKNOWN  # Redis may have executed a command that fails
        if suspect is None:
            self.broker.execute("DEL", self.keys.isolated(self.name))
        else:
            self._name(self._streams[suspect.source], suspect.entry)
        self._named = suspect

    def absolve(self) -> None:
        """Note in Redis that this consumer ends of itself: claims count as a delivery for none of its jobs."""
        self._named = _UNKNOWN
        self._name("", b"")

    def _name(self, stream: str, entry: bytes) -> None:
        arguments = {"stream": stream, "entry": entry, "ttl_s": ISOLATED_TTL_S}
        self.broker.run(_ISOLATE, [self.keys.isolated(self.name)], arguments)

    # Run and answer

    def start(self, jobs: Sequence[tuple[Delivery, str]]) -> list[bool]:
        """Mark jobs with a record, given with their ids, as running; return for each whether it may run.

        It may not if it was cancelled, or if another worker has claimed it.
        """
        if not jobs:
            return []
        keys = [key for delivery, job_id in jobs for key in (self._streams[delivery.source], self.keys.record(job_id))]
        arguments = {"consumer": self.name, "entries": [delivery.entry for delivery, _ in jobs]}
        return list(self.broker.run(_START, keys, arguments)["started"])

    def lost(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return those that are no longer this consumer's: cancelled, withdrawn, or claimed by another worker."""
        if not deliveries:
            return []
        streams = [self._streams[delivery.source] for delivery in deliveries]
        arguments = {"consumer": self.name, "entries": [delivery.entry for delivery in deliveries]}
        is_lost = self.broker.run(_LOST, streams, arguments)["lost"]
        return [delivery for delivery, lost in zip(deliveries, is_lost, strict=True) if lost]

    def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Give jobs that are still this consumer's back to their streams, where any consumer may take them."""
        keys, jobs = list(self._all_keys), []
        for one in deliveries:
            job: dict[str, Any] = {"lane": one.lane, "is_overflow": one.is_overflow, "entry": one.entry}
            if one.is_suspect:
                job["delivered"] = one.num_deliveries - 1
            if one.has_record:
                keys.append(self.keys.record(one.id.decode(errors="replace")))
                job["record_key"] = len(keys)
            jobs.append(job)
        self.broker.run(_HAND_BACK, keys, {"lanes": LANES, "consumer": self.name, "jobs": jobs})

    def reply(self, answers: Iterable[Answer], before_each: Callable[[], object] = lambda: None) -> int:
        """Acknowledge the jobs and write their replies and dead letters; return how many were still unanswered.

        Replies are written in groups of at most `MAX_WRITE_BYTES`, and each larger one alone after them. `before_each`
        is called before each group.
        """
        num_written = 0
        for group in groups([(answer, answer.fields(self.max_reply_bytes)) for answer in answers]):
            before_each()
            num_written += self._write(group)
        return num_written

    def _write(self, group: Sequence[tuple[Answer, dict[str, Any]]]) -> int:
        keys = [*self._all_keys, *self.unread.script_keys, self.keys.dead, self.keys.dead_bytes]
        arguments = {
            "lanes": LANES,
            "result_ttl_s": self.result_ttl_s,
            "max_kept_bytes": MAX_EXCESS * self.max_unread_bytes,
            "max_own_bytes": self.max_unread_bytes // 64,
            "max_dead_letters": MAX_DEAD_LETTERS,
            "max_dead_bytes": MAX_DEAD_BYTES,
            "dead_key": len(keys) - 1,
            "answers": [self._with_keys(answer, fields, keys) for answer, fields in group],
        }
        try:
            written = self.broker.run(_REPLY, keys, arguments)["written"]
        except Unavailable:
            self._count_failed_send(group)
            raise
        for answer, _ in group:
            self._failed_sends.pop((answer.delivery.source, answer.delivery.entry), None)
        return int(written)

    def _count_failed_send(self, group: Sequence[tuple[Answer, dict[str, Any]]]) -> None:
        """Count a failed send of a large reply, unless Redis is away: then its size is not the reason."""
        (delivery, size), *others = ((answer.delivery, size_of(fields)) for answer, fields in group)
        if others or size <= MAX_WRITE_BYTES:
            return
        with suppress(ShoalError):
            self.broker.ping()
            self._failed_sends[delivery.source, delivery.entry] += 1

    def check_sends(self, delivery: Delivery) -> None:
        """Raise TooLarge if this consumer has sent the reply to the job in vain `MAX_SENDS` times."""
        if self._failed_sends[delivery.source, delivery.entry] >= MAX_SENDS:
            raise TooLarge(
                f"the reply was sent to Redis {MAX_SENDS} times and did not arrive: split the job, or give the worker "
                f"a connection that sends {MIN_BYTES_PER_S:,} bytes a second"
            )

    def _with_keys(self, answer: Answer, fields: dict[str, Any], keys: list[str]) -> dict[str, Any]:
        """Return the fields of an answer with the places of the keys that it goes to, which are added to `keys`."""
        if answer.reply is None:
            return fields
        is_stream = answer.reply_to is not None
        keys.append(self.keys.replies(answer.reply_to) if answer.reply_to else self.keys.result(answer.reply.id))
        fields = fields | {"address_key": len(keys), "is_stream": is_stream}
        if answer.has_record:
            keys.append(self.keys.record(answer.reply.id))
            fields["record_key"] = len(keys)
        return fields

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge jobs that are answered already."""
        self.reply([Answer(delivery) for delivery in deliveries])


def _fields(entry: bytes, values: Sequence[bytes] | None) -> dict[str, Any]:
    """Return an entry as the scripts return it; `values` is a flat list of names and values."""
    fields = dict(zip(values[::2], values[1::2], strict=False)) if values else {}
    return {"entry": entry, "job": fields.get(b"job", b""), **{name: fields.get(name.encode()) for name in FIELDS}}
