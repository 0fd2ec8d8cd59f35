"""Batches that are computed aside, while the worker answers interactive jobs."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from breaking import Plan, connect
from conftest import PATIENCE_S
from queues import Queue, drive
from test_worker import distinct, put, replies

import shoal_workers.loop.batch
import shoal_workers.loop.worker
from shoal.contract.jobs import LANES
from shoal.contract.options import Options
from shoal.queue.consumer import Consumer
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.loop.worker import Worker


class Engine(Encoder):
    """The real encoder with two threads. It notes its passes, and fails on a text of nine tokens.

    Batches aside do not end until `released` is set.
    """

    def __init__(self, encoder: Encoder):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        self.passes: list[tuple[str, int]] = []
        self.released = threading.Event()
        self.released.set()
        self.before_aside: Callable[[], object] = lambda: None

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self._note("start", texts)
        return super().start(texts)

    def start_aside(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self._note("aside", texts)
        self.before_aside()
        return super().start_aside(texts)

    def finish(self, passes: Sequence[EncodingPass]) -> None:
        self.passes.append(("finish", sum(len(one.texts) for one in passes)))
        super().finish(passes)

    def ends_within(self, passes: Sequence[EncodingPass], seconds: float) -> bool:
        return self.released.wait(seconds) and super().ends_within(passes, seconds)

    def _note(self, what: str, texts: Sequence[TokenizedText]) -> None:
        self.passes.append((what, len(texts)))
        if any(text.num_tokens == 9 for text in texts):
            raise RuntimeError("the engine chokes")


@pytest.fixture(autouse=True)
def overdue_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pass aside become overdue, because the worker would then only wait for its end."""
    monkeypatch.setattr(shoal_workers.loop.batch, "WAIT_FROM_S", 3_600.0)


@pytest.fixture
def engine(encoder_of_two_threads: Encoder) -> Engine:
    return Engine(encoder_of_two_threads)


@pytest.fixture
def worker(queue: Queue, engine: Engine) -> Worker:
    return Worker(queue.consumer(), engine, {}, Bucketing(480))


@pytest.fixture
def held(worker: Worker, queue: Queue, engine: Engine) -> Engine:
    """Return the encoder while it computes a batch aside: 40 texts of a bulk job. The batch does not end by itself."""
    engine.released.clear()
    put(queue, *distinct(40), lane="bulk", reply_to="bulk")
    assert worker.step(block_s=0) == 0
    return engine


def test_interactive_jobs_are_answered_before_a_bulk_pass(worker: Worker, queue: Queue, held: Engine) -> None:
    urgent = [put(queue, text) for text in ("storm", "rain")]
    assert worker.step(block_s=0) == 2
    assert list(replies(queue)) == [job.id for job in urgent]
    assert worker.counters["busy_s"] == 0  # this time counts for the pass that is under way
    held.released.set()
    assert drive(worker) == 1
    assert worker.counters["busy_s"] > 0
    assert len(replies(queue, "bulk")) == 1
    assert held.passes == [("aside", 40), ("start", 2), ("finish", 2), ("finish", 40)]


def test_a_job_wakes_the_worker(worker: Worker, queue: Queue, held: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal_workers.loop.worker, "TAKE_EVERY_S", 3_600.0)
    has_looked, has_come = threading.Event(), worker._has_come

    def look() -> bool:
        has_looked.set()
        return has_come()

    def answered_meanwhile() -> bool:
        try:
            assert has_looked.wait(PATIENCE_S)  # the worker waits for the pass
            put(queue, "storm")
            return bool(queue.redis.xread({queue.keys.replies("me"): 0}, block=int(PATIENCE_S * 1_000)))
        finally:
            held.released.set()

    monkeypatch.setattr(worker, "_has_come", look)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answered_meanwhile)
        drive(worker)
        assert answered.result()


def test_long_and_failing_passes(worker: Worker, queue: Queue, held: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog notices a pass that hangs."""

    def fail(*_: object) -> bool:
        raise RuntimeError("the engine chokes")

    with monkeypatch.context() as patch:
        patch.setattr(shoal_workers.loop.batch, "WAIT_FROM_S", 0.0)
        assert drive(worker) == 1
    monkeypatch.setattr(held, "ends_within", fail)
    put(queue, *distinct(3), lane="bulk", reply_to="bulk")
    assert drive(worker) == 1
    assert [reply.error for reply in replies(queue, "bulk").values()] == [None] * 2


@pytest.mark.parametrize("is_away", [True, False])
def test_a_worker_that_stops_answers_a_batch_aside_and_takes_no_other_job(
    queue: Queue, redis_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    put(queue, *distinct(40), lane="bulk", reply_to="bulk")
    stopping, plan = threading.Event(), Plan()
    monkeypatch.setattr(shoal_workers.loop.worker, "RETRY_S", 0.0)
    if not is_away:  # the time to stop is over when the pass has ended
        monkeypatch.setattr(shoal_workers.loop.worker, "DRAIN_S", 0.0)
    consumer = Consumer(connect(redis_url, plan), queue.keys, "w")
    worker = Worker(consumer, engine, {}, Bucketing(480), stopping=stopping)

    def stop() -> None:
        put(queue, "storm", lane="bulk", reply_to="later")
        stopping.set()
        if is_away:
            plan.breaks("before", 2)  # the first command asks for the maxmemory-policy

    engine.before_aside = stop
    worker.run()
    consumer.broker.close()
    assert engine.passes == [("aside", 40), ("finish", 40)]
    assert (len(replies(queue, "bulk")), replies(queue, "later")) == (int(not is_away), {})  # else that job waits again


def test_a_suspect_does_not_run_aside(worker: Worker, queue: Queue, engine: Engine) -> None:
    put(queue, *distinct(40), lane="bulk", reply_to="bulk")
    queue.take("killed", LANES, 1)
    queue.die()
    assert drive(worker) == 1
    assert {what for what, _ in engine.passes} == {"start", "finish"}


def test_the_next_texts_are_tokenized_while_a_pass_runs_aside(worker: Worker, queue: Queue, held: Engine) -> None:
    put(queue, *(f"{text} a" for text in distinct(30)), lane="bulk", reply_to="bulk")
    assert worker.step(block_s=0) == 0
    (next_one,) = [work for work in worker.scheduler.works if len(work.job.texts) == 30]
    assert len(next_one.tokenized) == 30
    held.released.set()
    assert drive(worker) == 2
    assert held.passes == [("aside", 40), ("finish", 40), ("aside", 30), ("finish", 30)]


@pytest.mark.parametrize("output", ["vector", "chunks"])
def test_a_document_that_is_put_again_aside(worker: Worker, queue: Queue, engine: Engine, output: str) -> None:
    engine.released.clear()
    options = Options(output=output, chunk_tokens=8)
    for _ in range(2):  # the second job comes while all chunks of the first job are computed
        put(queue, "storm in europe and rain in the market", lane="bulk", reply_to="bulk", options=options)
        assert worker.step(block_s=0) == 0
    engine.released.set()
    assert drive(worker) == 2
    first, second = replies(queue, "bulk").values()
    assert (first.error, second.error) == (None, None)
    assert (second.tokens, second.chunks) == (first.tokens, first.chunks)
    np.testing.assert_array_equal(second.vectors, first.vectors)
    assert [what for what, _ in engine.passes] == ["aside", "finish"]  # the chunks were computed once
