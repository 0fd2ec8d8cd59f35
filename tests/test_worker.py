"""One worker, stepped by hand: what it batches, what it refuses, and what it leaves to others."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from shoal.errors import Internal
from shoal.jobs import LANES, Job, Options
from shoal.queue import Queue
from shoal.replies import Reply
from shoal_workers.batcher import Batcher
from shoal_workers.encoder import Encoder, Row
from shoal_workers.index import Index
from shoal_workers.worker import BULK_EVERY, MAX_DELIVERIES, Limits, Worker


class Engine(Encoder):
    """The real encoder, which counts its passes and fails on the text `poison`."""

    def __init__(self, encoder: Encoder):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        self.passes: list[int] = []
        (self.poison,) = encoder.tokenizer.encode(["poison"])

    def encode(self, rows: Sequence[Row]) -> None:
        self.passes.append(len(rows))
        if any(row.tokens.ids == self.poison.ids for row in rows):
            raise RuntimeError("the engine chokes")
        super().encode(rows)


@pytest.fixture
def engine(encoder: Encoder) -> Engine:
    """An encoder that can fail."""
    return Engine(encoder)


@pytest.fixture
def worker(queue: Queue, engine: Engine, index: Index) -> Worker:
    """A worker with that encoder, and small limits."""
    limits = Limits(max_job_texts=100, max_text_chars=10_000)
    return Worker(queue, engine, {"default": index}, Batcher(4_096), limits)


def put(queue: Queue, *texts: str, lane: str = "interactive", reply_to: str | None = "me", **fields: Any) -> Job:
    """Puts an embed job of the texts."""
    job = Job("embed", list(texts), reply_to=reply_to, **fields)
    queue.put(lane, [job])
    return job


def replies(queue: Queue, address: str = "me") -> dict[str, Reply]:
    """The replies that have come, by job id."""
    return {reply.id: reply for reply in queue.wait_replies(address)}


def code(reply: Reply | None) -> str:
    """The error code of a reply."""
    assert reply is not None
    assert reply.error is not None
    return reply.error.code


def dead_letters(queue: Queue) -> list[dict[bytes, bytes]]:
    """The jobs that could not be answered, with the reasons."""
    return [letter for _, letter in queue.redis.xrange(queue.keys.dead)]


def test_an_idle_step_does_nothing(worker: Worker) -> None:
    assert worker.step(block_s=0) == 0
    assert worker.step(block_s=0.01) == 0


def test_jobs_that_wait_together_run_in_one_pass(worker: Worker, queue: Queue, engine: Engine) -> None:
    jobs = [put(queue, f"storm {n}") for n in range(10)]
    assert worker.step(block_s=0) == 10
    assert engine.passes == [10]
    assert list(replies(queue)) == [job.id for job in jobs]


def test_texts_that_repeat_share_a_row(worker: Worker, queue: Queue, engine: Engine) -> None:
    short = Options(dimensions=4)
    jobs = [put(queue, "storm", "rain", "storm"), put(queue, "rain"), put(queue, "storm", options=short)]
    worker.step(block_s=0)
    assert engine.passes == [2]
    found = replies(queue)
    first, second, third = (found[job.id].vectors for job in jobs)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first[0] == first[2]).all()
    assert (first[1] == second[0]).all()
    assert third.shape == (1, 4)


def test_jobs_of_other_options_keep_to_themselves(worker: Worker, queue: Queue, engine: Engine) -> None:
    jobs = [put(queue, "storm rain", options=Options(pooling=pooling)) for pooling in ("mean", "max", "cls")]
    worker.step(block_s=0)
    assert engine.passes == [3]
    vectors = [replies_of.vectors.tobytes() for replies_of in replies(queue).values() if replies_of.vectors is not None]
    assert len(set(vectors)) == len(jobs)


def test_expired_and_cancelled_jobs_are_not_computed(worker: Worker, queue: Queue, engine: Engine) -> None:
    late = put(queue, "storm", deadline=time.time() - 1)
    cancelled = put(queue, "rain", reply_to=None)
    queue.cancel(cancelled.id)
    late_submitted = put(queue, "storm", reply_to=None, deadline=0.0)
    worker.step(block_s=0)
    assert engine.passes == []
    assert code(replies(queue)[late.id]) == "expired"
    assert queue.status(late_submitted.id)[0] == "expired"
    assert code(queue.wait_result(cancelled.id, 0)) == "cancelled"


def test_a_text_the_engine_fails_on_harms_only_its_own_job(
    worker: Worker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = put(queue, "storm", "poison"), [put(queue, f"storm {n}") for n in range(5)]
    assert worker.step(block_s=0) == 6
    found = replies(queue)
    assert isinstance(found[bad.id].error, Internal)
    assert "failed on text 1" in str(found[bad.id].error)
    assert all(found[job.id].vectors is not None for job in good)
    assert "the engine chokes" in caplog.text


def test_a_search_and_an_embedding_share_a_pass(worker: Worker, queue: Queue, engine: Engine, index: Index) -> None:
    search = Job("search", ["europe"], k=3, reply_to="me")
    queue.put("interactive", [search])
    embedding = put(queue, "europe", options=Options(prompt_name="query"))
    worker.step(block_s=0)
    found = replies(queue)
    assert engine.passes == [1]
    vectors = found[embedding.id].vectors
    assert vectors is not None
    assert found[search.id].hits == index.search(vectors, 3)
    assert found[search.id].vectors is None


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job("search", ["storm"], index="other", reply_to="me"), "unknown_index"),
        (Job("embed", ["storm"] * 101, reply_to="me"), "too_large"),
        (Job("embed", ["fine", "x" * 10_001], reply_to="me"), "too_large"),
        (Job("embed", ["storm"], Options(prompt_name="none"), reply_to="me"), "invalid_request"),
        (Job("embed", ["storm"], Options(dimensions=33), reply_to="me"), "invalid_request"),
        (Job("embed", ["storm " * 60], Options(truncate=False), reply_to="me"), "text_too_long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_served_is_refused(
    worker: Worker, queue: Queue, engine: Engine, job: Job, expected: str
) -> None:
    queue.put("interactive", [job])
    worker.step(block_s=0)
    assert code(replies(queue)[job.id]) == expected
    assert engine.passes == []
    assert queue.backlog()["interactive"] == 0


def test_what_a_killed_worker_left_is_done_by_another(worker: Worker, queue: Queue) -> None:
    jobs = [put(queue, f"storm {n}") for n in range(3)]
    assert len(queue.take("killed", LANES, 3)) == 3
    assert [worker.step(block_s=0) for _ in range(4)] == [1, 1, 1, 0]
    assert set(replies(queue)) == {job.id for job in jobs}


def test_a_living_worker_keeps_its_jobs(worker: Worker, queue: Queue) -> None:
    put(queue, "storm")
    queue.take("alive", LANES, 1)
    worker.pool.announce("alive", {})
    assert worker.step(block_s=0) == 0


def test_a_job_that_kills_its_workers_becomes_a_dead_letter_alone(worker: Worker, queue: Queue, engine: Engine) -> None:
    poison, neighbour = put(queue, "storm", reply_to=None), put(queue, "rain")
    for n in range(MAX_DELIVERIES):
        consumer = f"killed{n}"
        assert queue.claim(consumer, {consumer}) or queue.take(consumer, LANES, 1)
    assert [worker.step(block_s=0) for _ in range(2)] == [0, 1]
    assert engine.passes == [1]
    assert code(queue.wait_result(poison.id, 0)) == "poisoned"
    (letter,) = dead_letters(queue)
    assert letter[b"reason"].startswith(b"poisoned: delivered 3 times")
    assert replies(queue)[neighbour.id].error is None


def test_interactive_jobs_go_first_and_bulk_fills_up(worker: Worker, queue: Queue) -> None:
    for n in range(4):
        put(queue, *(f"bulk {n} {m}" for m in range(Limits().max_batch_texts // 2)), lane="bulk", reply_to="bulk")
    put(queue, "storm")
    worker.step(block_s=0)
    assert len(replies(queue)) == 1
    assert len(replies(queue, "bulk")) == 2
    assert queue.backlog() == {"interactive": 0, "bulk": 2}


def test_under_constant_load_bulk_still_gets_a_share(worker: Worker, queue: Queue) -> None:
    put(queue, "bulk", lane="bulk", reply_to="bulk")
    steps = 0
    while not replies(queue, "bulk"):
        put(queue, *(f"storm {n}" for n in range(Limits().max_batch_texts)))
        worker.step(block_s=0)
        steps += 1
    assert 1 < steps <= BULK_EVERY


def test_a_worker_can_wait_for_its_batch_to_fill(queue: Queue, engine: Engine) -> None:
    worker = Worker(queue, engine, {}, Batcher(4_096), Limits(max_batch_wait_s=0.05))
    put(queue, "storm")
    assert worker.step(block_s=0) == 1
    assert engine.passes == [1]


def test_each_reply_says_what_it_cost(worker: Worker, queue: Queue) -> None:
    job = put(queue, "storm", "storm " * 60)
    worker.step(block_s=0)
    reply = replies(queue)[job.id]
    assert (reply.tokens, reply.truncated) == ([3, 48], [False, True])
    assert set(reply.timings) == {"queue_s", "tokenize_s", "encode_s", "search_s"}
    assert all(seconds >= 0 for seconds in reply.timings.values())
    assert worker.counters["tokens"] == 51
    assert worker.counters["jobs"] == 1
