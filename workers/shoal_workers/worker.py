"""The worker: one loop over one scheduler. Takes jobs, encodes, searches, replies."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.broker.clock import Clock
from shoal.cache.cache import Cache
from shoal.cache.entry import Entry
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.queue.consumer import Consumer
from shoal.queue.pool import Pool
from shoal.replies import TIMINGS
from shoal_workers.admission import Admission, Limits
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.index.index import Index
from shoal_workers.job_log import JobLog
from shoal_workers.pipeline import Pipeline
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.measurements import Measurements
from shoal_workers.process.throughput import Throughput
from shoal_workers.process.watchdog import Progress
from shoal_workers.recent_jobs import RecentJobs
from shoal_workers.rerank_work import RerankWork
from shoal_workers.running_batch import RunningBatch
from shoal_workers.scheduler import SHARES, Batch, Scheduler
from shoal_workers.search_work import SearchWork
from shoal_workers.searcher import Searcher
from shoal_workers.work import INTERACTIVE, Work

if TYPE_CHECKING:
    from shoal.spans import Tracer

log = logging.getLogger(__name__)

#: Pause before a worker tries Redis again, in seconds.
RETRY_S = 0.5

#: Longest that a worker which is told to stop computes what it holds, in seconds.
DRAIN_S = 5.0

#: Difference between the clocks of this machine and of Redis that is logged, in seconds.
WRONG_CLOCK_S = 1.0

#: Interval at which a worker that computes a batch aside looks for interactive jobs, in seconds: where Redis gives it
#: notice of them, and where it does not. Each look takes some 0.2 ms of processor time.
LOOK_SELDOM_S, LOOK_OFTEN_S = 0.25, 0.01

#: Longest that a worker without anything to compute waits for an index before it looks for other jobs, in seconds.
OPENING_WAIT_S = 0.005

#: Age at which a batch that is computed aside is waited for, in seconds, so that the watchdog sees one that hangs.
WAIT_FROM_S = 1.0


class Worker:
    """One worker. `step` is one round of its loop, which a test can call; `run` steps until it is stopped.

    `before_pass` is called between two passes, at moments when the engine computes nothing.
    """

    def __init__(
        self,
        consumer: Consumer,
        encoder: Encoder,
        indexes: Mapping[str, Index],
        bucketing: Bucketing[TokenizedText],
        limits: Limits | None = None,
        stopping: threading.Event | None = None,
        cache: Cache | None = None,
        crash_reports: CrashReports | None = None,
        clock: Clock | None = None,
        reranker: Reranker | None = None,
        aliases: Sequence[str] = (),
        before_pass: Callable[[], object] = lambda: None,
        tracer: "Tracer | None" = None,
    ):
        limits = limits or Limits()
        crash_reports = crash_reports or CrashReports(consumer.broker, consumer.keys)
        self.consumer = consumer
        self.clock = clock or Clock(consumer.broker)
        self.pool = Pool(consumer.broker, consumer.keys)
        self.encoder, self.reranker = encoder, reranker
        self.indexes, self.cache = indexes, cache
        self.measurements = Measurements()
        self.counters = self.measurements.counters
        self.progress, self.throughput, self.recent = Progress(), Throughput(), RecentJobs()
        self._notice = consumer.notice(INTERACTIVE)
        self._job_log = JobLog(consumer.name, self.clock, tracer)
        self.scheduler = self._make_scheduler(bucketing, limits.max_batch_texts)
        self.admission = Admission(
            consumer,
            self.pool,
            encoder,
            indexes,
            limits,
            cache,
            crash_reports,
            self.clock,
            self.measurements,
            reranker_name=reranker.model.name if reranker else None,
            aliases=aliases,
            recent=self.recent,
            job_log=self._job_log,
        )
        self.limits, self._before_pass = limits, before_pass
        self._searcher = Searcher(indexes, self.progress)
        self._stopping = stopping or threading.Event()
        self._aside: RunningBatch | None = None

    def _make_scheduler(self, bucketing: Bucketing[TokenizedText], max_batch_texts: int) -> Scheduler:
        """Return the scheduler of the passes of the model, and of those of the reranker if there is one."""
        encoder, reranker = self.encoder, self.reranker
        pairs = None
        if reranker is not None:
            pairs = _pipeline(reranker, reranker.tokenize_pairs, reranker.bucketing(bucketing, encoder.model))
        return Scheduler(
            _pipeline(encoder, encoder.tokenize, bucketing),
            pairs,
            max_batch_texts,
            self.consumer.max_reply_bytes // (4 * encoder.model.dimension),
            lambda: self._notice.has_come,
        )

    @property
    def id(self) -> str:
        """Name of the worker, in the queue and in its heartbeat."""
        return self.consumer.name

    def run(self) -> None:
        """Step until `stop` is called; wait while Redis is away, and go on when it is back."""
        is_away = False
        while not self._stopping.is_set():
            try:
                self.progress.mark("joining the pool")
                self._measure_clock()
                self._warn_of_eviction()
                log.info("worker %s is taking jobs", self.id)
                is_away = False
                while not self._stopping.is_set():
                    self.step()
                self._drain()
            except (Unavailable, Overloaded) as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                is_away = True
                self._finish_aside()  # else the time until Redis is back would count as the batch's
                if isinstance(error, Unavailable):
                    self.admission.distrust_heartbeats()
                self._stopping.wait(RETRY_S)

    def stop(self) -> None:
        """End `run` once the jobs that the worker holds are answered. Safe in a signal handler."""
        self._stopping.set()

    def step(self, block_s: float = 1.0) -> int:
        """Run one round: take jobs, compute the next pass, and answer the jobs that the pass before has completed.

        Waits up to `block_s` for a job if the worker holds none. Returns how many jobs were answered. A round while a
        batch is computed aside is of interactive jobs alone.
        """
        if self._aside and not self.scheduler.has_completed and self._is_due(self._aside):
            self._finish_aside()
        if self._aside:
            self._take_interactive()
        else:
            if self.consumer.more_suspects:
                self._answer()  # so that the worker can take one
            self._take(block_s)
            self._before_pass()
        return self._advance()

    def _measure_clock(self) -> None:
        self.clock.measure()
        if abs(self.clock.offset_s) > WRONG_CLOCK_S:
            log.warning(
                "the clock of this machine is %.1f s ahead of Redis's: jobs go by Redis's, but set both right",
                self.clock.offset_s,
            )

    def _warn_of_eviction(self) -> None:
        policy = self.consumer.eviction_policy()
        if policy not in ("", "noeviction"):
            log.warning(
                "Redis forgets jobs, results or cached vectors once its memory is full, as its maxmemory-policy is %s: "
                "`redis-cli config set maxmemory-policy noeviction`",
                policy,
            )

    def _drain(self) -> None:
        """Answer what the worker holds, for `DRAIN_S` at most, and leave the rest to others."""
        until = time.monotonic() + DRAIN_S
        while self.scheduler.unanswered() and time.monotonic() < until:
            self._finish_aside()
            self.scheduler.remove(self.admission.drop(self.scheduler.waiting()))
            self._advance()
        self._finish_aside()
        self._answer()
        self.consumer.leave()

    def _advance(self) -> int:
        """Compute the next pass, and answer what the pass before has completed; return how many jobs were answered."""
        started, is_beside = time.perf_counter(), self._aside is not None
        self.progress.mark("tokenizing")
        batch = self.scheduler.next_batch((INTERACTIVE,) if is_beside else SHARES)
        if batch is None:
            self.scheduler.wait_for_index(OPENING_WAIT_S)
            return self._answer(is_beside)
        if not is_beside and self.scheduler.may_run_aside(batch):
            self._aside = self._start(batch, aside=True)
            self._take_interactive()
            return self._answer(in_portions=True)
        num_answered = self._compute(batch, is_beside)
        if is_beside or len(batch.works) == 1:  # these need not wait for what the worker does next
            num_answered += self._answer(is_beside)
        if is_beside:
            num_answered += self._answer(in_portions=True)  # then some of those that were completed before
        if not is_beside:
            self.throughput.add_busy(time.perf_counter() - started)
        return num_answered

    def _take(self, block_s: float) -> None:
        """Take new jobs, those of dead workers included, and forget those that need not be computed any more."""
        self.progress.mark("taking jobs")
        self.clock.refresh()
        held, waiting = self.scheduler.unanswered(), self.scheduler.waiting()
        if any(work.kind != INTERACTIVE for work in waiting):
            self._notice.ask()
        self.scheduler.remove(self.admission.drop(waiting))
        self.scheduler.add(self.admission.take(self.scheduler.room(), block_s, held, not self.scheduler.has_completed))

    def _take_interactive(self) -> None:
        """Take interactive jobs while a batch is computed aside."""
        self.progress.mark("taking jobs")
        self._notice.ask()  # first: a job that comes before the jobs are taken is taken, and a later one ends the wait
        self.scheduler.remove(self.admission.drop(self.scheduler.waiting()))
        self.scheduler.add(self.admission.take_interactive(self.scheduler.room()))

    # Compute

    def _compute(self, batch: Batch, is_beside: bool = False) -> int:
        """Encode the batch and, while the engine computes, answer the jobs completed before; return their number.

        Those completed before a batch beside another one wait: they would hold it up.
        """
        running = self._start(batch)
        try:
            return 0 if is_beside else self._answer()
        finally:
            self._finish(running)

    def _start(self, batch: Batch, aside: bool = False) -> RunningBatch:
        return RunningBatch(batch, self._encoder_of(batch.works[0]), self.progress, self.measurements, aside)

    def _finish(self, running: RunningBatch) -> float:
        """Wait for the batch; return the seconds that it took."""
        seconds = running.finish()
        if self._aside is None:  # else this time is part of that of the batch which is computed aside
            self.counters["busy_s"] += seconds  # type: ignore[assignment]
        self.scheduler.finish(running.batch, seconds)
        return seconds

    def _is_due(self, aside: RunningBatch) -> bool:
        """Return True if the batch has ended or is to be waited for; else once an interactive job may have come."""
        look_s = LOOK_SELDOM_S if self._notice.is_asked else LOOK_OFTEN_S
        if self.scheduler.waits(INTERACTIVE):
            look_s = 0.0
        return aside.age_s > WAIT_FROM_S or aside.ends_within(look_s, self._notice)

    def _finish_aside(self) -> None:
        """Wait for the batch that is computed aside, if there is one."""
        if aside := self._aside:
            self._aside = None
            self.throughput.add_busy(self._finish(aside))

    def _encoder_of(self, work: Work) -> Encoder:
        return self.reranker if work.uses_reranker and self.reranker else self.encoder

    def _model_name(self, work: Work) -> str:
        """Return the name of the model that made the vectors, or the scores of a rerank."""
        encoder = self.reranker if isinstance(work, RerankWork) and self.reranker else self.encoder
        return encoder.model.name

    # Answer

    def _answer(self, in_portions: bool = False) -> int:
        """Search for the completed jobs that ask for it, reply to all, and put new vectors into the cache.

        Searches whose hits are to be scored by the reranker, or whose index is being opened, go back to the scheduler
        instead. With `in_portions`, some are left for the next round. Returns how many of the jobs were still
        unanswered.
        """
        works: Sequence[Work] = self.scheduler.completed_portion() if in_portions else self.scheduler.completed()
        if not works:
            return 0
        for work in works:
            work.check_encoded()
        searches = [work for work in works if isinstance(work, SearchWork) and not work.error]
        self._searcher.search(searches)
        unfinished = dict.fromkeys(work for work in searches if not (work.found or work.error))
        self.scheduler.add(unfinished)
        works = [work for work in works if work not in unfinished]
        done, replying_at = [work for work in works if not work.error], time.time()
        answers = [answer for work in done if (answer := work.answer(self._model_name(work)))]
        num_answered = self.consumer.reply(answers, lambda: self.progress.mark("replying"))
        refusals = self.admission.hand_back([(work.delivery, work.error) for work in works if work.error])
        num_answered += self.admission.refuse(refusals)
        self._count(works)
        self._store(works)
        self._job_log.note_answered([work for work in done if not work.error], replying_at)
        return num_answered

    def _store(self, works: Sequence[Work]) -> None:
        """Put new vectors into the cache, after the replies, which do not depend on it."""
        if self.cache is None:
            return
        entries: dict[bytes, Entry] = {}
        for work in works:
            entries |= work.new_entries()
        try:
            self.cache.store(entries)
        except ShoalError as error:
            self.counters["cache_refused"] += len(entries)
            log.debug("%d texts could not be put into the cache: %s", len(entries), error)

    def _count(self, works: Sequence[Work]) -> None:
        self.recent.add_done([work for work in works if not work.error], self.clock.now())
        for work in works:
            self.counters["jobs"] += 1
            self.measurements.waits[work.delivery.lane].add(work.timings["queue_s"])
            num_texts, num_tokens = work.num_computed
            self.counters["texts"] += num_texts
            self.counters["tokens"] += num_tokens
            self.throughput.add_texts(work.job.num_lane_texts)
            for name in TIMINGS:
                self.counters[name] += work.timings[name]  # type: ignore[assignment]


def _pipeline(encoder: Encoder, tokenize: Callable[..., list[Tokens]], bucketing: Bucketing[TokenizedText]) -> Pipeline:
    return Pipeline(tokenize, encoder.model.max_tokens, bucketing, runs_aside=lambda: encoder.runs_aside)
