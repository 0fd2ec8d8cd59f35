"""Admission control: takes jobs from the lanes and from dead workers, and answers those that need not be computed."""

import logging
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from shoal import logs
from shoal.broker.clock import Clock
from shoal.cache.cache import Cache
from shoal.errors import Expired, Internal, InvalidRequest, Poisoned, ShoalError, UnknownIndex, Unsupported
from shoal.excerpt import excerpt
from shoal.index_job import IndexJob
from shoal.jobs import Job, check_deadline
from shoal.model_names import is_among, names_of
from shoal.operations import Embed, Map, Rerank, Search
from shoal.options import QUERY_PROMPTS
from shoal.outline import Outline
from shoal.queue.answer import Answer
from shoal.queue.consumer import Consumer
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.delivery import Delivery
from shoal.queue.pool import ALIVE_S, Pool
from shoal.replies import Reply
from shoal.tokenizer_job import TokenizerJob
from shoal_workers.chunked_texts import ChunkedTexts
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.index.serving.open_indexes import find_index
from shoal_workers.job_log import JobLog
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.measurements import Measurements
from shoal_workers.recent_jobs import RecentJobs
from shoal_workers.rerank_work import RerankWork
from shoal_workers.search_work import SearchWork
from shoal_workers.tokenizer_work import TokenizerWork
from shoal_workers.work import INTERACTIVE, Work

log = logging.getLogger(__name__)

#: Workers that die while they hold a job before it counts as poison.
MAX_DEATHS = 3

#: Summary for a worker that ended without leaving a crash report.
NO_REPORT = "ended without a report: killed, or out of memory"

#: Interval at which a worker looks for jobs that it was given without its knowledge and, in turn with others, for those
#: of dead workers, in seconds.
RECLAIM_EVERY_S = 1.0

#: Interval at which a worker looks whether it still holds its jobs, in seconds.
CHECK_EVERY_S = 0.25

#: Pauses of a worker that has nothing but jobs to hand back, in seconds: the first, and after twice as long each, the
#: longest. Meanwhile another worker takes them.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.005, 0.1

