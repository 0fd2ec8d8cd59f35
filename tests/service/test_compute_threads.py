"""A new number of compute threads: engines are made in the background, and replace the old ones between two passes."""

import threading
from collections.abc import Sequence
from copy import copy

import numpy as np
import pytest
from queues import Queue, drive
from test_aside import Engine as HeldEncoder
from test_worker import distinct, put

import shoal_workers.loop.batch
from shoal.contract.options import Options
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.loop.worker import Worker
from shoal_workers.service.compute_threads import Resizing

TEXTS = ["storm in europe", "rain", "the market falls " * 20]


def own(encoder: Encoder) -> Encoder:
    return type(encoder)(encoder.model, encoder.tokenizer, encoder.engine)


def resized(encoders: Sequence[Encoder], threads: int, noted: list[int] | None = None) -> Resizing:
    """Make new engines that are not used yet; `noted` gets the number of threads for searches."""
    resizing = Resizing(encoders[0].engine.threads, encoders, (noted if noted is not None else []).append)
    resizing.start(threads)
    resizing.close()
    return resizing


def test_all_models_and_the_searches_get_the_threads(encoder: Encoder, reranker: Reranker) -> None:
    encoders = [own(encoder), own(reranker)]
    noted: list[int] = []
    resizing = resized(encoders, 2, noted)
    assert [(one.engine.threads, one.runs_aside) for one in encoders] == [(1, False)] * 2
    resizing.take()
    assert [(one.engine.threads, one.runs_aside) for one in encoders] == [(2, True)] * 2
    assert noted == [2]
    vectors = encoders[0].embed(TEXTS, Options(), "")
    assert vectors == pytest.approx(encoder.embed(TEXTS, Options(), ""), abs=1e-6)
    assert encoders[0].fingerprint == encoder.fingerprint


def test_an_engine_can_be_resized_while_it_computes(encoder_of_two_threads: Encoder) -> None:
    one = own(encoder_of_two_threads)
    expected = one.embed(TEXTS, Options(), "")
    resizing = Resizing(2, [one], lambda _: None)
    resizing.start(2)  # the same number
    resizing.take()
    assert one.engine is encoder_of_two_threads.engine
    for threads in (1, 3):
        resizing.start(threads)
        assert np.array_equal(one.embed(TEXTS, Options(), ""), expected)
        resizing.close()
    resizing.take()
    assert one.engine.threads == 3  # the engine of the last resize is used


def test_a_failed_resize(encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no memory")

    one = own(encoder)
    one.engine = engine = copy(encoder.engine)
    monkeypatch.setattr(engine, "resized", fail)
    resizing = resized([one], 2)
    resizing.start(2)  # the same number is not tried again
    monkeypatch.setattr(threading.Thread, "start", fail)
    resizing.start(3)
    resizing.take()
    assert one.engine is engine
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"the worker keeps its compute threads, as engines with {threads} threads failed: no memory"
        for threads in (2, 3)
    ]


def test_a_pass_delays_a_resize(queue: Queue, encoder_of_two_threads: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal_workers.loop.batch, "WAIT_FROM_S", 3_600.0)
    held = HeldEncoder(encoder_of_two_threads)
    resizing = Resizing(2, [held], lambda _: None)
    worker = Worker(queue.consumer(), held, {}, Bucketing(480), before_pass=resizing.take)
    held.released.clear()
    put(queue, *distinct(40), lane="bulk")
    worker.step(block_s=0)
    resizing.start(1)
    resizing.close()
    worker.step(block_s=0)
    assert held.engine.threads == 2  # a pass aside is still under way
    held.released.set()
    drive(worker)
    assert held.engine.threads == 1
