"""The checks of Redis and of the computed texts at the end of a run."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_run.answers import Answers
from chaos_run.cases import POISON, Case, Outcomes
from chaos_run.plain import GARBAGE
from chaos_run.worker import DIGEST_BYTES, digest
from shoal import operations
from shoal.contract.keys import Keys
from shoal.contract.replies import STATUSES, Reply
from shoal.errors import ShoalError

#: Largest number of times that a job may be delivered.
MAX_DELIVERIES = 3

_FINAL = STATUSES[2:]


@dataclass
class Audit:
    """The checks at the end of a run. Each notes the broken promises that it finds.

    `computed` is the file in which workers note the texts that they compute. `hostile` has the ids of the hostile
    client's jobs, and `figures` has counts by name.
    """

    redis: Any
    keys: Keys
    computed: Path
    answers: Answers
    outcomes: Outcomes
    cases: Sequence[Case]
    hostile: Collection[str] = ()
    figures: dict[str, int] = field(default_factory=dict)

    def num_unanswered(self) -> int:
        """Return the number of jobs in all lanes, including jobs that a worker has."""
        jobs = [self.redis.zcard(key) for key in self._keys_like("lane:*:jobs", "zset")]
        pushed = [self.redis.llen(key) for key in self._keys_like("lane:*", "list") if key.count(":") == 3]
        return sum(map(int, (*jobs, *pushed)))

    def used_memory_mb(self) -> float:
        """Delete the keys that would expire by themselves, and return Redis's memory."""
        for key in self._keys_like("*"):
            if self.redis.ttl(key) >= 0:
                self.redis.delete(key)
        return float(self.redis.info("memory")["used_memory"] / 2**20)

    def run(self) -> dict[str, int]:
        """Run every check; return counts by name."""
        self._check_lanes()
        self._check_keys()
        self._check_records()
        self._check_keyed()
        self._check_addresses()
        self._check_dead_letters()
        self._check_work()
        return self.figures

    def _keys_like(self, pattern: str, kind: str | None = None) -> list[str]:
        found = self.redis.scan_iter(f"{self.keys.root}:{pattern}", count=1_000, _type=kind)
        return [key.decode() for key in found]

    def _check_lanes(self) -> None:
        loads = {key: self.redis.hgetall(key) for key in self._keys_like("lane:*:load")}
        self.figures |= {
            "jobs left in a lane": self.num_unanswered(),
            "jobs left pending": sum(self.redis.zcard(key) for key in self._keys_like("held:*")),
            "loads of lanes that are not 0": sum(int(n) != 0 for load in loads.values() for n in load.values()),
        }
        left = [(name, number) for name, number in self.figures.items() if number]
        self.outcomes.broken += [f"{name}: {number} (loads: {loads})" for name, number in left]

    def _check_keys(self) -> None:
        """Check that all keys have a time to live, except the keys that a pool always has."""
        keys = self.keys
        lasting = (keys.dead, keys.holders, keys.limits, keys.scripts, keys.lane(""), keys.unread)
        found = [key for key in self._keys_like("*") if not key.startswith(lasting)]
        forever = [key for key in found if self.redis.ttl(key) == -1]
        self.outcomes.broken += [f"key without a time to live: {key} ({self.redis.type(key)})" for key in forever]
        self.figures["keys left for ever"] = len(forever)

    def _check_records(self) -> None:
        """Check that every submitted job has a final status and one reply, even if no client knows the job."""
        accepted = self.outcomes.accepted
        unknown = {key.rpartition(":")[2] for key in self._keys_like("job:*")} - accepted.keys() - set(self.hostile)
        self.figures["submitted jobs whose client was not told"] = len(unknown)
        for job_id in unknown | accepted.keys() | set(self.hostile):
            if wrong := self._wrong(job_id, accepted.get(job_id)):
                self.outcomes.broken.append(f"job {job_id}: {wrong}")

    def _check_keyed(self) -> None:
        """Check that each idempotency key made one job, and that its client knows the job."""
        used = [self.redis.hget(key, "id").decode() for key in self._keys_like("once:*")]
        told = {job_id for job_id, case in self.outcomes.accepted.items() if case.is_keyed} | set(self.hostile)
        found = Counter(used)
        self.outcomes.broken += [f"job {job_id} has {n} idempotency keys" for job_id, n in found.items() if n > 1]
        self.outcomes.broken += [f"job {job_id} has a key, but no client knows it" for job_id in found.keys() - told]
        self.outcomes.broken += [f"job {job_id} has lost its key" for job_id in told - found.keys()]
        self.figures["jobs with an idempotency key"] = len(found)

    def _wrong(self, job_id: str, case: Case | None) -> str:
        found, is_read = self.redis.hmget(self.keys.record(job_id), "status", "is_read")
        status = (found or b"no record").decode()
        replies = self.redis.lrange(self.keys.result(job_id), 0, -1)
        if not replies and (found is None or (status in _FINAL and is_read)):
            return ""  # the client has checked the reply, which then expired
        if status not in _FINAL or len(replies) != 1:
            return f"{status} with {len(replies)} replies"
        reply = Reply.unpack(replies[0])
        if reply.status != status:
            return f"its record says {status}, its reply {reply.status}"
        return "" if case is None else self.answers.wrong_reply(case, reply)

    def _check_addresses(self) -> None:
        """Check that an address has at most one reply for each successful put."""
        for case in self.cases:
            if case.route == "address" and case.kind == "good" and case.number not in self.outcomes.unfinished:
                entries = self.redis.xrange(self.keys.replies(f"address-{case.number}"))
                wrong = [self.answers.wrong_reply(case, Reply.unpack(fields[b"reply"])) for _, fields in entries]
                if not 1 <= len(wrong) <= self.outcomes.puts[case.number] or any(wrong):
                    self.outcomes.breach(case, f"{len(wrong)} replies at its address {' '.join(wrong)}")

    def _check_dead_letters(self) -> None:
        """Check that poison has one dead letter, and a malformed job at most one for each successful put."""
        letters = [fields for _, fields in self.redis.xrange(self.keys.dead)]
        found = Counter(_name(fields[b"job"]) for fields in letters)
        accepted = {case.number for case in self.outcomes.accepted.values()}
        for case in self.cases:
            if case.kind == "malformed":
                name, most = GARBAGE.decode("latin-1") + case.texts[0], self.outcomes.puts[case.number]
            elif case.kind in POISON:
                name, most = case.texts[0], int(case.number in accepted)
            else:
                continue
            number = found.pop(name, 0)
            if most and not 1 <= number <= most:
                self.outcomes.breach(case, f"{number} dead letters in place of {most}")
        self.outcomes.broken += [f"{n} dead letters of an innocent job with {name!r}" for name, n in found.items()]
        self.figures["dead letters"] = len(letters)
        self.figures["dead letters of innocent jobs"] = found.total()

    def _check_work(self) -> None:
        """Check that poison was not computed too often, and expired jobs not at all."""
        data = self.computed.read_bytes()
        computed = Counter(data[n : n + DIGEST_BYTES] for n in range(0, len(data), DIGEST_BYTES))
        asked = Counter(text for case in self.cases for text in case.texts)
        again = 0
        for job_id, case in self.outcomes.accepted.items():
            times = [computed[digest(text)] for text in case.texts if asked[text] == 1]
            again += sum(number - 1 for number in times if number > 1 and case.kind == "good")
            if case.kind in POISON and max(times, default=0) > MAX_DELIVERIES:
                self.outcomes.breach(case, f"job {job_id} was computed {max(times)} times")
            elif case.kind == "expired" and any(times):
                self.outcomes.breach(case, f"job {job_id} was computed after its deadline")
        self.figures["texts computed"] = computed.total()
        self.figures["texts computed again"] = again


def _name(data: bytes) -> str:
    """Return the name of a dead letter: its first text, or all its bytes if they are no job."""
    if data.startswith(GARBAGE):
        return data.decode("latin-1")
    try:
        return operations.unpack(data).texts[0]
    except ShoalError as error:
        return f"{error}: {data!r:.80}"
