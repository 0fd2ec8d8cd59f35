"""The worker: takes jobs, forms batches, encodes, searches, replies."""

import logging
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shoal.cache.cache import Cache
from shoal.cache.entry import Entry
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.queue.consumer import Consumer
from shoal.queue.pool import Pool
from shoal.replies import TIMINGS
from shoal_workers.admission import Admission, Limits, overdue
from shoal_workers.encoding.batcher import Batcher
from shoal_workers.encoding.encoder import Encoder, Row
from shoal_workers.index.index import Index
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.throughput import Throughput
from shoal_workers.process.watchdog import Progress
from shoal_workers.work import Work

log = logging.getLogger(__name__)

#: How long a worker waits before it tries Redis again.
RETRY_S = 0.5

#: Most tokens of bulk work in one pass while interactive jobs are expected, which wait until it is over. Measured: a
#: headline that comes at the worst moment then takes three times as long as alone, and bulk headlines a third longer.
MAX_SMALL_PASS_TOKENS = 64

#: Texts of a job that are tokenized at a time.
TEXTS_AT_ONCE = 32


class Worker:
    """One worker. `step` is one round of its life and can be driven by hand; `run` is steps until stopped."""

    def __init__(
        self,
        consumer: Consumer,
        encoder: Encoder,
        indexes: dict[str, Index],
        batcher: Batcher[Row],
        limits: Limits | None = None,
        stopping: threading.Event | None = None,
        cache: Cache | None = None,
        words: CrashReports | None = None,
    ):
        self.id = consumer.name
        self.consumer = consumer
        self.pool = Pool(consumer.broker, consumer.keys)
        self.encoder = encoder
        self.indexes = indexes
        self.batcher = batcher
        self.cache = cache
        self.counters: Counter[str] = Counter()
        self.progress = Progress()
        self.speed = Throughput()
        words = words or CrashReports(consumer.broker, consumer.keys)
        self._intake = Admission(consumer, encoder, indexes, limits or Limits(), words, self.counters)
        self._stopping = stopping or threading.Event()
        self._num_replied = 0

    def run(self) -> None:
        """Steps until `stop` is called; waits when Redis is away and goes on when it is back."""
        is_away = False
        while not self._stopping.is_set():
            try:
                self.progress.mark("joining the pool")
                self.consumer.join()
                log.info("worker %s is taking jobs", self.id)
                is_away = False
                while not self._stopping.is_set():
                    self.step()
            except (Unavailable, Overloaded) as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                is_away = True
                self._intake.doubt_heartbeats()
                self._stopping.wait(RETRY_S)

    def stop(self) -> None:
        """Lets the step under way finish, then ends `run`. Safe in a signal handler."""
        self._stopping.set()

    def step(self, block_s: float = 1.0) -> int:
        """One round: take jobs, serve the interactive ones, then those of bulk. Returns how many were replied to."""
        self.progress.mark("taking jobs")
        num_replied = self._num_replied
        works = self._intake.take(block_s)
        started = time.perf_counter()
        self._serve([work for work in works if not work.gives_way])
        self._serve([work for work in works if work.gives_way])
        self.speed.note(0, time.perf_counter() - started)
        return self._num_replied - num_replied

    def _serve(self, works: Sequence[Work]) -> None:
        """Tokenize, batch, encode, search, reply; and what is new goes into the cache."""
        if not works:
            return
        started = time.perf_counter()
        works = self._tokenize(works)
        waiting = self._finish(works, started)
        for batch in self._batches(waiting):
            waiting = self._in_time(waiting)
            self._encode(_wanted(batch, waiting))
            waiting = self._finish(waiting, started)
        self._store(works)

    def _let_pass(self, works: Sequence[Work]) -> None:
        """Serves the interactive jobs that wait by now, if the works at hand give way and this is not the last step."""
        if all(work.gives_way for work in works) and not self._stopping.is_set():
            self._serve(self._intake.take_interactive())

    def _finish(self, works: Sequence[Work], started: float) -> list[Work]:
        """Searches and replies for those that are encoded, and returns those that wait."""
        encoded = [work for work in works if work.is_encoded]
        for work in encoded:
            work.check_rows()
            if work.rows:
                work.timings["encode_s"] = time.perf_counter() - started
        self._search([work for work in encoded if work.job.op == "search" and not work.error])
        self._reply(encoded)
        return [work for work in works if not work.is_encoded]

    def _in_time(self, works: Sequence[Work]) -> list[Work]:
        """The works without those whose deadline has passed since they were taken, which are answered so."""
        for work in works:
            work.error = overdue(work.job)
        self._intake.refuse([(work.delivery, work.error) for work in works if work.error])
        return [work for work in works if not work.error]

    # Tokenize, batch, encode, search, reply

    def _tokenize(self, works: Sequence[Work]) -> list[Work]:
        """Gives each job what the cache has, and rows for the rest, one for all texts that are the same.

        Returns the jobs that can be encoded.
        """
        self.progress.mark("tokenizing")
        started = time.perf_counter()
        self._recall(works)
        shared: dict[Any, Row] = {}
        for work in works:
            try:
                self._tokenize_one(work, shared)
            except ShoalError as error:
                work.error = error
            except Exception as error:  # whatever a tokenizer may raise
                work.fail("the tokenizer failed", error)
        for work in works:
            work.timings["tokenize_s"] = time.perf_counter() - started
        self._intake.refuse([(work.delivery, work.error) for work in works if work.error])
        return [work for work in works if not work.error]

    def _recall(self, works: Sequence[Work]) -> None:
        works = [work for work in works if work.job.options.output == "vector"]
        if self.cache is None or not works:
            return
        for work in works:
            work.digests = self.cache.table.digests(work.job.texts, work.prompt, work.job.options)
        entries = iter(self.cache.find([digest for work in works for digest in work.digests]))
        for work in works:
            work.recall(list(islice(entries, len(work.digests))))
            self.counters["cache_hits"] += len(work.found)
            self.counters["cache_misses"] += len(work.missing)

    def _tokenize_one(self, work: Work, shared: dict[Any, Row]) -> None:
        options, missing = work.job.options, work.missing
        at_once = TEXTS_AT_ONCE if options.truncate else len(missing)  # the error is to name the text by its number
        for start in range(0, len(missing), at_once or 1):
            if start:
                self._let_pass([work])
            numbers = missing[start : start + at_once]
            found = self.encoder.tokenize([work.job.texts[n] for n in numbers], options, work.prompt)
            for n, tokens in zip(numbers, found, strict=True):
                key = (tokens.ids, options.pooling, options.output)
                work.rows[n] = shared.setdefault(key, Row(tokens, options.pooling, options.output))

    def _batches(self, works: Sequence[Work]) -> Iterator[list[Row]]:
        """What goes into one pass each: little, while the works give way and interactive jobs are expected."""
        rows = {id(row): row for work in works for row in work.rows.values()}
        batches = deque(self.batcher.cut(list(rows.values())))
        while batches:
            self._let_pass(works)
            batch = batches.popleft()
            if self._intake.expects_interactive and works[0].gives_way:
                batch, *rest = self.batcher.split(batch, MAX_SMALL_PASS_TOKENS)
                batches.extendleft(reversed(rest))
            yield batch

    def _encode(self, batch: Sequence[Row]) -> None:
        """Encodes a batch; if the engine fails, row by row, so that a bad text harms only its own job."""
        if not batch or self._run_pass(batch) is None:
            return
        for row in batch:
            row.error = self._run_pass([row])
            if row.error:
                log.error("the engine failed on a text of %d tokens: %s", row.num_tokens, _without_message(row.error))

    def _run_pass(self, batch: Sequence[Row]) -> Exception | None:
        """Encodes a batch in one pass; returns what the engine raised, without the memory that it took for it."""
        self.counters["batches"] += 1
        self.progress.mark("encoding")
        try:
            self.encoder.encode(batch)
        except Exception as error:  # whatever an engine may raise
            traceback.clear_frames(error.__traceback__)
            return error
        return None

    def _search(self, works: Sequence[Work]) -> None:
        started = time.perf_counter()
        for name in {work.job.index for work in works}:
            self._search_index(self.indexes[name], [work for work in works if work.job.index == name])
        for work in works:
            work.timings["search_s"] = time.perf_counter() - started

    def _search_index(self, index: Index, works: Sequence[Work]) -> None:
        """Finds the hits; if that fails, job by job."""
        self.progress.mark("searching")
        try:
            queries = np.concatenate([work.vectors() for work in works])
            hits = iter(index.search(queries, max(work.job.k for work in works)))
            for work in works:
                work.hits = [next(hits)[: work.job.k] for _ in work.job.texts]
        except Exception as error:  # whatever an index may raise
            if len(works) > 1:
                for work in works:
                    self._search_index(index, [work])
                return
            log.error("a search for %d queries failed: %s", len(works[0].job.texts), _without_message(error))
            works[0].fail("the search failed", error)

    def _reply(self, works: Sequence[Work]) -> None:
        self.progress.mark("replying")
        model = self.encoder.model.name
        self._num_replied += self.consumer.reply([work.answer(model) for work in works if not work.error])
        self._num_replied += self._intake.refuse([(work.delivery, work.error) for work in works if work.error])
        self._count(works)

    def _store(self, works: Sequence[Work]) -> None:
        """Puts what is new into the cache: after the replies, which do not depend on it."""
        if self.cache is None:
            return
        entries: dict[bytes, Entry] = {}
        for work in works:
            entries |= work.news()
        try:
            self.cache.store(entries)
        except ShoalError as error:
            self.counters["cache_refused"] += len(entries)
            log.debug("%d texts could not be put into the cache: %s", len(entries), error)

    def _count(self, works: Sequence[Work]) -> None:
        for work in works:
            self.counters["jobs"] += 1
            self.counters["texts"] += len(work.rows)
            self.counters["tokens"] += sum(row.num_tokens for row in work.rows.values())
            self.speed.note(len(work.job.texts), 0)
            for name in TIMINGS:
                self.counters[name] += work.timings[name]  # type: ignore[assignment]


def _wanted(batch: Sequence[Row], works: Sequence[Work]) -> list[Row]:
    """The rows of the batch that any of the works waits for."""
    wanted = {id(row) for work in works for row in work.rows.values()}
    return [row for row in batch if id(row) in wanted]


def _without_message(error: Exception) -> str:
    """The kind of an error and where it was raised: its message could hold a text."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
