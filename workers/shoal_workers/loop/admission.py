"""Admission control, which takes jobs from the lanes and from dead workers, and refuses jobs that cannot be done."""

import logging
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from shoal.broker.clock import Clock
from shoal.cache.cache import Cache
from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import Job, check_deadline
from shoal.contract.outline import Outline
from shoal.contract.replies import Reply, other_fingerprint
from shoal.errors import (
    Expired,
    Internal,
    InvalidRequest,
    ModelMismatch,
    Poisoned,
    ShoalError,
    UnknownIndex,
    Unsupported,
)
from shoal.operations import Decode, Embed, Rerank, Search, Tokenize
from shoal.process import logs
from shoal.queue.consumer import Answer, Consumer, Delivery
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.pool import Pool
from shoal_workers.encoding.encoder import Pipeline
from shoal_workers.operations.embed import EmbedWork
from shoal_workers.operations.rerank import RerankWork
from shoal_workers.operations.search import Searcher, SearchWork
from shoal_workers.operations.tokenize import TokenizerWork
from shoal_workers.operations.work import Work
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.measurements import EndedJob, JobLog

log = logging.getLogger(__name__)

#: A job fails as poisoned after this number of workers have died while they held it.
MAX_DEATHS = 3

#: The message for an expired job.
LATE = "the deadline or timeout_s passed before the job was computed: add workers or wait longer"

#: Largest number of jobs that a worker takes from a lane at a time. Measured with a limit of 64 and jobs of one
#: headline: later jobs waited for a longer pass, so 64 connections got 0.91 times as many answers a second, and a
#: client beside 1,000 others waited twice as long.
MAX_JOBS = 32

#: Interval in seconds at which a worker looks for jobs that Redis gave it in an answer that was lost. It then also
#: looks for the jobs of dead workers, unless another worker has just done so.
RECLAIM_EVERY_S = 1.0

#: First and longest pause of a worker that gets only jobs that it must give back, in seconds. Each pause is twice as
#: long as the previous one. During a pause, another worker can take the jobs.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on admitted jobs, and on the texts of a pass."""

    max_job_texts: int = 1_024
    max_text_chars: int = 2**20
    max_batch_texts: int = 64


#: The class of work for the jobs of each operation, by the operation's name.
WORKS: dict[str, type[Work]] = {
    Embed.op: EmbedWork,
    Search.op: SearchWork,
    Rerank.op: RerankWork,
    Tokenize.op: TokenizerWork,
    Decode.op: TokenizerWork,
}


@dataclass(frozen=True, slots=True)
class Served:
    """The models and indexes of a worker. `now` returns Redis's time in Unix seconds."""

    embeds: Pipeline
    reranks: Pipeline | None
    searcher: Searcher
    now: Callable[[], float]

    def work_for(self, delivery: Delivery, job: Job) -> Work:
        """Return the work of a job; raise a ShoalError if this worker cannot serve the job."""
        pipeline = self.reranks if isinstance(job, Rerank) else self.embeds
        if pipeline and job.fingerprint not in (None, "", pipeline.made_by["fingerprint"]):
            raise other_fingerprint(job.fingerprint, **pipeline.made_by)
        self.embeds.encoder.check(job.options, job.options.outputs if isinstance(job, Embed) else ())
        return WORKS[job.op].of_job(delivery, job, self)

    def reranker(self) -> Pipeline:
        """Return the reranker's pipeline; raise Unsupported if there is none."""
        if self.reranks is None:
            raise Unsupported("this worker has no reranker: set SHOAL_RERANKER to a cross-encoder, on all workers")
        return self.reranks


