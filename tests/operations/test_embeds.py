"""Embeds by a worker: several outputs in one pass, outputs that a model lacks, truncated texts, and chunks."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import late_model
import numpy as np
import pytest
from asking import ask, error, vectors
from conftest import WORDS
from numpy.typing import NDArray
from passes import Noting
from queues import Queue, step_while
from safetensors.numpy import save_file

from shoal.cache.cache import Cache, Table
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, TooLarge
from shoal.operations import Embed
from shoal.queue.consumer import Consumer
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.chunking import PIECE_CHUNKS
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.tokenizer import MAX_CHARS_PER_TOKEN
from shoal_workers.loop.scheduler import ENOUGH_CHUNK_CHARS
from shoal_workers.loop.worker import Worker
from shoal_workers.model.prepare import prepare
from shoal_workers.operations.embed import ChunksWork
from shoal_workers.service.service import about, open_cache

ALL = ["vector", "sparse", "multivector"]


@pytest.fixture(scope="module")
def tensors() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(7)
    return {name: random.normal(0, 1, (rows, 32)).astype(np.float32) for name, rows in (("sparse", 1), ("colbert", 8))}


@pytest.fixture(scope="module")
def of_three(
    tiny_source: Path, tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, NDArray[np.float32]]
) -> Encoder:
    """The tiny model with the heads of BGE-M3."""
    folder = tmp_path_factory.mktemp("three")
    source = shutil.copytree(tiny_source, folder / "model")
    for name, weights in tensors.items():
        save_file(
            {"weight": weights, "bias": np.zeros(len(weights), np.float32)}, source / f"{name}_linear.safetensors"
        )
    prepare("three", source, folder / "prepared")
    return Encoder.open(folder / "prepared", "openvino", "f32", 1)


@pytest.fixture(scope="module")
def late(
    tiny_source: Path, tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, NDArray[np.float32]]
) -> Encoder:
    """The tiny transformer as a late-interaction model."""
    folder = tmp_path_factory.mktemp("late")
    late_model.save(folder / "model", tiny_source)
    prepare("late", folder / "model", folder / "prepared")
    return Encoder.open(folder / "prepared", "openvino", "f32", 1)


def computed(queue: Queue, encoder: Encoder, *jobs: Embed, **limits: Any) -> list[Reply]:
    """Return the replies to the jobs, which a worker computes together."""
    return ask(Worker(Consumer(queue.broker, queue.keys, "w", **limits), encoder, {}, Bucketing(4_096)), *jobs)


def job(*texts: str, **options: Any) -> Embed:
    return Embed(list(texts), Options(**options))


def test_one_pass_makes_every_output_of_its_jobs(queue: Queue, of_three: Encoder) -> None:
    texts = ("storm in europe", "", "the market rises and falls")
    jobs = [job(*texts, output=ALL, dimensions=5), job(*texts), job(*texts, output="tokens")]
    jobs += [job(*texts, output="multivector", normalize=False), job(*texts, output="sparse")]
    jobs += [job(*texts, output="chunks", chunk_tokens=5)]
    whole, plain, tokens, raw, sparse, chunks = computed(queue, of_three, *jobs)
    assert chunks.chunks is not None
    assert [len(rows) for rows in chunks.rows_by_text()] == [len(cut) for cut in chunks.chunks]
    assert raw.multivectors is not None
    assert whole.multivectors is not None
    assert vectors(whole).shape == (3, 5)
    np.testing.assert_allclose(vectors(plain), of_three.embed(texts, Options(), ""), atol=1e-5)
    assert [len(rows) for rows in whole.multivectors] == [count - 1 for count in tokens.tokens]
    for one, other in zip(whole.multivectors, raw.multivectors, strict=True):
        assert np.linalg.norm(other, axis=1) != pytest.approx(1, abs=0.01)
        np.testing.assert_allclose(one, other / np.linalg.norm(other, axis=1, keepdims=True), atol=1e-5)
    assert whole.sparse is not None
    assert sparse.sparse is not None
    for weights, same in zip(whole.sparse, sparse.sparse, strict=True):
        np.testing.assert_allclose(weights.values, same.values, atol=1e-5)
        assert weights.indices.tolist() == same.indices.tolist()
    assert not len(whole.sparse[1].indices)  # an empty text has only special tokens
    assert (sparse.vectors, raw.vectors, plain.sparse, plain.multivectors) == (None, None, None, None)
    alone = of_three.encoded(texts[:1], Options(output="sparse"), "")[0].made["sparse"]
    np.testing.assert_allclose(whole.sparse[0].values, alone.values, atol=1e-5)


def test_outputs_that_a_model_lacks_are_unsupported(queue: Queue, late: Encoder, encoder: Encoder) -> None:
    (vector, sparse) = computed(queue, late, job("storm"), job("storm", output=["sparse", "multivector"]))
    for reply, word in ((vector, "vector"), (sparse, "sparse")):
        assert error(reply).code == "unsupported"
        assert f"output is {word}: late makes only multivector" in error(reply).message
    (reply,) = computed(queue, encoder, job("storm", output="multivector"))
    assert "makes only vector, tokens, chunks" in error(reply).message


def test_queries_and_documents_of_a_late_interaction_model_are_read_in_their_own_form(
    queue: Queue, late: Encoder
) -> None:
    many = "storm " * 30
    jobs = [job(many, "rain", output="multivector", prompt_name=name) for name in ("query", "document")]
    jobs += [job(many, output="multivector", prompt_name=name, truncate=False) for name in ("query", "document")]
    query, document, long, whole = computed(queue, late, *jobs)
    assert query.multivectors is not None
    assert document.multivectors is not None
    assert [len(rows) for rows in query.multivectors] == query.tokens == [late_model.QUERY_TOKENS] * 2
    assert document.tokens[0] > 30
    assert (query.truncated, document.truncated) == ([True, False], [False, False])
    assert (
        f"has more than the {late_model.QUERY_TOKENS} tokens of the model's context length" in error(long).message
    )  # cognee reads this text
    assert whole.error is None


def test_vectors_of_tokens_and_weights_of_words_are_bounded_by_the_bytes_of_a_reply(
    queue: Queue, of_three: Encoder
) -> None:
    jobs = [job(*["storm " * 40] * count, output=ALL) for count in (1, 3)]
    few, many = computed(queue, of_three, *jobs, max_reply_bytes=4 * 32 * 30)  # vectors of tokens have 8 numbers
    assert few.multivectors is not None
    texts = [f"{n} " + "storm " * 100 for n in range(300)]  # the job needs several passes
    (weights,) = computed(queue, of_three, job(*texts, output="sparse"), max_reply_bytes=512)
    for reply, room in ((many, "the vectors of 120"), (weights, "64")):
        assert error(reply).code == "too_large"
        assert f"a reply has room for {room} (SHOAL_MAX_REPLY_MB)" in error(reply).message


def test_workers_tell_their_outputs_and_cache_vectors_alone(queue: Queue, late: Encoder, of_three: Encoder) -> None:
    worker = Worker(queue.consumer(), of_three, {}, Bucketing(4_096))
    assert about(worker)["outputs"] == ["vector", "tokens", "chunks", "sparse", "multivector"]
    assert open_cache(Settings(), late, queue.broker) is None
    assert open_cache(Settings(), of_three, queue.broker) is not None


@pytest.fixture
def worker(queue: Queue, encoder: Encoder) -> Worker:
    """The worker of the tiny model, which reads at most 48 tokens."""
    return Worker(queue.consumer(), encoder, {}, Bucketing(256))


def embed(worker: Worker, *texts: str, **options: Any) -> Reply:
    (reply,) = ask(worker, Embed(list(texts), Options(**options)))
    return reply


def words(num_words: int) -> str:
    """Return a text of `num_words` words. Each word is a token."""
    return " ".join(WORDS[n % len(WORDS)] for n in range(num_words))


class TestTruncated:
    def test_a_reply_says_how_much_of_each_text_was_read(self, worker: Worker) -> None:
        whole, spaced = words(46), words(60).replace(" ", "  ")
        texts = [whole, words(47), words(47) + "  ", "", "z" * 3_000, words(3) + "\r\n", spaced]
        reply = embed(worker, *texts)
        assert reply.truncated == [False, True, True, False, False, False, True]
        assert reply.characters == [*[len(whole)] * 3, 0, 3_000, len(words(3)) + 2, len(whole) + 45]
        np.testing.assert_allclose(vectors(reply)[0], vectors(reply)[1], atol=1e-5)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_the_prompt_does_not_count(self, worker: Worker, side: str) -> None:
        texts = [words(100), words(45), words(46)]
        reply = embed(worker, *texts, prompt_name="query", truncation_side=side)
        kept = [45, 45, 45] if side == "right" else [46, 45, 46]
        parts = [slice(n) if side == "right" else slice(-n, None) for n in kept]
        expected = [len(" ".join(text.split()[part])) for text, part in zip(texts, parts, strict=True)]
        assert (reply.truncated, reply.characters) == ([True, False, True], expected)


TEXT = "The storm hit Europe. Rain falls in the market! Is the climate of Europe in change? The market rises. " * 20


class TestChunked:
    @pytest.mark.parametrize(
        "options", [{"prompt_name": "query"}, {"normalize": False, "dimensions": 7}, {"pooling": "cls"}]
    )
    def test_a_chunk_has_the_vector_of_its_part_and_a_text_the_mean_of_its_chunks_by_their_tokens(
        self, worker: Worker, options: dict[str, Any]
    ) -> None:
        texts, chunked = [TEXT, "storm", "  ", "", TEXT[3:400]], options | {"chunk_tokens": 40, "chunk_overlap": 9}
        reply = embed(worker, *texts, output="chunks", **chunked)
        found = reply.chunks_by_text()
        assert [len(part) > 10 for part in found] == [True, False, False, False, False]
        assert [len(part) for part in found[1:4]] == [1, 1, 1]
        parts = [text[c.start : c.stop] for text, part in zip(texts, found, strict=True) for c in part]
        alone = embed(worker, *parts, **options)
        np.testing.assert_allclose(np.stack([c.vector for part in found for c in part]), vectors(alone), atol=1e-5)
        assert [c.tokens for part in found for c in part] == alone.tokens
        whole = embed(worker, *texts, **chunked)
        assert whole.tokens == reply.tokens == [sum(c.tokens for c in part) for part in found]
        assert (reply.characters, reply.truncated) == ([len(text) for text in texts], [False] * 5)
        weighed = [([c.vector for c in part], [c.tokens for c in part]) for part in found]
        means = np.stack([np.average(rows, axis=0, weights=tokens) for rows, tokens in weighed])
        if options.get("normalize", True):
            means /= np.linalg.norm(means, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors(whole), means, atol=1e-5)
        assert whole.chunks is None

    def test_chunks_with_prompt_and_special_tokens_must_fit_into_the_model(self, worker: Worker) -> None:
        joined = "e\u200d" * 3_000  # no chunk ends within this word
        assert embed(worker, f"{joined} storm", "storm", chunk_tokens=10).truncated == [True, False]
        assert embed(worker, TEXT, chunk_tokens=46).error is None
        assert embed(worker, TEXT, chunk_tokens=45, prompt_name="query").error is None
        refused = error(embed(worker, TEXT, chunk_tokens=46, prompt_name="query"))
        assert isinstance(refused, InvalidRequest)
        assert "takes 48 tokens, 3 of them for special tokens and the prompt, so it takes at most 45" in refused.message

    def test_more_chunks_than_a_reply_has_room_for_are_refused(self, queue: Queue, encoder: Encoder) -> None:
        consumer = Consumer(queue.broker, queue.keys, "w", max_reply_bytes=4 * 32 * 20)
        worker = Worker(consumer, encoder, {}, Bucketing(256))
        refused = error(embed(worker, TEXT, output="chunks", chunk_tokens=10))
        assert isinstance(refused, TooLarge)
        assert "more chunks of 10 tokens than the 20 for whose vectors a reply has room" in refused.message
        assert vectors(embed(worker, TEXT, chunk_tokens=10)).shape == (1, 32)

    @pytest.mark.parametrize("text", [TEXT * 200, "storm " * 50_000])
    def test_a_long_text_lets_other_jobs_go_first_and_is_cut_little_by_little_until_its_deadline(
        self, queue: Queue, encoder: Encoder, text: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = Worker(queue.consumer(), engine := Noting(encoder), {}, Bucketing(256))
        long = Embed([text], Options(chunk_tokens=46), reply_to="me", deadline=time.time() + 3_600)
        queue.put("interactive", [long])
        assert queue.loads()["interactive"].num_texts == long.num_lane_texts > 1_000
        worker.step(block_s=0)
        (work,) = worker.scheduler.works
        assert isinstance(work, ChunksWork)
        for n in range(3):
            before, num_passes = work._place[0], len(engine.passes)
            queue.put("interactive", [short := Embed([f"rain {n}"], reply_to="me")])
            for _ in range(3):
                worker.step(block_s=0)
            answered = {reply.id for reply in queue.inbox("me").wait()}
            assert (short.id in answered, long.id in answered) == (True, False)
            piece_chars = PIECE_CHUNKS * MAX_CHARS_PER_TOKEN * 46
            assert 0 < work._place[0] - before <= 3 * (ENOUGH_CHUNK_CHARS + piece_chars)
            assert len(engine.passes) <= num_passes + 3
        assert work.num_waiting < long.num_lane_texts
        assert len(work.tokenized) < long.num_lane_texts / 4
        num_passes = len(engine.passes)
        monkeypatch.setattr(worker.clock, "now", lambda: time.time() + 7_200)
        worker.step(block_s=0)
        reply = queue.inbox("me").wait()[-1]
        assert (reply.id, reply.status) == (long.id, "expired")
        assert (len(engine.passes), len(worker.scheduler.works)) == (num_passes, 0)

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

    def test_a_chunk_that_the_engine_fails_on_harms_only_its_own_job(self, queue: Queue, encoder: Encoder) -> None:
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
