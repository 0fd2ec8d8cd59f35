"""The worker: takes jobs, forms batches, encodes, searches, replies."""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from shoal.cache import Cache, Entry
from shoal.errors import Expired, Overloaded, Poisoned, ShoalError, TooLarge, Unavailable, UnknownIndex
from shoal.jobs import LANES, Job, address_of
from shoal.pool import Pool
from shoal.queue import Answer, Delivery, Queue
from shoal.replies import TIMINGS, Reply
from shoal_workers.batcher import Batcher
from shoal_workers.encoder import QUERY_PROMPTS, Encoder, Row
from shoal_workers.index import Index
from shoal_workers.work import Work

log = logging.getLogger(__name__)

#: Jobs read at a time from each lane: interactive ones are short, bulk ones fill a batch by themselves.
JOBS_AT_ONCE = {"interactive": 16, "bulk": 1}

#: A full step takes a bulk job along every so many steps, so that bulk work goes on under constant load.
BULK_EVERY = 8

#: How often a job may be delivered before it counts as poison.
MAX_DELIVERIES = 3

#: How often a worker looks for jobs that a dead one left behind.
CLAIM_EVERY_S = 1.0

#: How long a worker waits before it tries Redis again.
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker accepts from programs that put jobs into Redis themselves, and how much it takes on in one step.

    A step is full with `max_batch_texts`: more would not be encoded faster, and would keep others waiting.
    """

    max_job_texts: int = 1_024
    max_text_chars: int = 2**20
    max_batch_texts: int = 64
    max_batch_wait_s: float = 0.0


class Worker:
    """One worker. `step` is one round of its life and can be driven by hand; `run` is steps until stopped."""

    def __init__(
        self,
        queue: Queue,
        encoder: Encoder,
        indexes: dict[str, Index],
        batcher: Batcher[Row],
        limits: Limits | None = None,
        stopping: threading.Event | None = None,
        cache: Cache | None = None,
    ):
        self.id = secrets.token_hex(6)
        self.queue = queue
        self.pool = Pool(queue.redis, queue.keys)
        self.encoder = encoder
        self.indexes = indexes
        self.batcher = batcher
        self.limits = limits or Limits()
        self.cache = cache
        self.counters: Counter[str] = Counter()
        self._stopping = stopping or threading.Event()
        self._num_steps = 0
        self._next_claim_s = 0.0

    def run(self) -> None:
        """Steps until `stop` is called; waits when Redis is away and goes on when it is back."""
        is_away = False
        while not self._stopping.is_set():
            try:
                self.queue.join()
                log.info("worker %s is taking jobs", self.id)
                is_away = False
                while not self._stopping.is_set():
                    self.step()
            except (Unavailable, Overloaded) as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "%s; trying until it does", error)
                is_away = True
                self._stopping.wait(RETRY_S)

    def stop(self) -> None:
        """Lets the step under way finish, then ends `run`. Safe in a signal handler."""
        self._stopping.set()

    def step(self, block_s: float = 1.0) -> int:
        """One round: take, tokenize, batch, encode, search, reply. Returns how many jobs were replied to."""
        works = self._tokenize(self._take(block_s))
        started = time.perf_counter()
        num_replied, waiting = self._finish(works, started)
        rows = list({id(row): row for work in waiting for row in work.rows.values()}.values())
        for batch in self.batcher.cut(rows):
            self._encode(batch)
            num_encoded, waiting = self._finish(waiting, started)
            num_replied += num_encoded
        self._store(works)
        return num_replied

    def _finish(self, works: Sequence[Work], started: float) -> tuple[int, list[Work]]:
        """Searches and replies for those that are encoded; returns how many were replied to, and those that wait."""
        encoded = [work for work in works if work.is_encoded]
        for work in encoded:
            if work.rows:
                work.timings["encode_s"] = time.perf_counter() - started
        self._search([work for work in encoded if work.job.op == "search" and not work.has_failed])
        return self._reply(encoded), [work for work in works if not work.is_encoded]

    # Take

    def _take(self, block_s: float) -> list[Work]:
        if orphan := self._claim():
            return self._admit([orphan])
        self._num_steps += 1
        works: list[Work] = []
        self._fill(works, "interactive")
        self._fill(works, "bulk")
        if not works and block_s:
            works += self._admit(self.queue.take(self.id, LANES, 1, block_s))
        if works and self.limits.max_batch_wait_s:
            self._linger(works)
        return works

    def _fill(self, works: list[Work], lane: str) -> None:
        owed = lane == "bulk" and self._num_steps % BULK_EVERY == 0
        while (room := self._room(works)) > 0 or owed:
            at_once = min(JOBS_AT_ONCE[lane], max(1, room))
            taken = self.queue.take(self.id, [lane], at_once)
            works += self._admit(taken)
            if len(taken) < at_once or owed:
                return

    def _linger(self, works: list[Work]) -> None:
        until = time.monotonic() + self.limits.max_batch_wait_s
        while (room := self._room(works)) > 0 and (left := until - time.monotonic()) > 0:
            at_once = min(JOBS_AT_ONCE["interactive"], room)
            works += self._admit(self.queue.take(self.id, ["interactive"], at_once, left))

    def _room(self, works: Sequence[Work]) -> int:
        """How many more texts fit into the step."""
        return self.limits.max_batch_texts - sum(len(work.job.texts) for work in works)

    def _claim(self) -> Delivery | None:
        if time.monotonic() < self._next_claim_s:
            return None
        orphan = self.queue.claim(self.id, set(self.pool.workers()))
        if orphan is None:
            self._next_claim_s = time.monotonic() + CLAIM_EVERY_S
        else:
            log.info("claimed a job that was left behind, delivery %d", orphan.num_deliveries)
        return orphan

    # Admit

    def _admit(self, deliveries: Iterable[Delivery]) -> list[Work]:
        """Opens the deliveries; those that cannot or need not be computed are answered at once."""
        works, refusals = [], []
        now = time.time()
        for delivery in deliveries:
            try:
                job = self._open(delivery, now)
                work = Work(delivery, job, self._prompt(job))
                work.timings["queue_s"] = delivery.queued_s(now)
                works.append(work)
            except ShoalError as error:
                refusals.append((delivery, error))
        self._refuse(refusals)
        return self._start(works)

    def _open(self, delivery: Delivery, now: float) -> Job:
        job = Job.unpack(delivery.data)
        if delivery.num_deliveries > MAX_DELIVERIES:
            raise Poisoned(f"delivered {MAX_DELIVERIES} times, and each time the worker died: take a look at its texts")
        if job.deadline is not None and now > job.deadline:
            raise Expired(
                f"the deadline passed {now - job.deadline:.1f} s before a worker was free: add workers or wait longer"
            )
        self._check_size(job)
        if job.op == "search" and job.index not in self.indexes:
            known = ", ".join(sorted(self.indexes)) or "none"
            raise UnknownIndex(f"no index {job.index!r}: this worker serves {known}")
        self.encoder.check(job.options)
        return job

    def _prompt(self, job: Job) -> str:
        return self.encoder.prompt(job.options, QUERY_PROMPTS if job.op == "search" else ())

    def _check_size(self, job: Job) -> None:
        if len(job.texts) > self.limits.max_job_texts:
            raise TooLarge(f"the job has {len(job.texts):,} texts, over {self.limits.max_job_texts:,}: split it")
        for n, text in enumerate(job.texts):
            if len(text) > self.limits.max_text_chars:
                raise TooLarge(
                    f"text {n} has {len(text):,} characters, over {self.limits.max_text_chars:,}: cut it into passages"
                )

    def _start(self, works: list[Work]) -> list[Work]:
        """Marks submitted jobs as running, and drops those that were cancelled: they are answered already."""
        submitted = [work for work in works if work.job.reply_to is None]
        started = self.queue.start([work.job.id for work in submitted])
        cancelled = [work for work, runs in zip(submitted, started, strict=True) if not runs]
        self.queue.drop([work.delivery for work in cancelled])
        return [work for work in works if work not in cancelled]

    def _refuse(self, refusals: Sequence[tuple[Delivery, ShoalError]]) -> None:
        """Answers with the error, or, where nobody can be answered, keeps the job as a dead letter."""
        answers = []
        for delivery, error in refusals:
            self.counters["failed"] += 1
            job_id, reply_to = address_of(delivery.data)
            if job_id is not None:
                answers.append(Answer(delivery, Reply.failure(job_id, error), reply_to))
        self.queue.reply(answers)
        for delivery, error in refusals:
            if isinstance(error, Poisoned) or address_of(delivery.data)[0] is None:
                log.warning("dead letter: %s", error)
                self.queue.bury(delivery, f"{error.code}: {error}")

    # Tokenize, encode, search, reply

    def _tokenize(self, works: list[Work]) -> list[Work]:
        """Gives each job what the cache has, and rows for the rest, one for all texts that are the same.

        Returns the jobs that can be encoded.
        """
        started = time.perf_counter()
        self._recall(works)
        shared: dict[Any, Row] = {}
        tokenized, refusals = [], []
        for work in works:
            try:
                self._tokenize_one(work, shared)
                tokenized.append(work)
            except ShoalError as error:
                refusals.append((work.delivery, error))
        self._refuse(refusals)
        for work in tokenized:
            work.timings["tokenize_s"] = time.perf_counter() - started
        return tokenized

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
        found = self.encoder.tokenize([work.job.texts[n] for n in missing], options, work.prompt)
        for n, tokens in zip(missing, found, strict=True):
            key = (tokens.ids, options.pooling, options.output)
            work.rows[n] = shared.setdefault(key, Row(tokens, options.pooling, options.output))

    def _encode(self, batch: Sequence[Row]) -> None:
        """Encodes a batch; if the engine fails, row by row, so that a bad text harms only its own job."""
        self.counters["batches"] += 1
        try:
            self.encoder.encode(batch)
        except Exception as error:  # whatever an engine may raise
            if len(batch) > 1:
                for row in batch:
                    self._encode([row])
                return
            log.exception("the engine failed on a text of %d tokens", batch[0].num_tokens)
            batch[0].error = error

    def _search(self, works: Sequence[Work]) -> None:
        started = time.perf_counter()
        for name in {work.job.index for work in works}:
            same = [work for work in works if work.job.index == name]
            queries = np.concatenate([work.vectors() for work in same])
            hits = iter(self.indexes[name].search(queries, max(work.job.k for work in same)))
            for work in same:
                work.hits = [next(hits)[: work.job.k] for _ in work.job.texts]
        for work in works:
            work.timings["search_s"] = time.perf_counter() - started

    def _reply(self, works: Sequence[Work]) -> int:
        num_written = self.queue.reply([work.answer(self.encoder.model.name) for work in works])
        self._count(works)
        return num_written

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
            self.counters["failed"] += work.has_failed
            self.counters["texts"] += len(work.rows)
            self.counters["tokens"] += sum(row.num_tokens for row in work.rows.values())
            for name in TIMINGS:
                self.counters[name] += work.timings[name]  # type: ignore[assignment]
