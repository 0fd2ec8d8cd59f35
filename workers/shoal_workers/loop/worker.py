"""The worker: a loop that takes jobs, computes passes and replies. It knows no operation."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial

from shoal.broker.clock import Clock
from shoal.cache.cache import Cache
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.process.tracing import Tracer
from shoal.queue.consumer import Consumer
from shoal.queue.pool import Pool
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, Pipeline
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.loop.admission import Admission, Limits, Served
from shoal_workers.loop.batch import Batch
from shoal_workers.loop.scheduler import SHARES, Scheduler
from shoal_workers.operations.search import Searcher
from shoal_workers.operations.work import BULK, INTERACTIVE, LONG, Work
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.measurements import JobLog
from shoal_workers.process.watchdog import Activity

log = logging.getLogger(__name__)

#: Pause after an error of Redis before the worker tries again, in seconds.
RETRY_S = 0.5

#: Longest time for which a stopping worker still computes the jobs that it has, in seconds. If Redis is away then, the
#: worker waits for Redis for at most this time, because jobs that it held at its end would be blamed for the end.
DRAIN_S = 5.0

#: Longest wait for the end of a batch aside, in seconds, before the worker takes jobs that `has_jobs` does not notice.
TAKE_EVERY_S = 0.25


class Worker:
    """A worker. `step` is one round of its loop. It calls `before_pass` before a pass, while the engine is idle."""

    def __init__(
        self,
        consumer: Consumer,
        encoder: Encoder,
        indexes: Mapping[str, Index],
        bucketing: Bucketing,
        limits: Limits | None = None,
        stopping: threading.Event | None = None,
        cache: Cache | None = None,
        crash_reports: CrashReports | None = None,
        clock: Clock | None = None,
        reranker: Reranker | None = None,
        before_pass: Callable[[], object] = lambda: None,
        tracer: Tracer | None = None,
    ):
        self.consumer, self.id = consumer, consumer.name
        self.limits, self.cache = limits or Limits(), cache
        self.encoder, self.reranker, self.indexes = encoder, reranker, indexes
        self.clock = clock or Clock(consumer.broker)
        self.pool = Pool(consumer.broker, consumer.keys)
        self.activity, self.log = Activity(), JobLog(consumer.name, self.clock, tracer)
        self.counters = self.log.measurements.counters
        embeds = Pipeline(encoder, bucketing, consumer.max_reply_bytes // (4 * encoder.model.dimension))
        reranks = Pipeline(reranker, reranker.pair_bucketing(bucketing, encoder.model)) if reranker else None
        served = Served(embeds, reranks, Searcher(indexes, self.activity), self.clock.now)
        crash_reports = crash_reports or CrashReports(consumer.broker, consumer.keys)
        self.admission = Admission(consumer, self.pool, served, self.limits, cache, crash_reports, self.clock, self.log)
        self._has_come = partial(consumer.has_jobs, INTERACTIVE)
        self.scheduler = Scheduler(embeds, self.limits.max_batch_texts, self._has_come)
        self._before_pass = before_pass
        self._stopping = stopping or threading.Event()
        self._aside: Batch | None = None

    def run(self) -> None:
        """Step until `stop` is called; while Redis does not answer, wait for it."""
        is_away: bool | None = None  # None until the first step
        ends_by = 0.0
        while not self._stopping.is_set() or time.monotonic() < ends_by:
            try:
                self.activity.mark("joining the pool")
                self.clock.measure()
                while not self._stopping.is_set():
                    ends_by = math.inf  # the worker may hold jobs from now on
                    self.step()
                    if is_away is not False:  # only after a step, because Redis may answer but refuse writes
                        if (policy := self.consumer.eviction_policy()) not in ("", "noeviction"):
                            log.warning(
                                "Redis forgets jobs, results or cached vectors once its memory is full, as its "
                                "maxmemory-policy is %s: `redis-cli config set maxmemory-policy noeviction`",
                                policy,
                            )
                        log.info("worker %s is taking jobs", self.id)
                    is_away = False
                self._drain()
                return
            except (Unavailable, Overloaded) as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                is_away = True
                self._finish(self._aside)  # before the wait for Redis, which would count as time of the batch
                if self._stopping.is_set():
                    ends_by = min(ends_by, time.monotonic() + DRAIN_S)
                time.sleep(RETRY_S)

    def stop(self) -> None:
        """End `run` once the worker's jobs are answered, or after `DRAIN_S`. Safe in a signal handler."""
        self._stopping.set()

    def step(self, block_s: float = 1.0) -> int:
        """Run one round: take jobs, compute the next pass, and answer jobs that earlier passes have completed.

        Waits up to `block_s` for a job if the worker has none. A pass of long or bulk jobs may run aside for several
        rounds, which then compute interactive jobs. If no interactive job and no suspect waits in the queue, the next
        pass aside begins before new jobs are taken. Returns the number of answered jobs.
        """
        started, was_idle, goes_on = time.perf_counter(), not self.scheduler.works, False
        if self._aside and self._aside.ends_within(0.0, self._has_come):
            self._finish(self._aside)
            goes_on = self.scheduler.waits(LONG, BULK) and not (self._has_come() or self.consumer.more_suspects)
        if not self._aside:
            self._before_pass()
        if not goes_on:
            self._take(block_s)
        if was_idle:  # an idle worker did no work until now
            started = time.perf_counter()
        measurements, is_alone = self.log.measurements, not self._aside
        num_tokens = measurements.num_tokens
        num_answered = self._advance()
        seconds = time.perf_counter() - started
        measurements.work_s += seconds
        if is_alone and not self._aside and measurements.num_tokens > num_tokens:
            measurements.add_round(measurements.num_tokens - num_tokens, seconds)
        return num_answered

    def _drain(self) -> None:
        """Compute and answer the worker's jobs for at most `DRAIN_S`, and give the rest back to the queue."""
        until = time.monotonic() + DRAIN_S
        while self.scheduler.works and time.monotonic() < until:
            self._finish(self._aside)
            self._advance()
        self._finish(self._aside)
        self._answer()
        self.consumer.leave()

    def _take(self, block_s: float) -> None:
        """Take new jobs and jobs of dead workers; a suspect only if no pass is under way and no completed job waits."""
        self.activity.mark("taking jobs")
        if self.consumer.more_suspects and not self._aside:
            self._answer()
        is_free = not self._aside and all(work.needs_pass for work in self.scheduler.works)
        room = self.scheduler.room(len(self._aside.texts) if self._aside else 0)
        self.scheduler.add(self.admission.take(room, block_s, self.scheduler.works, is_free))

    # Compute

    def _advance(self) -> int:
        """Compute the next pass, and meanwhile answer completed jobs; return the number of answered jobs."""
        self.activity.mark("tokenizing")
        if waiting := [work for work in self.scheduler.works if not work.is_complete]:
            for work in self.admission.drop(waiting):
                self.scheduler.works.pop(work, None)
        batch = self.scheduler.next_batch((INTERACTIVE,) if self._aside else SHARES)
        if batch is None:
            return self._wait()
        batch.start(self.activity, self.log.measurements)
        if batch.may_run_aside:
            self._aside = batch
            return self._answer()
        try:
            num_answered = self._answer()  # the engine computes meanwhile
        finally:
            self._finish(batch)
        if self._aside or len(batch.works) == 1:  # so that the jobs of this batch do not wait for the next pass
            num_answered += self._answer()
        return num_answered

    def _wait(self) -> int:
        """Answer completed jobs, or else wait for an index, the pass aside or a job; return the number of answers."""
        if self._aside:
            self.scheduler.tokenize_ahead()
        opening = [work.opening for work in self.scheduler.works if work.opening and not work.opening.done()]
        wait(opening, 0.005, FIRST_COMPLETED)  # seconds, after which the worker looks for jobs
        num_answered = self._answer()
        if self._aside and not (opening or num_answered):
            self._aside.ends_within(TAKE_EVERY_S, self._has_come)
        return num_answered

    def _finish(self, batch: Batch | None) -> None:
        if batch is None:
            return
        if batch is self._aside:
            self._aside = None
        seconds = batch.finish()
        if self._aside is None:  # otherwise the time of the batch aside includes this time
            self.counters["busy_s"] += seconds  # type: ignore[assignment]
        self.scheduler.finish(batch, seconds)

    # Answer

    def _answer(self) -> int:
        """Move completed jobs to their next stage, or reply and fill the cache; return the number of answers."""
        if not (works := self.scheduler.completed()):
            return 0
        stages: dict[Callable[[Sequence[Work]], object], list[Work]] = {}
        for work in works:
            if work.stage and not work.error:
                stages.setdefault(work.stage, []).append(work)
        for stage, of_stage in stages.items():
            stage(of_stage)
        self.scheduler.add(work for work in works if work.stage and not work.error)
        works = [work for work in works if not work.stage or work.error]
        replying_at = time.time()
        answers = [(work, answer) for work in works if not work.error and (answer := work.answer())]
        num_answered = self.consumer.reply([answer for _, answer in answers], lambda: self.activity.mark("replying"))
        self.log.note([work.ended() for work, _ in answers], replying_at)
        if self.cache is not None:
            entries = dict(pair for work, _ in answers for pair in work.new_entries())
            try:
                self.cache.store(entries)
            except ShoalError as error:
                self.counters["cache_refused"] += len(entries)
                log.debug("%d texts could not be put into the cache: %s", len(entries), error)
        if failed := [(work.delivery, work.error) for work in works if work.error]:
            num_answered += self.admission.refuse(failed, works)  # done last, because it may raise an error
        return num_answered
