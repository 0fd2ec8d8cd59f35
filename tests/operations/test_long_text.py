"""A worker cuts long texts on either side, or into chunks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from asking import ask, error, vectors
from passes import Noting
from queues import Queue, drive, step_while

from shoal.cache.cache import Cache, Table
from shoal.contract.options import Options
from shoal.contract.replies import Chunk, Reply
from shoal.errors import InvalidRequest, TooLarge
from shoal.operations import Embed
from shoal.queue.consumer import Consumer
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.chunking import PIECE_CHUNKS
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.tokenizer import MAX_CHARS_PER_TOKEN
from shoal_workers.loop.scheduler import ENOUGH_CHUNK_CHARS
from shoal_workers.loop.worker import Worker
from shoal_workers.operations.embed import ChunksWork

WORDS = ["storm", "europe", "climate", "change", "rain", "market", "falls", "rises"]


@pytest.fixture
def worker(queue: Queue, encoder: Encoder) -> Worker:
    """Return a worker with the tiny model, which reads at most 48 tokens."""
    return Worker(queue.consumer(), encoder, {}, Bucketing(256))


def embed(worker: Worker, *texts: str, **options: Any) -> Reply:
    (reply,) = ask(worker, Embed(list(texts), Options(**options)))
    return reply


def words(num_words: int) -> str:
    """Return a text of `num_words` words. Each word is a token."""
    return " ".join(WORDS[n % len(WORDS)] for n in range(num_words))


class TestTruncated:
    def test_a_reply_says_how_much_of_each_text_was_read(self, worker: Worker) -> None:
        texts = [words(46), words(47), words(47) + "  ", "", "z" * 3_000, words(3) + "\r\n"]
        reply = embed(worker, *texts)
        assert reply.truncated == [False, True, True, False, False, False]
        assert reply.characters == [len(words(46)), len(words(46)), len(words(46)), 0, 3_000, len(words(3)) + 2]

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_the_prompt_does_not_count(self, worker: Worker, side: str) -> None:
        texts = [words(100), words(45), words(46)]
        reply = embed(worker, *texts, prompt_name="query", truncation_side=side)
        kept = [45, 45, 45] if side == "right" else [46, 45, 46]
        expected = [
            text.split()[:n] if side == "right" else text.split()[-n:] for text, n in zip(texts, kept, strict=True)
        ]
        assert reply.truncated == [True, False, True]
        assert reply.characters == [len(" ".join(part)) for part in expected]

    def test_texts_that_are_cut_to_the_same_tokens_have_their_own_numbers_of_characters(self, worker: Worker) -> None:
        whole, cut, spaced = words(46), words(60), words(60).replace(" ", "  ")
        reply = embed(worker, whole, cut, spaced)
        assert reply.truncated == [False, True, True]
        assert reply.characters == [len(whole), len(whole), len(whole) + 45]
        np.testing.assert_allclose(vectors(reply)[0], vectors(reply)[1], atol=1e-5)


def chunks_of(reply: Reply) -> list[list[Chunk]]:
    assert reply.error is None, reply.error
    return reply.chunks_by_text()


TEXT = "The storm hit Europe. Rain falls in the market! Is the climate of Europe in change? The market rises. " * 20


class TestChunked:
    @pytest.mark.parametrize("options", [{"prompt_name": "query"}, {"normalize": False, "dimensions": 7}])
    def test_a_chunk_has_the_vector_of_its_part_of_the_text(self, worker: Worker, options: dict[str, Any]) -> None:
        texts = [TEXT, "storm", "", TEXT[3:400]]
        reply = embed(worker, *texts, output="chunks", chunk_tokens=40, chunk_overlap=9, **options)
        found = chunks_of(reply)
        assert [len(part) > 10 for part in found] == [True, False, False, False]
        assert [len(part) for part in found[1:3]] == [1, 1]
        parts = [text[c.start : c.stop] for text, part in zip(texts, found, strict=True) for c in part]
        alone = embed(worker, *parts, **options)
        np.testing.assert_allclose(np.stack([c.vector for part in found for c in part]), vectors(alone), atol=1e-5)
        assert [c.tokens for part in found for c in part] == alone.tokens
        assert reply.tokens == [sum(c.tokens for c in part) for part in found]
        assert (reply.characters, reply.truncated) == ([len(text) for text in texts], [False] * 4)

    @pytest.mark.parametrize("options", [{"dimensions": 7}, {"normalize": False, "pooling": "cls"}])
    def test_one_vector_is_the_mean_of_the_chunks_by_their_tokens(
        self, worker: Worker, options: dict[str, Any]
    ) -> None:
        texts = [TEXT, "storm in europe", "  ", TEXT[:300]]
        options |= {"chunk_tokens": 30}
        found = chunks_of(embed(worker, *texts, output="chunks", **options))
        means = np.stack(
            [np.average([c.vector for c in part], axis=0, weights=[c.tokens for c in part]) for part in found]
        )
        if options.get("normalize", True):
            means /= np.linalg.norm(means, axis=1, keepdims=True)
        reply = embed(worker, *texts, **options)
        np.testing.assert_allclose(vectors(reply), means, atol=1e-5)
        assert reply.tokens == [sum(c.tokens for c in part) for part in found]
        assert reply.chunks is None

    def test_a_text_is_truncated_if_any_of_its_chunks_is(self, worker: Worker) -> None:
        joined = "e\u200d" * 3_000  # no chunk ends within it
        assert embed(worker, f"{joined} storm", "storm", chunk_tokens=10).truncated == [True, False]

    def test_chunks_with_prompt_and_special_tokens_must_fit_into_the_model(self, worker: Worker) -> None:
        assert embed(worker, TEXT, chunk_tokens=46).error is None
        assert embed(worker, TEXT, chunk_tokens=45, prompt_name="query").error is None
        refused = error(embed(worker, TEXT, chunk_tokens=46, prompt_name="query"))
        assert isinstance(refused, InvalidRequest)
        assert "takes 48 tokens, 3 of them special ones and the prompt's, so it takes at most 45" in refused.message

    def test_more_chunks_than_a_reply_has_room_for_are_refused(self, queue: Queue, encoder: Encoder) -> None:
        consumer = Consumer(queue.broker, queue.keys, "w", max_reply_bytes=4 * 32 * 20)
        worker = Worker(consumer, encoder, {}, Bucketing(256))
        refused = error(embed(worker, TEXT, output="chunks", chunk_tokens=10))
        assert isinstance(refused, TooLarge)
        assert "more chunks of 10 tokens than the 20 for whose vectors a reply has room" in refused.message
        assert vectors(embed(worker, TEXT, chunk_tokens=10)).shape == (1, 32)

    def test_a_long_text_lets_other_jobs_go_first_and_is_read_piece_by_piece(
        self, queue: Queue, encoder: Encoder
    ) -> None:
        worker = Worker(queue.consumer(), engine := Noting(encoder), {}, Bucketing(256))
        long = Embed([TEXT * 200], Options(chunk_tokens=46), reply_to="me")
        queue.put("interactive", [long])
        assert queue.loads()["interactive"].num_texts == long.num_lane_texts > 2_000
        worker.step(block_s=0)
        (work,) = worker.scheduler.works
        short = Embed(["storm"], reply_to="me")
        queue.put("interactive", [short])
        num_passes = len(engine.passes)
        for _ in range(3):
            worker.step(block_s=0)
        assert [reply.id for reply in queue.inbox("me").wait()] == [short.id]
        assert len(engine.passes) <= num_passes + 3
        assert isinstance(work, ChunksWork)
        assert work.num_waiting < long.num_lane_texts
        assert len(work.tokenized) < long.num_lane_texts / 4
        worker.scheduler.works.clear()

    def test_a_text_that_repeats_itself_is_cut_little_by_little(self, worker: Worker, queue: Queue) -> None:
        long = Embed(["storm " * 50_000], Options(chunk_tokens=46), reply_to="me")
        queue.put("interactive", [long])
        piece_chars = PIECE_CHUNKS * MAX_CHARS_PER_TOKEN * 46
        worker.step(block_s=0)
        (work,) = worker.scheduler.works
        assert isinstance(work, ChunksWork)
        for n in range(3):
            before, _ = work._place
            queue.put("interactive", [short := Embed([f"rain {n}"], reply_to="me")])
            for _ in range(3):
                worker.step(block_s=0)
            assert short.id in [reply.id for reply in queue.inbox("me").wait()]
            assert 0 < work._place[0] - before <= 3 * (ENOUGH_CHUNK_CHARS + piece_chars)
        worker.scheduler.works.clear()

    def test_jobs_of_the_same_lane_take_turns_with_a_long_text(self, queue: Queue, encoder: Encoder) -> None:
        worker = Worker(queue.consumer(), engine := Noting(encoder), {}, Bucketing(256))
        long = [Embed([TEXT * 100], Options(chunk_tokens=46), reply_to="me") for _ in range(2)]
        short = Embed([f"storm {n}" for n in range(40)], reply_to="me")
        for n, job in enumerate([*long, short]):
            queue.put("bulk", [job], client=f"client {n}")
        step_while(worker, lambda: not worker.counters["jobs"])
        assert [reply.id for reply in queue.inbox("me").wait()] == [short.id]
        assert len(engine.passes) < 20
        assert all(0 < work.num_waiting < long[0].num_lane_texts for work in worker.scheduler.works)
        worker.scheduler.works.clear()

    def test_a_deadline_ends_a_job_between_its_chunks(self, worker: Worker, queue: Queue) -> None:
        worker.clock.measure()
        job = Embed([TEXT * 200], Options(chunk_tokens=46), reply_to="me", deadline=worker.clock.now() + 0.3)
        queue.put("bulk", [job])
        num_answered = drive(worker)
        (reply,) = queue.inbox("me").wait()
        assert (num_answered, reply.status) == (0, "expired")
        assert 0 < worker.counters["batches"] < job.num_lane_texts / 5

    def test_a_chunk_on_which_the_engine_fails_harms_only_its_own_job(self, queue: Queue, encoder: Encoder) -> None:
        worker = Worker(queue.consumer(), engine := Noting(encoder), {}, Bucketing(256))

        def choke(texts: Sequence[TokenizedText]) -> None:
            if any({*engine.poison.ids} <= {*text.tokens.ids} for text in texts):
                raise RuntimeError("the engine chokes")

        engine.before_pass = choke
        options = Options(chunk_tokens=46)
        bad, good = ask(worker, Embed(["storm", TEXT + "poison. " + TEXT * 50], options), Embed([TEXT], options))
        assert "the engine failed on a chunk of text 1" in error(bad).message
        assert good.error is None
        assert len(engine.passes) < 100

    def test_chunks_are_neither_looked_up_nor_stored(self, queue: Queue, encoder: Encoder) -> None:
        cache = Cache(queue.broker, queue.keys, Table(encoder.model.name, 32, "mean", "print", 1_000, {}, ""))
        worker = Worker(queue.consumer(), encoder, {}, Bucketing(256), cache=cache)
        whole = embed(worker, "storm")
        reply = embed(worker, "storm", TEXT, chunk_tokens=20)
        again = embed(worker, "storm", TEXT)
        assert (whole.cached, reply.cached, again.cached) == (0, 0, 1)
        assert again.truncated == [False, True]

    def test_texts_and_chunks_of_other_jobs_share_passes(self, queue: Queue, encoder: Encoder) -> None:
        worker = Worker(queue.consumer(), engine := Noting(encoder), {}, Bucketing(4_096))
        jobs = [Embed(["storm", TEXT[:500]], Options(chunk_tokens=20)) for _ in range(3)]
        first, second, third, plain = map(vectors, ask(worker, *jobs, Embed(["storm", "rain"])))
        assert len(engine.passes) == 1
        assert first.tobytes() == second.tobytes() == third.tobytes()
        np.testing.assert_allclose(plain[0], first[0], atol=1e-5)