class Admission:
    """The admission control of one worker."""

    def __init__(
        self,
        consumer: Consumer,
        pool: Pool,
        served: Served,
        limits: Limits,
        cache: Cache | None,
        crash_reports: CrashReports,
        clock: Clock,
        job_log: JobLog,
    ):
        self._consumer, self._pool, self._clock = consumer, pool, clock
        self._served, self._limits, self._cache = served, limits, cache
        self._crash_reports, self._job_log = crash_reports, job_log
        self._counters = job_log.measurements.counters
        self._next_reclaim = self._next_check = 0.0
        self._has_more_to_sweep = False
        self._others: list[dict[str, Any]] = []
        self._served_until = self._suspects_from = self._pause_s = 0.0

    # Take

    def take(
        self, room: Mapping[str, int], block_s: float, held: Collection[Work], takes_suspects: bool = False
    ) -> list[Work]:
        """Take and admit jobs, at most `room` texts from each lane. If `held` is empty, wait `block_s` for a job."""
        if time.monotonic() >= self._next_reclaim or self._has_more_to_sweep:
            self._reclaim(held)
        skips_suspects = time.monotonic() < self._suspects_from
        if not held:  # sleeps, because a suspect in the queue would end a wait for jobs at once
            time.sleep(max(self._pause_s, FIRST_PAUSE_S) if skips_suspects else self._pause_s)
        takes_suspects = takes_suspects and not skips_suspects
        return self._admit(self._consumer.take(room, 0.0 if held else block_s, takes_suspects, MAX_JOBS))

    def _reclaim(self, held: Collection[Work]) -> None:
        """Measure Redis's clock, let lost jobs and jobs of dead workers wait again, and check unread results."""
        is_due = time.monotonic() >= self._next_reclaim
        if is_due:
            self._clock.measure()
            self._next_reclaim = time.monotonic() + RECLAIM_EVERY_S
            num_own, dead = self._consumer.reclaim([work.delivery for work in held])
            if num_own:
                log.info("%d jobs wait again, because Redis's answer with them did not reach this worker", num_own)
            for worker, num_jobs in dead.items():
                self._counters["claims"] += num_jobs
                log.info("jobs of worker %s wait again, as it is dead: %d", worker, num_jobs)
        if is_due or self._has_more_to_sweep:
            self._has_more_to_sweep = self._consumer.sweep_unread()

    # Admit

    def _admit(self, deliveries: Iterable[Delivery]) -> list[Work]:
        works, refusals = [], []
        for delivery in deliveries:
            self._counters["redeliveries"] += delivery.deaths > 0
            try:
                if delivery.deaths >= MAX_DEATHS:
                    raise Poisoned(
                        f"delivered {MAX_DEATHS} times, and each time the worker died: take a look at its texts"
                    )
                self._consumer.check_sends(delivery)
                works.append(self._served.work_for(delivery, self._read(delivery)))
            except ShoalError as error:
                refusals.append((delivery, error))
        if refusals:
            self.refuse(refusals)
        if submitted := [work for work in works if work.job.reply_to is None or work.delivery.keeps_status]:
            lost = self._start(submitted)
            works = [work for work in works if work not in lost]
        if works:
            self._pause_s = 0.0
        if self._cache:
            self._look_up(self._cache, works)
        for work in works:
            if work.is_complete:
                work.begin()
        return works

    def _read(self, delivery: Delivery) -> Job:
        """Return the job of the delivery. Raises a ShoalError for a job that no worker can serve."""
        job = delivery.job()
        if delivery.key != job.id and (put_as := delivery.put_as):
            raise InvalidRequest(f"the job has id {excerpt(job.id)}, and was put as {excerpt(put_as)}: use the same id")
        if job.deadline is not None:
            now = self._clock.now()
            if job.deadline < now:
                raise Expired(LATE)
            if job.timeout_s is None:  # a `timeout_s` is at most a year
                check_deadline(job.deadline, now)
        job.check_texts(self._limits.max_job_texts, self._limits.max_text_chars, "job", "split it")
        job.check_sizes(self._limits.max_job_texts)
        return job

    def _start(self, submitted: Sequence[Work]) -> list[Work]:
        """Set the status of submitted jobs to `running`; return the jobs that this worker has lost."""
        started = self._consumer.start([(work.delivery, work.job.id) for work in submitted])
        for work in submitted:
            if work.delivery.put_as is None:
                work.delivery = replace(work.delivery, key=work.job.id)
        return [work for work, runs in zip(submitted, started, strict=True) if not runs]

    def _look_up(self, cache: Cache, works: Iterable[Work]) -> None:
        """Look up the jobs' texts in the cache, and give each job its entries."""
        works = [work for work in works if work.reads_texts and work.options.is_cacheable and work.untokenized]
        for work in works:
            work.digests = cache.table.digests(work.job.texts, work.prompt, work.job.options)
        entries = iter(cache.find([digest for work in works for digest in work.digests]))
        for work in works:
            found = list(islice(entries, len(work.digests)))
            if any(found):
                work.use_cache(found)
            self._counters["cache_hits"] += work.num_cached
            self._counters["cache_misses"] += len(work.untokenized)

    # Refuse

    def drop(self, held: Collection[Work]) -> list[Work]:
        """Answer expired jobs with an error. Return these jobs and the jobs that this worker has lost."""
        now = self._clock.now()
        dropped = [work for work in held if work.job.deadline is not None and work.job.deadline < now]
        if dropped:
            self.refuse([(work.delivery, Expired(LATE)) for work in dropped], dropped)
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + 0.25  # seconds between two checks that the jobs are still its own
            lost = set(self._consumer.lost([work.delivery for work in held]))
            dropped += [work for work in held if work.delivery in lost]
        return dropped

    def refuse(self, refusals: Sequence[tuple[Delivery, ShoalError]], works: Collection[Work] = ()) -> int:
        """Answer jobs with their errors, or give back jobs that another worker serves; return the number of answers."""
        answers, ended, given = [], [], self._give_back(refusals)
        begun = {work.delivery: work for work in works if work.timings}
        for delivery, error in refusals:
            if delivery in given:
                continue
            outline = Outline.read(delivery.data)
            work = begun.get(delivery)
            job = replace(work.ended(), error=error) if work else EndedJob.refused(delivery, outline, error)
            reply = Reply.failure(job.id, error) if job.id else None
            letter = self._dead_letter(delivery, error, outline)
            reply_to = delivery.reply_to if delivery.put_as else outline.reply_to
            answers.append(Answer(delivery, reply, reply_to, letter))
            ended.append(job)
        replying_at = time.time()
        num_answered = self._consumer.reply(answers) if answers else 0
        self._job_log.note(ended, replying_at)
        return num_answered

    def _dead_letter(self, delivery: Delivery, error: ShoalError, outline: Outline) -> DeadLetter | None:
        """Return the dead letter if the job is poisoned, its id is unreadable or the error is unforeseen; else None."""
        job_id = delivery.put_as or outline.id
        if job_id and not isinstance(error, Poisoned | Internal):
            return None
        reason, trace = f"{error.code}: {error}", "".join(traceback.format_exception(error))
        worker, deliveries = self._consumer.name, delivery.deaths + 1
        if isinstance(error, Poisoned):
            summary, _, trace = self._crash_reports.read(delivery.died).partition("\n")
            summary = summary or "ended without a report: killed, or out of memory"
            reason, worker = f"{reason}; the last one {summary}", delivery.died
            deliveries -= 1  # the job was not computed in this delivery
        facts = logs.about(job_id, delivery.client, outline.traceparent)
        log.warning("dead letter: %s in delivery %d; `shoal dead` has the rest", error.code, deliveries, extra=facts)
        return DeadLetter(reason, trace, worker, deliveries)

    def _give_back(self, refusals: Sequence[tuple[Delivery, ShoalError]]) -> Collection[Delivery]:
        """Give back the jobs whose index or model only other workers serve, and return them."""
        wanting = {one: one.job() for one, error in refusals if isinstance(error, UnknownIndex | ModelMismatch)}
        if not wanting:
            return ()
        if time.monotonic() >= self._served_until or not all(map(self._is_served_elsewhere, wanting.values())):
            self._others = [about for name, about in self._pool.workers().items() if name != self._consumer.name]
            self._served_until = time.monotonic() + 1.0  # seconds for which it remembers what the others serve
        given = [delivery for delivery, job in wanting.items() if self._is_served_elsewhere(job)]
        if given:
            self._consumer.give_back(given)
            self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, MAX_PAUSE_S)
        if any(delivery.deaths for delivery in given):  # without a pause, the next take would get the suspect again
            self._suspects_from = time.monotonic() + MAX_PAUSE_S
        return given

    def _is_served_elsewhere(self, job: Job) -> bool:
        """Return True if another worker has the index and the model that the job names."""
        index = job.index if isinstance(job, Search) else None
        part = "reranker_fingerprint" if isinstance(job, Rerank) else "fingerprint"
        return any(
            (index is None or index in about.get("indexes", ())) and job.fingerprint in (None, "", about.get(part))
            for about in self._others
        )
