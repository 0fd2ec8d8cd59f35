"""What a worker takes on: jobs from the lanes, and those that dead workers left behind."""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import Expired, Internal, Poisoned, ShoalError, UnknownIndex
from shoal.jobs import Job, address_of
from shoal.queue.consumer import Consumer
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.delivery import Answer, Delivery
from shoal.queue.lane import OVERFLOW_SHARE, SOURCES, Source
from shoal.queue.pool import ALIVE_S, Pool
from shoal.replies import Reply
from shoal.size_limit import check_texts
from shoal_workers.encoding.encoder import QUERY_PROMPTS, Encoder
from shoal_workers.index.index import Index
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.work import Work

log = logging.getLogger(__name__)

#: Jobs read at a time from each stream of a lane: interactive ones are short, bulk ones fill a batch by themselves.
JOBS_AT_ONCE = {"interactive": 16, "bulk": 1}

#: A full step takes a bulk job along every so many steps, so that bulk work goes on under constant load.
BULK_EVERY = 8

#: How long after an interactive job more of them are expected.
EXPECTED_S = 1.0

#: How often a job may be delivered before it counts as poison.
MAX_DELIVERIES = 3

#: What is said of a worker that could not say it itself.
NO_WORDS = "ended without a word: killed, or out of memory"

#: How often a worker looks for jobs that a dead one left behind.
CLAIM_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker accepts from programs that put jobs into Redis themselves, and how much it takes on in one step.

    A step is full with `max_batch_texts`: more would not be encoded faster, and would keep others waiting.
    """

    max_job_texts: int = 1_024
    max_text_chars: int = 2**20
    max_batch_texts: int = 64
    max_batch_wait_s: float = 0.0


class Admission:
    """Takes and admits jobs for one worker; those that cannot or need not be computed are answered at once."""

    def __init__(
        self,
        consumer: Consumer,
        encoder: Encoder,
        indexes: Mapping[str, Index],
        limits: Limits,
        words: CrashReports,
        counters: "Counter[str]",
    ):
        self._consumer = consumer
        self._pool = Pool(consumer.broker, consumer.keys)
        self._encoder = encoder
        self._indexes = indexes
        self._limits = limits
        self._words = words
        self._counters = counters
        self._num_steps = 0
        self._next_claim_s = 0.0
        self._heard_from_s = 0.0
        self._expected_until_s = 0.0

    @property
    def expects_interactive(self) -> bool:
        """Whether interactive jobs came lately, so that more may come any moment."""
        return time.monotonic() < self._expected_until_s

    def take(self, block_s: float) -> list[Work]:
        """The jobs of a step; with none there, waits so long for one."""
        if orphan := self._claim():
            return self._admit([orphan])
        self._num_steps += 1
        works: list[Work] = []
        self._fill(works, "interactive")
        self._fill(works, "bulk")
        if not works and block_s:
            works += self._admit(self._consumer.take(dict.fromkeys(SOURCES, 1), block_s))
        if works and self._limits.max_batch_wait_s:
            self._linger(works)
        return works

    def doubt_heartbeats(self) -> None:
        """Takes no job from others until all who live have had time to say so: nobody could while Redis was away."""
        self._heard_from_s = time.monotonic() + ALIVE_S

    def take_interactive(self) -> list[Work]:
        """What people wait for now, as much as a step holds at most; none of the back, which gives way itself."""
        works: list[Work] = []
        self._fill(works, "interactive", has_overflow=False)
        return works

    def refuse(self, refusals: Sequence[tuple[Delivery, ShoalError]]) -> int:
        """Answers with the errors; returns how many of the jobs were still unanswered."""
        answers = []
        for delivery, error in refusals:
            self._counters["failed"] += 1
            job_id, reply_to = address_of(delivery.data)
            reply = None if job_id is None else Reply.failure(job_id, error)
            answers.append(Answer(delivery, reply, reply_to, self._letter(delivery, error, reply)))
        return self._consumer.reply(answers)

    def _letter(self, delivery: Delivery, error: ShoalError, reply: Reply | None) -> DeadLetter | None:
        """What is kept of a job that may do harm, or that nobody can be answered for."""
        if reply and not isinstance(error, Poisoned | Internal):
            return None
        reason, trace, worker = (
            f"{error.code}: {error}",
            "".join(traceback.format_exception(error)),
            self._consumer.name,
        )
        deliveries = delivery.num_deliveries
        if isinstance(error, Poisoned):
            summary, _, trace = self._words.of(delivery.owner).partition("\n")
            reason, worker = f"{reason}; the last one {summary or NO_WORDS}", delivery.owner
            deliveries -= 1  # this one is only to bury it
        log.warning("dead letter: %s, in delivery %d; `shoal dead` has the rest", error.code, delivery.num_deliveries)
        return DeadLetter(reason, trace, worker, deliveries)

    # Take

    def _fill(self, works: list[Work], lane: str, has_overflow: bool = True) -> None:
        owed = lane == "bulk" and self._num_steps % BULK_EVERY == 0
        while (room := self._room(works)) > 0 or owed:
            at_once = min(JOBS_AT_ONCE[lane], max(1, room))
            wanted = {Source(lane): at_once}
            if has_overflow:
                wanted[Source(lane, True)] = max(1, int(at_once * OVERFLOW_SHARE))
            taken = self._consumer.take(wanted)
            works += self._admit(taken)
            if not taken or owed or (lane == "bulk" and self.expects_interactive):
                return

    def _linger(self, works: list[Work]) -> None:
        until = time.monotonic() + self._limits.max_batch_wait_s
        while (room := self._room(works)) > 0 and (left := until - time.monotonic()) > 0:
            at_once = min(JOBS_AT_ONCE["interactive"], room)
            works += self._admit(self._consumer.take({Source("interactive"): at_once}, left))

    def _room(self, works: Sequence[Work]) -> int:
        """How many more texts fit into the step."""
        return self._limits.max_batch_texts - sum(len(work.job.texts) for work in works)

    def _claim(self) -> Delivery | None:
        if time.monotonic() < self._next_claim_s:
            return None
        alive = set(self._pool.workers()) if time.monotonic() >= self._heard_from_s else None
        orphan = self._consumer.claim(alive)
        if orphan is None:
            self._next_claim_s = time.monotonic() + CLAIM_EVERY_S
        else:
            log.info("claimed a job that worker %s left behind, delivery %d", orphan.owner, orphan.num_deliveries)
        return orphan

    # Admit

    def _admit(self, deliveries: Iterable[Delivery]) -> list[Work]:
        works, refusals = [], []
        now = time.time()
        for delivery in deliveries:
            if delivery.lane == "interactive" and not delivery.is_overflow:
                self._expected_until_s = time.monotonic() + EXPECTED_S
            try:
                job = self._open(delivery)
                work = Work(delivery, job, self._prompt(job))
                work.timings["queue_s"] = delivery.queued_s(now)
                works.append(work)
            except ShoalError as error:
                refusals.append((delivery, error))
        self.refuse(refusals)
        return self._start(works)

    def _open(self, delivery: Delivery) -> Job:
        job = Job.unpack(delivery.data)
        if delivery.num_deliveries > MAX_DELIVERIES:
            raise Poisoned(f"delivered {MAX_DELIVERIES} times, and each time the worker died: take a look at its texts")
        if error := overdue(job):
            raise error
        check_texts(job.texts, self._limits.max_job_texts, self._limits.max_text_chars, "job", "split it")
        if job.op == "search" and job.index not in self._indexes:
            known = ", ".join(sorted(self._indexes)) or "none"
            raise UnknownIndex(f"no index {job.index!r:.100}: this worker serves {known}")
        self._encoder.check(job.options)
        return job

    def _prompt(self, job: Job) -> str:
        return self._encoder.prompt(job.options, QUERY_PROMPTS if job.op == "search" else ())

    def _start(self, works: list[Work]) -> list[Work]:
        """Marks submitted jobs as running, and drops those that were cancelled: they are answered already."""
        submitted = [work for work in works if work.job.reply_to is None]
        started = self._consumer.start([work.job.id for work in submitted])
        cancelled = [work for work, runs in zip(submitted, started, strict=True) if not runs]
        self._consumer.drop([work.delivery for work in cancelled])
        return [work for work in works if work not in cancelled]


def overdue(job: Job) -> Expired | None:
    """The error of a job whose deadline has passed."""
    if job.deadline is None or (late_s := time.time() - job.deadline) <= 0:
        return None
    return Expired(f"the deadline passed {late_s:.1f} s before a worker was free: add workers or wait longer")