#: Time for which the indexes that other workers serve count as known, in seconds.
SERVED_KNOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the jobs that a worker admits, and on the texts that it takes for one pass.

    `max_batch_texts` fill a pass: more would not be encoded faster, and would keep others waiting.
    """

    max_job_texts: int = 1_024
    max_text_chars: int = 2**20
    max_batch_texts: int = 64
    max_batch_wait_s: float = 0.0


class Admission:
    """The admission control of one worker."""

    def __init__(
        self,
        consumer: Consumer,
        pool: Pool,
        encoder: Encoder,
        indexes: Mapping[str, Index],
        limits: Limits,
        cache: Cache | None,
        crash_reports: CrashReports,
        clock: Clock,
        measurements: Measurements,
        reranker_name: str | None = None,
        aliases: Sequence[str] = (),
        recent: RecentJobs | None = None,
        job_log: JobLog | None = None,
    ):
        self._consumer = consumer
        self._pool = pool
        self._encoder = encoder
        self._indexes = indexes
        self._limits = limits
        self._cache = cache
        self._crash_reports = crash_reports
        self._clock = clock
        self._counters = measurements.counters
        self._waits = measurements.waits
        self._recent = recent or RecentJobs()
        self._job_log = job_log or JobLog(consumer.name, clock)
        self._reranker_name, self._aliases = reranker_name, aliases
        self._next_reclaim = 0.0
        self._next_check = 0.0
        self._has_more_to_sweep = False
        self._trust_heartbeats_at = 0.0
        self._served_elsewhere: set[str] = set()
        self._served_until = 0.0
        self._pause_s = 0.0

    def take(
        self, room: Mapping[str, int], block_s: float, held: Collection[Work], takes_suspects: bool = False
    ) -> list[Work]:
        """Take jobs for as many texts of each lane as `room` says, and let those of dead workers wait again.

        Without any, wait up to `block_s` for one. `held` are the jobs that the worker has at this moment. It takes
        suspects while nothing of these runs.
        """
        self._reclaim(held)
        if not held:
            time.sleep(self._pause_s)
        works = self._admit(self._consumer.take(room, 0.0 if held else block_s, takes_suspects))
        if works and self._limits.max_batch_wait_s:
            works += self._linger(works)
        return works

    def take_interactive(self, room: Mapping[str, int]) -> list[Work]:
        """Take interactive jobs that wait, for as many texts as `room` says, beside long or bulk ones."""
        if not (num_texts := room.get(INTERACTIVE, 0)):
            return []
        return self._admit(self._consumer.take({INTERACTIVE: num_texts}))

    def distrust_heartbeats(self) -> None:
        """Count no worker as dead until all have had time for a heartbeat: they had none while Redis was away.

        Until then, look for jobs that this worker was given without its knowledge.
        """
        self._trust_heartbeats_at = time.monotonic() + ALIVE_S

    def drop(self, held: Collection[Work]) -> list[Work]:
        """Return the jobs that need not be computed any more: those that expired, which are answered, and lost ones.

        A job is lost when it was cancelled, when its caller has gone, or when it waits again for another worker.
        """
        now = self._clock.now()
        late = [(work, error) for work in held if (error := expired(work.job, now))]
        for work, _ in late:
            work.begin()
            self._waits[work.delivery.lane].add(work.timings["queue_s"])
        self.refuse([(work.delivery, error) for work, error in late])
        gone = [work for work, _ in late]
        if not held or time.monotonic() < self._next_check:
            return gone
        self._next_check = time.monotonic() + CHECK_EVERY_S
        lost = set(self._consumer.lost([work.delivery for work in held]))
        return gone + [work for work in held if work.delivery in lost]

    def hand_back(self, refusals: Sequence[tuple[Delivery, ShoalError]]) -> list[tuple[Delivery, ShoalError]]:
        """Give back the jobs whose index this worker does not serve and another one does; return the other refusals."""
        unknown = [(delivery, _index_of(delivery)) for delivery, error in refusals if isinstance(error, UnknownIndex)]
        is_known = time.monotonic() < self._served_until and self._served_elsewhere.issuperset(i for _, i in unknown)
        if unknown and not is_known:
            others = [about for name, about in self._pool.workers().items() if name != self._consumer.name]
            self._served_elsewhere = {index for about in others for index in about.get("indexes", ())}
            self._served_until = time.monotonic() + SERVED_KNOWN_S
        given = [delivery for delivery, index in unknown if index in self._served_elsewhere]
        if given:
            self._consumer.give_back(given)
            self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, MAX_PAUSE_S)
        return [refusal for refusal in refusals if refusal[0] not in given]

    def refuse(self, refusals: Sequence[tuple[Delivery, ShoalError]]) -> int:
        """Answer with the errors; return how many of the jobs were still unanswered."""
        answers, ends = [], []
        self._recent.add_failed(refusals, self._clock.now())
        for delivery, error in refusals:
            self._counters["failed"] += 1
            outline = Outline.read(delivery.data)
            job_id = delivery.put_as or outline.id
            reply = None if job_id is None else Reply.failure(job_id, error)
            letter = self._dead_letter(delivery, error, reply, outline)
            answers.append(Answer(delivery, reply, delivery.reply_to or outline.reply_to, letter))
            ends.append((delivery, job_id, outline, error))
        num_answered = self._consumer.reply(answers) if answers else 0
        for end in ends:
            self._job_log.note_refused(*end)
        return num_answered

    def _dead_letter(
        self, delivery: Delivery, error: ShoalError, reply: Reply | None, outline: Outline
    ) -> DeadLetter | None:
        """Return the dead letter of a job that may do harm or whose id cannot be read; None for other jobs."""
        if reply and not isinstance(error, Poisoned | Internal):
            return None
        reason, trace = f"{error.code}: {error}", "".join(traceback.format_exception(error))
        worker, deliveries = self._consumer.name, delivery.deaths + 1
        if isinstance(error, Poisoned):
            summary, _, trace = self._crash_reports.read(delivery.died).partition("\n")
            reason, worker = f"{reason}; the last one {summary or NO_REPORT}", delivery.died
            deliveries -= 1  # the present one is only to answer it
        facts = logs.about(reply.id if reply else None, delivery.client, outline.traceparent)
        log.warning("dead letter: %s in delivery %d; `shoal dead` has the rest", error.code, deliveries, extra=facts)
        return DeadLetter(reason, trace, worker, deliveries)

    # Take

    def _linger(self, works: Sequence[Work]) -> list[Work]:
        """Wait for more interactive jobs until the pass is full or the configured time is over."""
        more: list[Work] = []
        until = time.monotonic() + self._limits.max_batch_wait_s
        while (wait_s := until - time.monotonic()) > 0:
            room = self._limits.max_batch_texts - sum(work.job.num_lane_texts for work in [*works, *more])
            if room <= 0:
                break
            more += self._admit(self._consumer.take({INTERACTIVE: room}, wait_s))
        return more

    def _reclaim(self, held: Collection[Work]) -> None:
        """Let jobs wait again that their workers cannot answer."""
        if self._has_more_to_sweep:
            self._sweep()
        if time.monotonic() < self._next_reclaim:
            return
        self._next_reclaim = time.monotonic() + RECLAIM_EVERY_S
        looks_for_dead = time.monotonic() >= self._trust_heartbeats_at
        if looks_for_dead:
            self._sweep()
        num_own, dead = self._consumer.reclaim([work.delivery for work in held], looks_for_dead)
        if num_own:
            log.info("%d jobs wait again, with which Redis did not reach this worker", num_own)
        for worker, num_jobs in dead.items():
            self._counters["claims"] += num_jobs
            log.info("jobs of worker %s wait again, as it is dead: %d", worker, num_jobs)

    def _sweep(self) -> None:
        """Look for unread results that have expired or were taken."""
        self._has_more_to_sweep = self._consumer.unread.sweep()

    # Admit

    def _admit(self, deliveries: Iterable[Delivery]) -> list[Work]:
        works, refusals = [], []
        for delivery in deliveries:
            self._counters["redeliveries"] += delivery.is_suspect
            try:
                works.append(self._work(delivery, self._open(delivery)))
            except ShoalError as error:
                refusals.append((delivery, error))
        refusals = self.hand_back(refusals)
        for delivery, _ in refusals:
            self._waits[delivery.lane].add(delivery.queued_s(self._clock.now()))
        self.refuse(refusals)
        if works := self._start(works):
            self._pause_s = 0.0
        for work in works:
            work.use_tokenizer(self._encoder.tokenizer)
        self._look_up([work for work in works if not work.is_complete])
        for work in works:
            if work.is_complete:
                work.begin()
        return works

    def _open(self, delivery: Delivery) -> Job:
        """Return the job of the delivery. Raises the ShoalError with which a job is answered that cannot be served."""
        if delivery.deaths >= MAX_DEATHS:
            raise Poisoned(f"delivered {MAX_DEATHS} times, and each time the worker died: take a look at its texts")
        self._consumer.check_sends(delivery)
        delivery.check_size()
        job = delivery.job()
        if (put_as := delivery.put_as) not in (None, job.id):
            raise InvalidRequest(f"the job has id {excerpt(job.id)}, and was put as {excerpt(put_as)}: use the same id")
        now = self._clock.now()
        if error := expired(job, now):
            raise error
        if job.deadline is not None:
            check_deadline(job.deadline, now)
        job.check_texts(self._limits.max_job_texts, self._limits.max_text_chars, "job", "split it")
        job.check_sizes(self._limits.max_job_texts)
        if isinstance(job, IndexJob):
            find_index(self._indexes, job.index, job.cursor)  # it may be opened while the texts are encoded
        if job.uses_reranker:
            self._check_reranker(job.reranker)
        self._encoder.check(job.options)
        return job

    def _check_reranker(self, wanted: str | None) -> None:
        """Raise Unsupported unless this worker has a reranker, and `wanted` is one of its names if it is one."""
        if self._reranker_name is None:
            raise Unsupported("this worker has no reranker: set SHOAL_RERANKER to a cross-encoder, on all workers")
        if wanted is not None and not is_among(wanted, (*names_of(self._reranker_name), *self._aliases)):
            raise Unsupported(
                f"rerank.model is {excerpt(wanted)}, and this pool has {self._reranker_name}: name it, or leave it out"
            )

    def _work(self, delivery: Delivery, job: Job) -> Work:
        if isinstance(job, Rerank):
            return RerankWork(delivery, job, now=self._clock.now)
        prompt = self._encoder.prompt(job.options, QUERY_PROMPTS if isinstance(job, Search) else ())
        if isinstance(job, TokenizerJob):
            return TokenizerWork(delivery, job, prompt, now=self._clock.now)
        if isinstance(job, Search | Map):
            return SearchWork(delivery, job, prompt, now=self._clock.now)
        chunker = self._encoder.chunker(job.options, prompt) if isinstance(job, Embed) else None
        chunked = ChunkedTexts(job.texts, job.options, chunker) if chunker else None
        return Work(delivery, job, prompt, chunked, now=self._clock.now)

    def _start(self, works: list[Work]) -> list[Work]:
        """Mark jobs whose status is kept as running; return all jobs but those that are this worker's no longer."""
        submitted = [work for work in works if work.job.reply_to is None or work.delivery.keeps_status]
        started = self._consumer.start([(work.delivery, work.job.id) for work in submitted])
        refused = [work for work, runs in zip(submitted, started, strict=True) if not runs]
        for work in submitted:
            if work.delivery.put_as is None:
                work.delivery = replace(work.delivery, key=work.job.id)
        return [work for work in works if work not in refused]

    def _look_up(self, works: Sequence[Work]) -> None:
        """Look up the jobs' texts in the cache, and take over its entries."""
        works = [work for work in works if work.job.options.is_cacheable and not work.uses_reranker]
        if self._cache is None or not works:
            return
        table = self._cache.table
        for work in works:
            work.digests = table.digests(work.job.texts, work.prompt, work.job.options)
        entries = iter(self._cache.find([digest for work in works for digest in work.digests]))
        for work in works:
            work.use_cache(list(islice(entries, len(work.digests))))
            self._counters["cache_hits"] += len(work.cached)
            self._counters["cache_misses"] += len(work.untokenized)


def _index_of(delivery: Delivery) -> str:
    """Return the index that the job names, which reads one."""
    job = delivery.job()
    assert isinstance(job, IndexJob)
    return job.index


def expired(job: Job, now: float) -> Expired | None:
    """Return the error of a job whose deadline has passed; `now` is Redis's time in Unix seconds."""
    if job.deadline is None or (late_s := now - job.deadline) <= 0:
        return None
    return Expired(f"the deadline passed {late_s:.1f} s before the job was computed: add workers or wait longer")
