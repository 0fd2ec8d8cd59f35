"""The worker: one loop over one scheduler. Takes jobs, encodes, searches, replies."""

import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.broker.clock import Clock
from shoal.cache.cache import Cache
from shoal.cache.entry import Entry
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.queue.consumer import Consumer
from shoal.queue.lane import SOURCES
from shoal.queue.pool import Pool
from shoal.replies import TIMINGS
from shoal.size_limit import MAX_JOB_HITS
from shoal_workers.admission import Admission, Limits
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.index.open_indexes import find_index
from shoal_workers.pipeline import Pipeline
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.throughput import Throughput
from shoal_workers.process.watchdog import Progress
from shoal_workers.scheduler import INTERACTIVE, Batch, Scheduler
from shoal_workers.work import Work

log = logging.getLogger(__name__)

#: Pause before a worker tries Redis again, in seconds.
RETRY_S = 0.5

#: Longest that a worker which is told to stop computes what it holds, in seconds.
DRAIN_S = 5.0


#: Difference between the clocks of this machine and of Redis that is logged, in seconds.
WRONG_CLOCK_S = 1.0


#: Interval at which a worker that computes a batch aside looks for interactive jobs, in seconds: while they are
#: expected, and otherwise. Each look takes some 0.2 ms of processor time.
LOOK_EVERY_S, LOOK_SELDOM_S = 0.006, 0.02

#: Longest that interactive jobs are looked for while a batch is computed aside, in seconds. The watchdog then sees a
#: batch that hangs.
MAX_ASIDE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Aside:
    """A batch that is computed aside, since `started_s`."""

    batch: Batch
    encoding: list[EncodingPass] | None
    started_s: float


