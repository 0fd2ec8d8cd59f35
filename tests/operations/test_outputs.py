"""Embeds with several outputs, and with outputs that a model lacks, by a worker."""

import json
import shutil
from pathlib import Path
from typing import Any

import asking
import numpy as np
import pytest
from asking import error, vectors
from numpy.typing import NDArray
from queues import Queue
from safetensors.numpy import load_file, save_file

from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.operations import Embed
from shoal.queue.consumer import Consumer
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.worker import Worker
from shoal_workers.model.prepare import prepare
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
    """The tiny transformer as a late-interaction model of Stanford's form."""
    folder = tmp_path_factory.mktemp("late")
    (folder / "model").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_source / name, folder / "model")
    config = json.loads((tiny_source / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "model/config.json").write_text(json.dumps(config))
    (folder / "model/artifact.metadata").write_text(json.dumps({"query_maxlen": 10}))
    weights = load_file(tiny_source / "model.safetensors") | {"linear.weight": tensors["colbert"]}
    tokenizer = (folder / "model/tokenizer.json").read_text()
    assert '"z"' in tokenizer
    (folder / "model/tokenizer.json").write_text(tokenizer.replace('"z"', '"[MASK]"'))
    save_file(weights, folder / "model/model.safetensors", {"format": "pt"})
    prepare("late", folder / "model", folder / "prepared")
    return Encoder.open(folder / "prepared", "openvino", "f32", 1)


def ask(queue: Queue, encoder: Encoder, *jobs: Embed, **limits: Any) -> list[Reply]:
    """Return the replies to the jobs, which a worker computes together."""
    return asking.ask(Worker(Consumer(queue.broker, queue.keys, "w", **limits), encoder, {}, Bucketing(4_096)), *jobs)


def embed(*texts: str, **options: Any) -> Embed:
    return Embed(list(texts), Options(**options))


def test_one_pass_makes_every_output_of_its_jobs(queue: Queue, of_three: Encoder) -> None:
    texts = ("storm in europe", "", "the market rises and falls")
    jobs = [embed(*texts, output=ALL, dimensions=5), embed(*texts), embed(*texts, output="tokens")]
    jobs += [embed(*texts, output="multivector", normalize=False), embed(*texts, output="sparse")]
    jobs += [embed(*texts, output="chunks", chunk_tokens=5)]
    whole, plain, tokens, raw, sparse, chunks = ask(queue, of_three, *jobs)
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
    assert not len(whole.sparse[1].indices)  # only special tokens
    assert (sparse.vectors, raw.vectors, plain.sparse, plain.multivectors) == (None, None, None, None)
    alone = of_three.encoded(texts[:1], Options(output="sparse"), "")[0].made["sparse"]
    np.testing.assert_allclose(whole.sparse[0].values, alone.values, atol=1e-5)


def test_outputs_that_a_model_lacks_are_unsupported(queue: Queue, late: Encoder, encoder: Encoder) -> None:
    (vector, sparse) = ask(queue, late, embed("storm"), embed("storm", output=["sparse", "multivector"]))
    for reply, word in ((vector, "vector"), (sparse, "sparse")):
        assert error(reply).code == "unsupported"
        assert f"output is {word}: late makes only multivector" in error(reply).message
    (reply,) = ask(queue, encoder, embed("storm", output="multivector"))
    assert "makes only vector, tokens, chunks" in error(reply).message


def test_queries_and_documents_of_a_late_interaction_model_are_read_in_their_own_form(
    queue: Queue, late: Encoder
) -> None:
    many = "storm " * 30
    jobs = [embed(many, "rain", output="multivector", prompt_name=name) for name in ("query", "document")]
    jobs += [embed(many, output="multivector", prompt_name=name, truncate=False) for name in ("query", "document")]
    query, document, long, whole = ask(queue, late, *jobs)
    assert query.multivectors is not None
    assert document.multivectors is not None
    assert [len(rows) for rows in query.multivectors] == query.tokens == [10, 10]
    assert document.tokens[0] > 30
    assert (query.truncated, document.truncated) == ([True, False], [False, False])
    assert "has more than the 10 tokens of the model's context length" in error(long).message  # read by cognee
    assert whole.error is None


def test_vectors_of_tokens_are_bounded_by_the_bytes_of_a_reply(queue: Queue, of_three: Encoder) -> None:
    jobs = [embed(*["storm " * 40] * count, output=ALL) for count in (1, 3)]
    few, many = ask(queue, of_three, *jobs, max_reply_bytes=4 * 32 * 30)  # vectors of tokens have 8 numbers
    assert few.multivectors is not None
    assert error(many).code == "too_large"
    assert "a reply has room for the vectors of 120" in error(many).message


def test_weights_of_words_are_bounded_by_the_bytes_of_a_reply(queue: Queue, of_three: Encoder) -> None:
    texts = [f"{n} " + "storm " * 100 for n in range(300)]  # several passes
    (many,) = ask(queue, of_three, embed(*texts, output="sparse"), max_reply_bytes=512)
    assert error(many).code == "too_large"
    assert "weights of words, and a reply has room for 64" in error(many).message


def test_workers_tell_their_outputs_and_cache_vectors_alone(queue: Queue, late: Encoder, of_three: Encoder) -> None:
    worker = Worker(queue.consumer(), of_three, {}, Bucketing(4_096))
    assert about(worker)["outputs"] == ["vector", "tokens", "chunks", "sparse", "multivector"]
    assert open_cache(Settings(), late, queue.broker) is None
    assert open_cache(Settings(), of_three, queue.broker) is not None
