"""One worker, stepped by hand: its batches, the jobs that it refuses, and the jobs that it leaves to others."""

import itertools
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from asking import ask, error, vectors
from blocking import DeadLetters, Pool
from breaking import Plan, connect
from conftest import PATIENCE_S, wait_until
from numpy.typing import NDArray
from passes import Noting
from queues import Queue, drive, step_while, work_off

import shoal_workers.loop.admission
import shoal_workers.loop.scheduler
import shoal_workers.loop.worker
from shoal.contract.jobs import LANES, Job
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import Internal
from shoal.operations import Decode, Embed, Search, Tokenize, job_class
from shoal.queue.consumer import Consumer, Delivery
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, Pipeline
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.index.index import Index
from shoal_workers.loop.admission import MAX_DEATHS, MAX_JOBS, Limits
from shoal_workers.loop.scheduler import MIN_PREEMPTIBLE_TOKENS
from shoal_workers.loop.worker import Worker
from shoal_workers.operations.embed import EmbedWork
from shoal_workers.process.crash_report import CrashReports
from shoal_workers.process.heartbeat import Heartbeat
from shoal_workers.service.service import limits_of


class Engine(Noting):
    """The real encoder. It notes its passes, calls `before` ahead of each pass, and fails on `poison` and `untold`."""

    def __init__(self, encoder: Encoder):
        super().__init__(encoder)
        self.before: Callable[[str], object] = lambda _: None
        self.before_pass = lambda _: self.before("encode")

    def check(self, options: Options, outputs: Sequence[str] = ()) -> None:
        self.before("read")
        super().check(options, outputs)

    def tokenize(self, texts: Sequence[str], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        self.before("tokenize")
        if "untold" in texts:
            raise RuntimeError("the tokenizer chokes")
        return super().tokenize(texts, truncation_side, is_query)


@pytest.fixture(autouse=True)
def expected_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interactive job, let the scheduler expect more of them until the end of the test."""
    monkeypatch.setattr(shoal_workers.loop.scheduler, "EXPECTED_S", 3_600.0)


@pytest.fixture
def engine(encoder: Encoder) -> Engine:
    return Engine(encoder)


@pytest.fixture
def worker(queue: Queue, engine: Engine, index: Index) -> Worker:
    limits = Limits(max_job_texts=100, max_text_chars=10_000)
    return Worker(queue.consumer(), engine, {"default": index}, Bucketing(4_096), limits)


def put(queue: Queue, *texts: str, lane: str = "interactive", reply_to: str | None = "me", **fields: Any) -> Job:
    job = Embed(list(texts), reply_to=reply_to, **fields)
    queue.put(lane, [job])
    return job


def replies(queue: Queue, address: str = "me") -> dict[str, Reply]:
    return {reply.id: reply for reply in queue.inbox(address).wait()}


def distinct(num_texts: int) -> list[str]:
    """Return texts of 12 tokens that all differ for the tiny model's tokenizer."""
    return [" ".join(f"{n:010b}".replace("0", "a").replace("1", "b")) for n in range(num_texts)]


def code(reply: Reply | None) -> str:
    assert reply
    return error(reply).code


def once(when: str, act: Callable[[], object]) -> Callable[[str], None]:
    done: list[object] = []

    def before(what: str) -> None:
        if what == when and not done:
            done.append(act())

    return before


def test_jobs_that_wait_together_share_a_pass(worker: Worker, queue: Queue, engine: Engine, index: Index) -> None:
    jobs = [put(queue, f"storm {n}") for n in range(10)]
    assert drive(worker) == 10
    assert list(replies(queue)) == [job.id for job in jobs]
    found, embedded = ask(worker, Search(["europe"], k=3), Embed(["europe"], Options(prompt_name="query")))
    assert engine.passes == [10, 1]
    assert found.hits == index.search(vectors(embedded), 3)
    assert (found.vectors, found.index_version) == (None, index.manifest.version)


def test_a_worker_pauses_longer_and_longer_until_it_gets_a_job_that_it_serves(worker: Worker, queue: Queue) -> None:
    queue.pool.announce("other", {"indexes": {"news": {"count": 1}}})
    of_other = Search(["storm"], index="news")
    queue.put("interactive", [of_other])
    for pause_s in (0.005, 0.01, 0.02):
        worker.step(block_s=0)
        assert worker.admission._pause_s == pause_s
    put(queue, "storm")
    queue.cancel(of_other.id)
    assert drive(worker) == 1
    assert worker.admission._pause_s == 0.0


def test_expired_and_cancelled_jobs_are_not_computed(worker: Worker, queue: Queue, engine: Engine) -> None:
    put(queue, "storm", deadline=time.time() - 1)
    cancelled = put(queue, "rain", reply_to=None)
    queue.cancel(cancelled.id)
    late_submitted = put(queue, "storm", reply_to=None, deadline=0.0)
    at_once = put(queue, "storm", reply_to=None, timeout_s=0)
    queue.put("interactive", [Tokenize(["storm"], reply_to="me", deadline=0.0)])
    drive(worker)
    assert engine.passes == []
    assert worker.admission._next_reclaim > 0  # it looks for the jobs of dead workers at intervals
    reply = queue.wait_result(at_once.id, 0)
    assert reply is not None
    assert "the deadline or timeout_s passed before" in str(reply.error)
    assert [code(reply) for reply in replies(queue).values()] == ["expired"] * 2
    assert queue.status(late_submitted.id)[0] == "expired"
    assert code(queue.wait_result(cancelled.id, 0)) == "cancelled"


def test_a_text_that_fails_harms_only_its_own_job(
    worker: Worker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    job = Embed(["storm", "poison"])
    bad, *good = ask(worker, job, *(Embed([f"storm {n}"]) for n in range(5)))
    assert isinstance(bad.error, Internal)
    assert "failed on text 1" in str(bad.error)
    assert all(len(vectors(reply)) for reply in good)
    assert "the engine failed on a text of 8 tokens: RuntimeError at" in caplog.text
    assert "chokes" not in caplog.text
    (letter,) = DeadLetters(queue).newest()
    assert (letter.data, letter.worker) == (replace(job, reply_to="me").pack(), worker.id)
    assert letter.reason.startswith("internal: the engine failed on text 1")
    assert "RuntimeError: the engine chokes" in letter.traceback
    (noted,) = (noted for noted in worker.log.recent if noted["error"])
    assert (noted["error"], noted["num_texts"]) == ("internal", 2)
    assert noted["timings"]["encode_s"] > 0
    assert [worker.counters[name] for name in ("jobs", "failed", "texts")] == [6, 1, 6]


def test_a_failing_tokenizer_or_index_harms_one_job(queue: Queue, engine: Engine, index_folder: Path) -> None:
    indexes = {"default": WatchedIndex.open(index_folder)}
    worker = Worker(queue.consumer(), engine, indexes, Bucketing(4_096))
    jobs = Embed(["untold"]), Embed(["storm"]), Search(["storm"], k=13), Search(["storm"], k=12)
    assert [reply.error and reply.error.code for reply in ask(worker, *jobs)] == ["internal", None] * 2
    of_tokenizer, of_index = sorted(letter.traceback for letter in DeadLetters(queue).newest())[::-1]
    assert "the tokenizer chokes" in of_tokenizer + of_index
    assert "the index chokes" in of_tokenizer + of_index


def test_jobs_for_the_tokenizer_are_answered_without_a_pass(worker: Worker, engine: Engine) -> None:
    jobs = [Tokenize(["rain", "storm rain"], Options(prompt_name="query"), special_tokens=False)]
    pieces, long, decoded, wrong = ask(worker, *jobs, Tokenize(["x" * 8_193]), Decode(["2 3", ""]), Decode(["x"]))
    words = [[piece["text"] for piece in part] for part in pieces.pieces or ()]
    assert words == [["storm", "rain"], ["storm", "storm", "rain"]]
    assert (pieces.tokens, pieces.truncated, pieces.vectors) == ([2, 3], [False, False], None)
    assert (len(decoded.decoded or ()), decoded.tokens) == (2, [2, 0])
    assert [code(reply) for reply in (long, wrong)] == ["too_large", "invalid_request"]
    assert engine.passes == []


class WatchedIndex(Index):
    """An index that counts the requested hits, and fails if 13 hits are requested."""

    num_hits = 0

    def search(self, queries: NDArray[np.float32], k: int) -> list[list[dict[str, Any]]]:
        if k == 13:
            raise RuntimeError("the index chokes")
        self.num_hits += len(queries) * k
        return super().search(queries, k)


def test_a_job_with_too_many_characters_to_tokenize_is_refused(queue: Queue, engine: Engine) -> None:
    worker = Worker(queue.consumer(), engine, {}, Bucketing(4_096))
    for op, text, num_texts in (("tokenize", "x" * 8_000, 9), ("decode", "1 " * 4_000, 132)):
        much, fitting = ask(worker, *(job_class(op)([text] * n) for n in (num_texts, 1)))
        assert (code(much), fitting.error) == ("too_large", None)


def test_a_search_for_many_hits_costs_others_nothing(queue: Queue, engine: Engine, index_folder: Path) -> None:
    counting = WatchedIndex.open(index_folder)
    worker = Worker(queue.consumer(), engine, {"default": counting}, Bucketing(4_096))
    ask(worker, *(Search(["storm", "rain"], k=k) for k in (1, 3, 10, 11, 1_000)))
    assert counting.num_hits == 2 * (3 * 10 + 11 + 1_000)


def test_jobs_that_cannot_be_served_are_refused(worker: Worker, engine: Engine) -> None:
    assert limits_of(Settings(max_job_texts=3, max_text_chars=5, max_batch_texts=7)) == Limits(3, 5, 7)
    refused: list[tuple[Job, str]] = [
        (Search(["storm"], index="other"), "unknown_index"),
        (Search(["storm"] * 100, k=101), "too_large"),
        (Embed(["storm"] * 101), "too_large"),
        (Embed(["fine", "x" * 10_001]), "too_large"),
        (Embed(["storm"], Options(prompt_name="none")), "invalid_request"),
        (Embed(["storm"], Options(dimensions=33)), "invalid_request"),
        (Embed(["storm " * 60], Options(truncate=False)), "text_too_long"),
    ]
    found = ask(worker, *(job for job, _ in refused))
    assert list(map(code, found)) == [error for _, error in refused]
    assert engine.passes == []


def test_a_slow_worker_keeps_its_jobs(worker: Worker, queue: Queue, engine: Engine) -> None:
    put(queue, "storm")
    pool, key = Pool(queue.broker, queue.keys, alive_s=7_200), queue.keys.worker(worker.id)

    def look() -> None:
        queue.redis.expire(key, 3_600)
        wait_until(lambda: queue.redis.ttl(key) > 3_600)  # the worker has announced itself again
        queue.may_look("other")
        assert queue.consumer("other").reclaim(()) == (0, {})

    engine.before = once("encode", look)
    heart = Heartbeat(pool, worker.id, dict, every_s=0.05)
    heart.start()
    assert worker.step(block_s=0) == 1
    heart.close()
    assert engine.passes == [1]


@pytest.mark.parametrize(
    ("summary", "trace"), [("", ""), ("stalled while encoding", "in forward")], ids=["killed", "stalled"]
)
def test_a_deadly_job_is_buried_alone(worker: Worker, queue: Queue, engine: Engine, summary: str, trace: str) -> None:
    poison, neighbour = put(queue, "storm", reply_to=None), put(queue, "rain")
    for n in range(MAX_DEATHS):
        assert queue.take(f"killed{n}", LANES, 1)
        queue.die()
    if summary:
        CrashReports(queue.broker, queue.keys).write("killed2", summary, trace)
    assert [drive(worker) for _ in range(2)] == [0, 1]
    assert engine.passes == [1]
    assert code(queue.wait_result(poison.id, 0)) == "poisoned"
    (letter,) = DeadLetters(queue).newest()
    assert letter.reason.startswith("poisoned: delivered 3 times")
    assert letter.reason.endswith(f"; the last one {summary or 'ended without a report: killed, or out of memory'}")
    assert (letter.worker, letter.traceback, letter.deliveries) == ("killed2", trace, MAX_DEATHS)
    assert replies(queue)[neighbour.id].error is None


def test_a_job_that_expires_before_its_pass_is_not_computed(queue: Queue, engine: Engine) -> None:
    worker = Worker(queue.consumer(), engine, {}, Bucketing(30))
    deadline = time.time() + 0.5
    engine.before = once("encode", lambda: wait_until(lambda: worker.clock.now() > deadline))
    first, late = ask(worker, Embed(["storm"]), Embed(["rain " * 30, "rain"], deadline=deadline))
    assert (first.error, code(late)) == (None, "expired")
    assert 32 not in engine.num_tokens


@pytest.mark.parametrize(("lane", "num_texts"), [("bulk", 40), ("interactive", 80)])
def test_bulk_and_long_jobs_let_interactive_ones_go_first_and_take_small_steps_then(
    queue: Queue, engine: Engine, lane: str, num_texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shoal_workers.loop.scheduler, "MAX_PREEMPTIBLE_S", 0.0)
    worker = Worker(queue.consumer(), engine, {}, Bucketing(256))
    bulk = put(queue, *distinct(num_texts), lane=lane, reply_to="bulk")
    engine.before = once("encode", lambda: put(queue, "storm"))
    assert drive(worker) == 2
    assert engine.num_tokens[1] == 3
    assert max(engine.num_tokens[2:]) <= MIN_PREEMPTIBLE_TOKENS < engine.num_tokens[0]
    assert len(replies(queue)) == 1
    assert list(replies(queue, "bulk")) == [bulk.id]


@pytest.mark.parametrize(
    ("num_texts", "is_away", "drain_s", "num_left"), [(1, True, PATIENCE_S, 1), (1, True, 0.0, 0), (9, False, 0.0, 1)]
)
def test_a_worker_that_stops_leaves_no_suspects_also_while_redis_is_away(
    queue: Queue,
    redis_url: str,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    num_texts: int,
    is_away: bool,
    drain_s: float,
    num_left: int,
) -> None:
    monkeypatch.setattr(shoal_workers.loop.worker, "DRAIN_S", drain_s)
    monkeypatch.setattr(shoal_workers.loop.worker, "RETRY_S", 0.0)
    plan = Plan()
    consumer = Consumer(connect(redis_url, plan), queue.keys, "w")
    worker = Worker(consumer, engine, {}, Bucketing(30))

    def stop() -> None:
        worker.stop()
        if is_away:
            plan.breaks("before", 1)

    put(queue, *distinct(num_texts))
    engine.before = once("encode", stop)
    worker.run()
    consumer.broker.close()
    assert [taken.deaths for taken in queue.take("next", LANES, 1)] == [0] * num_left  # the worker did not die


@pytest.mark.parametrize("lane", LANES)
def test_a_suspect_goes_first_alone(queue: Queue, engine: Engine, monkeypatch: pytest.MonkeyPatch, lane: str) -> None:
    monkeypatch.setattr(shoal_workers.loop.admission, "RECLAIM_EVERY_S", 0.0)
    worker = Worker(queue.consumer(), engine, {}, Bucketing(24))
    queue.pool.announce(worker.id)
    held = [put(queue, *distinct(20), lane=lane) for _ in range(2)]
    worker.step(block_s=0)
    suspect = put(queue, *distinct(1))
    assert len(queue.take("killed", LANES, 1)) == 1
    later = put(queue, *distinct(1), lane=lane)
    queue.die()
    engine.passes.clear()
    worker.step(block_s=0)
    assert engine.passes == [1]
    work_off(worker, queue)
    assert list(replies(queue)) == [job.id for job in (suspect, *held, later)]


def test_a_busy_worker_computes_a_suspect_alone(worker: Worker, queue: Queue, engine: Engine) -> None:
    for name in (worker.id, "killed"):
        queue.pool.announce(name)
    suspect = put(queue, *distinct(2), reply_to="suspect")
    assert len(queue.take("killed", LANES, 1)) == 1
    left: list[bool] = []  # for each pass, True if completed jobs were not answered yet

    def look(what: str) -> None:
        if what == "encode":
            left.append(any(work.is_complete for work in worker.scheduler.works))

    engine.before = look
    for n in range(6):
        for _ in range(3):
            put(queue, *distinct(1))
        worker.step(block_s=0)
        if n == 1:
            queue.die("killed")
    assert list(replies(queue, "suspect")) == [suspect.id]
    assert not left[engine.passes.index(2)]
    assert left.count(True) > 1


def test_a_poisoned_job_is_answered_without_being_unpacked(worker: Worker, queue: Queue) -> None:
    heavy = {"v": 1, "id": "heavy", "op": "embed", "texts": ["storm"], "reply_to": "me", "x": [{}] * 200_000}
    data = msgpack.packb(heavy)
    queue.redis.rpush(queue.keys.lane("interactive"), data)
    for n in range(MAX_DEATHS):
        assert queue.take(f"killed{n}", LANES, 1)
        queue.die()
    tracemalloc.start()
    try:
        drive(worker)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code(replies(queue)["heavy"]) == "poisoned"
    assert most_bytes < 20 * len(data)


def test_a_step_takes_few_jobs_even_if_they_are_short(worker: Worker, queue: Queue) -> None:
    for text in distinct(MAX_JOBS + 1):
        put(queue, text)
    assert worker.step(block_s=0) + len(worker.scheduler.works) == MAX_JOBS
    drive(worker)


def test_huge_chinese_texts_of_another_client_delay_no_headline(worker: Worker, queue: Queue) -> None:
    hostile = [Embed([f"{text} {'气候变化' * 2_000}"], reply_to="hostile") for text in distinct(100)]
    queue.put("interactive", hostile, client="hostile")
    queue.put("interactive", [Embed(["气候变化"], reply_to="honest")], client="honest")
    step_while(worker, lambda: not queue.redis.xlen(queue.keys.replies("honest")))
    assert queue.redis.xlen(queue.keys.replies("hostile")) <= 20


def test_a_job_that_is_cancelled_between_two_passes_is_computed_no_further(queue: Queue, engine: Engine) -> None:
    worker = Worker(queue.consumer(), engine, {}, Bucketing(24))
    job = put(queue, *distinct(20), reply_to=None)
    worker.admission._next_check = 0.0
    worker.step(block_s=0)
    assert queue.cancel(job.id) == "cancelled"
    worker.admission._next_check = 0.0  # the worker looks now, not a quarter of a second later
    assert drive(worker) == 0
    assert sum(engine.passes) <= 4
    assert code(queue.wait_result(job.id, 0)) == "cancelled"


def test_a_worker_that_holds_a_job_does_not_wait_for_another(queue: Queue, engine: Engine) -> None:
    def num_waits() -> int:
        return int(queue.redis.info("commandstats").get("cmdstat_blpop", {"calls": 0})["calls"])

    worker, before = Worker(queue.consumer(), engine, {}, Bucketing(24)), num_waits()
    put(queue, *distinct(20))
    for _ in range(3):
        worker.step(block_s=PATIENCE_S)
    assert worker.scheduler.works
    assert num_waits() == before


def test_timings_of_steps(worker: Worker, queue: Queue, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))  # each reading of the clock takes a second
    engine.before = lambda what: [next(clock) for _ in range(100 if what == "tokenize" else 10_000)]
    long = put(queue, *distinct(60), lane="bulk", reply_to="bulk")
    search = Search(["europe storm"], k=3, reply_to="me")
    worker.step(block_s=0)
    queue.put("interactive", [search])
    drive(worker)
    timings = [replies(queue)[search.id].timings, replies(queue, "bulk")[long.id].timings]
    took_s = next(clock)
    assert sum(one[step] for one in timings for step in ("tokenize_s", "encode_s", "search_s")) <= took_s
    assert [one["tokenize_s"] // 100 for one in timings] == [1, 1]
    assert [one["encode_s"] // 10_000 for one in timings] == [1, 1]
    assert timings[0]["search_s"] > 0 == timings[1]["search_s"]


def test_a_job_whose_reply_cannot_be_made_has_an_error(encoder: Encoder) -> None:
    delivery, pipeline = Delivery("bulk", "a", b"", "w", 0), Pipeline(encoder, Bucketing(64))
    work = EmbedWork(delivery, Embed(["storm"]), pipeline)  # the text of this job is not encoded
    assert work.answer() is None
    assert isinstance(work.error, Internal)