class Worker:
    """One worker. `step` is one round of its loop, which a test can call; `run` steps until it is stopped."""

    def __init__(
        self,
        consumer: Consumer,
        encoder: Encoder,
        indexes: Mapping[str, Index],
        batcher: Bucketing[TokenizedText],
        limits: Limits | None = None,
        stopping: threading.Event | None = None,
        cache: Cache | None = None,
        crash_reports: CrashReports | None = None,
        clock: Clock | None = None,
        reranker: Reranker | None = None,
    ):
        limits = limits or Limits()
        crash_reports = crash_reports or CrashReports(consumer.broker, consumer.keys)
        self.consumer = consumer
        self.clock = clock or Clock(consumer.broker)
        self.pool = Pool(consumer.broker, consumer.keys)
        self.encoder = encoder
        self.reranker = reranker
        self.indexes = indexes
        self.cache = cache
        self.counters: Counter[str] = Counter()
        self.progress = Progress()
        self.throughput = Throughput()
        pairs = reranker.bucketing(batcher, encoder.model) if reranker else batcher
        self.scheduler = Scheduler(
            Pipeline(encoder.tokenize, encoder.model.max_tokens, batcher, runs_aside=encoder.runs_aside),
            None if reranker is None else Pipeline(reranker.tokenize_pairs, reranker.model.max_tokens, pairs),
            limits.max_batch_texts,
            self._isolate,
            consumer.max_reply_bytes // (4 * encoder.model.dimension),
        )
        self.admission = Admission(
            consumer,
            self.pool,
            encoder,
            indexes,
            limits,
            cache,
            crash_reports,
            self.clock,
            self.counters,
            serves_reranks=reranker is not None,
        )
        self.limits = limits
        self._stopping = stopping or threading.Event()
        self._num_answered_early = 0
        self._aside: _Aside | None = None

    def limits_of_jobs(self) -> dict[str, int]:
        """Return the limits on jobs and replies, as the heartbeat has them."""
        return {
            "max_job_texts": self.limits.max_job_texts,
            "max_text_chars": self.limits.max_text_chars,
            "max_job_hits": MAX_JOB_HITS,
            "max_reply_bytes": self.consumer.max_reply_bytes,
            "result_ttl_s": self.consumer.result_ttl_s,
        }

    @property
    def id(self) -> str:
        """Name of the worker, in the consumer group and in its heartbeat."""
        return self.consumer.name

    def run(self) -> None:
        """Step until `stop` is called; wait while Redis is away, and go on when it is back."""
        is_away = False
        while not self._stopping.is_set():
            try:
                self.progress.mark("joining the pool")
                self.consumer.join()
                self._measure_clock()
                log.info("worker %s is taking jobs", self.id)
                is_away = False
                while not self._stopping.is_set():
                    self.step()
                self._drain()
            except (Unavailable, Overloaded) as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                is_away = True
                if isinstance(error, Unavailable):
                    self.admission.distrust_heartbeats()
                self._stopping.wait(RETRY_S)

    def stop(self) -> None:
        """End `run` once the jobs that the worker holds are answered. Safe in a signal handler."""
        self._stopping.set()

    def step(self, block_s: float = 1.0) -> int:
        """Run one round: take jobs, compute the next pass, and answer the jobs that the pass before has completed.

        Waits up to `block_s` for a job if the worker holds none. Returns how many jobs were answered. While a batch is
        computed aside, a round is one of interactive jobs alone, or the end of that batch.
        """
        if self._aside and self._has_ended(self._aside):
            self._finish_aside()
        if self._aside:
            self._take_interactive()
        else:
            self._take(block_s)
        num_answered, self._num_answered_early = self._advance() + self._num_answered_early, 0
        return num_answered

    def _measure_clock(self) -> None:
        self.clock.measure()
        if abs(self.clock.offset_s) > WRONG_CLOCK_S:
            log.warning(
                "the clock of this machine is %.1f s ahead of Redis's: jobs go by Redis's, but set both right",
                self.clock.offset_s,
            )

    def _drain(self) -> None:
        """Answer what the worker holds, for `DRAIN_S` at most; other workers claim the rest."""
        until = time.monotonic() + DRAIN_S
        while self.scheduler.unanswered() and time.monotonic() < until:
            self._finish_aside()
            self.scheduler.remove(self.admission.drop(self.scheduler.waiting()))
            self._advance()
        self._finish_aside()
        self._answer()
        if self.scheduler.unanswered():
            self.consumer.absolve()

    def _advance(self) -> int:
        """Compute the next pass, and answer what the pass before has completed; return how many jobs were answered."""
        started, is_beside = time.perf_counter(), self._aside is not None
        self.progress.mark("tokenizing")
        batch = self.scheduler.next_batch((INTERACTIVE,) if is_beside else SOURCES)
        if batch is None:
            return self._answer()
        if not is_beside and self.scheduler.may_run_aside(batch):
            self._start_aside(batch)
            return self._answer()
        num_answered = self._compute(batch)
        if batch.runs_alone or len(batch.works) == 1:  # a lone job need not wait until the worker has looked for more
            num_answered += self._answer()
        if batch.runs_alone:
            self.consumer.isolate(None)
        if not is_beside:
            self.throughput.add_busy(time.perf_counter() - started)
        return num_answered

    def _take(self, block_s: float) -> None:
        """Take new jobs, those of dead workers included, and forget those that need not be computed any more."""
        self.progress.mark("taking jobs")
        self.consumer.isolate(None)
        self.clock.refresh()
        held, waiting = self.scheduler.unanswered(), self.scheduler.waiting()
        self.scheduler.remove(self.admission.drop(waiting))
        self.scheduler.add(self.admission.take(self.scheduler.room(), block_s, held))

    def _take_interactive(self) -> None:
        """Take interactive jobs while a batch is computed aside."""
        self.progress.mark("taking jobs")
        self.scheduler.remove(self.admission.drop(self.scheduler.waiting()))
        self.scheduler.add(self.admission.take_interactive(self.scheduler.room()))

    def _isolate(self, work: Work | None) -> None:
        """Name in Redis the suspect that is to run: if the worker dies meanwhile, no other job counts as the cause."""
        if work or any(held.runs_alone for held in self.scheduler.unanswered()):
            self._num_answered_early += self._answer()  # so that no suspect is under way together with another job
        self.consumer.isolate(work.delivery if work else None)

    # Compute

    def _compute(self, batch: Batch) -> int:
        """Encode the batch and, while the engine computes, answer the jobs completed before; return their number."""
        started = time.perf_counter()
        encoding = self._start(batch)
        try:
            return self._answer()
        finally:
            self._finish(batch, encoding)
            self.scheduler.finish(batch, time.perf_counter() - started)

    def _start_aside(self, batch: Batch) -> None:
        """Start to encode the batch; interactive jobs are computed before `_finish_aside` waits for it."""
        started_s = time.perf_counter()
        self._aside = _Aside(batch, self._start(batch, aside=True), started_s)

    def _has_ended(self, aside: _Aside) -> bool:
        """Return True if the batch has ended or is to be waited for; else after the time until the next look."""
        if aside.encoding is None or time.perf_counter() - aside.started_s > MAX_ASIDE_S:
            return True
        seconds = LOOK_EVERY_S if self.scheduler.expects_interactive() else LOOK_SELDOM_S
        return self._encoder_of(aside.batch.works[0]).ends_within(aside.encoding, seconds)

    def _finish_aside(self) -> None:
        """Wait for the batch that is computed aside, if there is one."""
        if aside := self._aside:
            self._aside = None
            self._finish(aside.batch, aside.encoding)
            seconds = time.perf_counter() - aside.started_s
            self.scheduler.finish(aside.batch, seconds)
            self.throughput.add_busy(seconds)

    def _start(self, batch: Batch, aside: bool = False) -> list[EncodingPass] | None:
        """Start the pass of the batch; None if the engine fails."""
        self.progress.mark("encoding")
        self.counters["batches"] += 1
        encoder = self._encoder_of(batch.works[0])
        try:
            return encoder.start_aside(batch.texts) if aside else encoder.start(batch.texts)
        except Exception as error:  # any that an engine may raise
            traceback.clear_frames(error.__traceback__)  # they hold memory
            return None

    def _finish(self, batch: Batch, encoding: list[EncodingPass] | None) -> None:
        """Wait for the pass. If the engine fails, encode text by text, so that a bad text harms only its own job."""
        encoder = self._encoder_of(batch.works[0])
        self.progress.mark("encoding")
        try:
            if encoding:
                encoder.finish(encoding)
                return
        except Exception as error:  # any that an engine may raise
            traceback.clear_frames(error.__traceback__)
        for text in batch.texts:
            self._encode_alone(text, encoder)

    def _encoder_of(self, work: Work) -> Encoder:
        return self.reranker if work.is_rerank and self.reranker else self.encoder

    def _encode_alone(self, text: TokenizedText, encoder: Encoder) -> None:
        """Encode one text in a pass of its own, and set its error if the engine fails on it."""
        self.progress.mark("encoding")
        self.counters["batches"] += 1
        try:
            encoder.encode([text])
        except Exception as error:  # any that an engine may raise
            traceback.clear_frames(error.__traceback__)
            text.error = error
            log.error("the engine failed on a text of %d tokens: %s", text.num_tokens, _without_message(error))

    # Answer

    def _answer(self) -> int:
        """Answer the completed jobs: all that are no suspects together, then each suspect, which is named meanwhile.

        Returns how many of the jobs were still unanswered.
        """
        works = self.scheduler.completed()
        num_answered = 0
        if others := [work for work in works if not work.runs_alone]:
            num_answered += self._answer_together(others)
        for suspect in (work for work in works if work.runs_alone):
            self.consumer.isolate(suspect.delivery)
            num_answered += self._answer_together([suspect])
        return num_answered

    def _answer_together(self, works: Sequence[Work]) -> int:
        """Search for the jobs that ask for it, reply to all, and put new vectors into the cache.

        Returns how many of the jobs were still unanswered.
        """
        for work in works:
            work.check_encoded()
        self._search([work for work in works if work.job.op == "search" and not work.error])
        done = [work for work in works if not work.error]
        answers = [answer for work in done if (answer := work.answer(self._encoder_of(work).model.name))]
        num_answered = self.consumer.reply(answers, lambda: self.progress.mark("replying"))
        num_answered += self.admission.refuse([(work.delivery, work.error) for work in works if work.error])
        self._count(works)
        self._store(works)
        return num_answered

    def _search(self, works: Sequence[Work]) -> None:
        """Find the hits of each job; those of an index that ask for about as many a query are searched for together."""
        groups: dict[tuple[str, int], list[Work]] = {}
        for work in works:
            groups.setdefault((work.job.index, _magnitude(work.job.k)), []).append(work)
        for (name, _), group in groups.items():
            started = time.perf_counter()
            try:
                index = find_index(self.indexes, name)
            except ShoalError as error:  # it is served no more since the jobs were admitted
                for work in group:
                    work.error = error
                continue
            self._search_index(index, group)
            for work in group:
                work.timings["search_s"] = time.perf_counter() - started

    def _search_index(self, index: Index, works: Sequence[Work]) -> None:
        """Find the hits; if that fails, job by job, so that only the job at fault gets an error."""
        self.progress.mark("searching")
        try:
            queries = np.concatenate([work.vectors() for work in works])
            hits = iter(index.search(queries, max(work.job.k for work in works)))
            for work in works:
                work.hits = [next(hits)[: work.job.k] for _ in work.job.texts]
                work.index_version = index.manifest.version
        except Exception as error:  # any that an index may raise
            if len(works) > 1:
                for work in works:
                    self._search_index(index, [work])
                return
            log.error("a search for %d queries failed: %s", len(works[0].job.texts), _without_message(error))
            works[0].fail("the search failed", error)

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
        for work in works:
            self.counters["jobs"] += 1
            num_texts, num_tokens = work.num_computed
            self.counters["texts"] += num_texts
            self.counters["tokens"] += num_tokens
            self.throughput.add_texts(work.job.num_lane_texts)
            for name in TIMINGS:
                self.counters[name] += work.timings[name]  # type: ignore[assignment]


def _magnitude(k: int) -> int:
    """Return 1 for up to 10 hits, 2 for up to 100, and so on: no query is searched for over ten times its hits."""
    return len(str(k - 1))


def _without_message(error: Exception) -> str:
    """Return the kind of an error and where it was raised: its message could hold a text."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
