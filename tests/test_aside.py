"""Batches that are computed aside: interactive jobs are computed meanwhile."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from queues import Queue, drive
from test_worker import code, distinct, put, replies

from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.worker import Worker


class Engine(Encoder):
    """The real encoder on two threads. Notes the texts of its passes, and fails on a text of seven tokens."""

    def __init__(self, encoder: Encoder):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        self.passes: list[tuple[str, int]] = []

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self._note("start", texts)
        return super().start(texts)

    def start_aside(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self._note("aside", texts)
        return super().start_aside(texts)

    def finish(self, passes: Sequence[EncodingPass]) -> None:
        self.passes.append(("finish", sum(len(one.texts) for one in passes)))
        super().finish(passes)

    def _note(self, what: str, texts: Sequence[TokenizedText]) -> None:
        self.passes.append((what, len(texts)))
        if any(text.num_tokens == 9 for text in texts):
            raise RuntimeError("the engine chokes")


@pytest.fixture(scope="session")
def encoder_of_two_threads(tiny_model: Path) -> Encoder:
    """An encoder that runs batches aside."""
    return Encoder.open(tiny_model, "openvino", "f32", 2)


@pytest.fixture
def engine(encoder_of_two_threads: Encoder) -> Engine:
    """That encoder, watched."""
    return Engine(encoder_of_two_threads)


@pytest.fixture
def worker(queue: Queue, engine: Engine) -> Worker:
    """A worker with that encoder."""
    return Worker(queue.consumer(), engine, {}, Bucketing(2_048))


def test_an_interactive_job_is_answered_before_a_bulk_pass_that_is_under_way(
    worker: Worker, queue: Queue, engine: Engine
) -> None:
    put(queue, *distinct(40), lane="bulk", reply_to="bulk")
    assert worker.step(block_s=0) == 0
    urgent = put(queue, "storm")
    worker.scheduler.add(worker.admission.take_interactive(worker.scheduler.room()))
    assert worker._advance() == 1
    assert list(replies(queue)) == [urgent.id]
    assert drive(worker) == 1
    assert len(replies(queue, "bulk")) == 1
    assert engine.passes == [("aside", 40), ("start", 1), ("finish", 1), ("finish", 40)]


def test_bulk_jobs_are_all_answered_while_nothing_else_comes(worker: Worker, queue: Queue, engine: Engine) -> None:
    for n in range(5):
        put(queue, *(f"{text} {n}" for text in distinct(60)), lane="bulk", reply_to="bulk")
    assert drive(worker) == 5
    assert {what for what, _ in engine.passes} == {"aside", "finish"}


def test_a_text_that_the_engine_fails_on_aside_harms_its_own_job_alone(worker: Worker, queue: Queue) -> None:
    bad, good = (put(queue, text, lane="bulk", reply_to="bulk") for text in ("rain " * 7, "storm"))
    assert drive(worker) == 2
    found = replies(queue, "bulk")
    assert (code(found[bad.id]), found[good.id].error) == ("internal", None)
