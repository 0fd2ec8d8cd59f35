"""The checks of Redis once everything is answered, and of the texts that were computed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from chaos_run.answers import Answers, is_right_error
from chaos_run.cases import POISON, Case
from chaos_run.outcomes import Outcomes
from chaos_run.plain import GARBAGE
from chaos_run.worker import DIGEST_BYTES, digest
from shoal.errors import ShoalError
from shoal.jobs import Job
from shoal.keys import Keys
from shoal.queue.consumer import GROUP
from shoal.replies import STATUSES, Reply

#: How often a job may be delivered.
MAX_DELIVERIES = 3

_FINAL = STATUSES[2:]


class Audit:
    """The checks that are made when nothing runs any more; each notes the promises that it finds broken."""

    def __init__(
        self,
        connection: redis.Redis,
        keys: Keys,
        computed: Path,
        answers: Answers,
        outcomes: Outcomes,
        cases: list[Case],
    ):
        self._redis: Any = connection
        self._keys = keys
        self._computed = computed
        self._answers = answers
        self.outcomes = outcomes
        self._cases = cases
        self.figures: dict[str, int] = {}

    def num_unanswered(self) -> int:
        """Return the number of jobs in all lanes, those that a worker has included."""
        return sum(self._redis.xlen(lane) for lane in self._lanes())

    def run(self) -> dict[str, int]:
        """Run every check; return counts by name."""
        self._check_lanes()
        self._check_keys()
        self._check_records()
        self._check_addresses()
        self._check_dead_letters()
        self._check_work()
        return self.figures

    def _lanes(self) -> list[bytes]:
        return [key for key in self._redis.scan_iter(f"{self._keys.root}:lane:*", _type="stream")]

    def _check_lanes(self) -> None:
        self.figures["jobs left in a lane"] = self.num_unanswered()
        pending = sum(self._redis.xpending(lane, GROUP)["pending"] for lane in self._lanes())
        self.figures["jobs left pending"] = pending
        loads = {
            key.decode(): self._redis.hgetall(key) for key in self._redis.scan_iter(f"{self._keys.root}:lane:*:load")
        }
        self.figures["counts left of what a lane holds"] = sum(
            int(n) != 0 for load in loads.values() for n in load.values()
        )
        for name, number in self.figures.items():
            if number:
                self.outcomes.breach(f"{name}: {number} (loads: {loads})")

    def _check_keys(self) -> None:
        """Check that only lanes, dead letters and the set of workers have no time to live."""
        lasting = {self._keys.dead, self._keys.workers}
        found = {key.decode() for key in self._redis.scan_iter(f"{self._keys.root}:*", count=1_000)} - lasting
        forever = [
            name for name in found if not name.startswith(f"{self._keys.root}:lane:") and self._redis.ttl(name) == -1
        ]
        for name in forever:
            self.outcomes.breach(f"key without a time to live: {name} ({self._redis.type(name).decode()})")
        self.figures["keys left for ever"] = len(forever)

    def _check_records(self) -> None:
        """Check that every submitted job has a final status and one reply, also if no client was told of it."""
        found = {
            key.decode().rpartition(":")[2] for key in self._redis.scan_iter(f"{self._keys.root}:job:*", count=1_000)
        }
        unknown = found - self.outcomes.accepted.keys()
        self.figures["submitted jobs whose client was not told"] = len(unknown)
        for job_id in unknown | self.outcomes.accepted.keys():
            if wrong := self._wrong(job_id, self.outcomes.accepted.get(job_id)):
                self.outcomes.breach(f"job {job_id}: {wrong}")

    def _wrong(self, job_id: str, case: Case | None) -> str:
        status = (self._redis.hget(self._keys.record(job_id), "status") or b"no record").decode()
        replies = self._redis.lrange(self._keys.result(job_id), 0, -1)
        if status not in _FINAL or len(replies) != 1:
            return f"{status} with {len(replies)} replies"
        reply = Reply.unpack(replies[0])
        if reply.status != status:
            return f"its record says {status}, its reply {reply.status}"
        return "" if case is None else self._wrong_reply(reply, case)

    def _wrong_reply(self, reply: Reply, case: Case) -> str:
        if reply.error:
            return "" if is_right_error(case, reply.error.code) else f"{reply.error.code}: {reply.error}"
        return self._answers.wrong_reply(case, reply)

    def _check_addresses(self) -> None:
        """Check that an address has at most one reply for each time that the job may have got in."""
        for case in self._cases:
            if case.route == "address" and case.kind == "good" and case.number not in self.outcomes.unfinished:
                entries = self._redis.xrange(self._keys.replies(f"address-{case.number}"))
                wrong = [self._wrong_reply(Reply.unpack(fields[b"reply"]), case) for _, fields in entries]
                if not 1 <= len(wrong) <= self.outcomes.puts[case.number] or any(wrong):
                    self.outcomes.breach(f"case {case.number}: {len(wrong)} replies at its address {' '.join(wrong)}")

    # Dead letters

    def _check_dead_letters(self) -> None:
        """Check that poison has one dead letter, and a malformed job one for each time that it may have got in."""
        letters = [fields for _, fields in self._redis.xrange(self._keys.dead)]
        found = Counter(_name(fields[b"job"]) for fields in letters)
        for case in self._cases:
            name, most = self._dead_letters_of(case)
            number = found.pop(name, 0)
            if most and not 1 <= number <= most:
                self.outcomes.breach(f"case {case.number} ({case.kind}) has {number} dead letters in place of {most}")
        for name, number in found.items():
            self.outcomes.breach(f"{number} dead letters of an innocent job with {name!r}")
        self.figures["dead letters"] = len(letters)
        self.figures["dead letters of innocent jobs"] = found.total()

    def _dead_letters_of(self, case: Case) -> tuple[str, int]:
        """Return the name of such dead letters, and how many there may be at most."""
        if case.kind == "malformed":
            return GARBAGE.decode("latin-1") + case.texts[0], self.outcomes.puts[case.number]
        is_in = case.kind in POISON and case.number in {case.number for case in self.outcomes.accepted.values()}
        return case.texts[0] if case.kind in POISON else "", int(is_in)

    # What was computed

    def _check_work(self) -> None:
        data = self._computed.read_bytes()
        computed = Counter(data[n : n + DIGEST_BYTES] for n in range(0, len(data), DIGEST_BYTES))
        asked = Counter(text for case in self._cases for text in case.texts)
        again = 0
        for job_id, case in self.outcomes.accepted.items():
            times = [computed[digest(text)] for text in case.texts if asked[text] == 1]
            again += sum(number - 1 for number in times if number > 1 and case.kind == "good")
            if wrong := self._wrong_work(case, max(times, default=0)):
                self.outcomes.breach(f"job {job_id} ({case.kind}): {wrong}")
        self.figures["texts computed"] = computed.total()
        self.figures["texts computed again"] = again

    def _wrong_work(self, case: Case, times: int) -> str:
        if case.kind in POISON and times > MAX_DELIVERIES:
            return f"computed {times} times"
        return "computed after its deadline" if case.kind == "expired" and times else ""

    # Memory

    def used_memory_mb(self) -> float:
        """Return Redis's memory without the keys that would expire by themselves: they are deleted."""
        for keys in self._expiring():
            self._redis.delete(*keys)
        return float(self._redis.info("memory")["used_memory"] / 2**20)

    def _expiring(self) -> Iterator[list[bytes]]:
        found = [key for key in self._redis.scan_iter(f"{self._keys.root}:*", count=1_000) if self._redis.ttl(key) >= 0]
        for n in range(0, len(found), 1_000):
            yield found[n : n + 1_000]


def _name(data: bytes) -> str:
    """Return the name of a dead letter: its first text, or all of it if it is no job."""
    if data.startswith(GARBAGE):
        return data.decode("latin-1")
    try:
        return Job.unpack(data).texts[0]
    except ShoalError as error:
        return f"{error}: {data!r:.80}"
