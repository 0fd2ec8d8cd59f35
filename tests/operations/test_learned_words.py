"""Indexes whose words are the tokens of a model with sparse vectors."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, error, hits, replies
from blocking import ChangeLog
from conftest import WORDS, running
from queues import Queue
from safetensors.numpy import save_file

import shoal.operations.search
from shoal import Client
from shoal.bulk.served_model import served_model
from shoal.cache.cache import Cache, Table
from shoal.contract.options import DOCUMENT_PROMPTS, QUERY_PROMPTS, Options
from shoal.contract.vectors import SparseVector
from shoal.errors import Unsupported
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.queue.lane import LaneLimits
from shoal.records.source import Source
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder, PoolEncoder
from shoal_workers.index.files.manifest import LEXICAL
from shoal_workers.index.index import Index
from shoal_workers.index.long_jobs import MigrateIndex, build_index
from shoal_workers.index.serving.version_opener import VersionOpener
from shoal_workers.index.vectors.exact_search import ONE_THREAD
from shoal_workers.loop.worker import Worker
from shoal_workers.model.model import QueryForm
from shoal_workers.model.prepare import prepare_if_needed
from shoal_workers.service import service
from shoal_workers.service.service import announced

#: The documents of the index, by id.
DOCUMENTS = {str(n): f"{first} {second}" for n, (first, second) in enumerate(pairwise(WORDS))}


@pytest.fixture(scope="module")
def sparse_encoder(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Return the tiny model with a layer for sparse vectors besides its vector, like BGE-M3."""
    folder = tmp_path_factory.mktemp("sparse")
    source = Path(shutil.copytree(tiny_source, folder / "model"))
    draw = np.random.default_rng(3)
    layer = {"weight": draw.normal(0, 1, (1, 32)).astype(np.float32), "bias": np.full(1, 8, np.float32)}
    save_file(layer, source / "sparse_linear.safetensors")
    return Encoder.open(prepare_if_needed(folder / "home", str(source)), "openvino", "f32", 1)


@pytest.fixture(scope="module")
def words_encoder(sparse_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Return the same model without a vector of a text, like SPLADE."""
    prepared = next(path.parent for path in tmp_path_factory.getbasetemp().glob("sparse*/home/models/*/model.json"))
    folder = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("words") / "model"))
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | {"pooling": "", "dimension": 1}))
    return Encoder.open(folder, "openvino", "f32", 1)


def built(folder: Path, encoder: Encoder, language: str | None) -> Index:
    """Build an index of the documents with learned words."""
    lines = "".join(f"{document_id},{text}\n" for document_id, text in DOCUMENTS.items())
    (folder / "texts.csv").write_text("id,text\n" + lines)
    build(Source(folder / "texts.csv"), folder / "index", LocalEncoder(encoder), language=language)
    return Index.open(folder / "index")


@pytest.fixture(scope="module")
def learned(sparse_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return built(tmp_path_factory.mktemp("learned"), sparse_encoder, "learned")


@pytest.fixture(scope="module")
def words_alone(words_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return built(tmp_path_factory.mktemp("words-alone"), words_encoder, None)


@pytest.fixture
def worker(queue: Queue, sparse_encoder: Encoder, learned: Index) -> Worker:
    """Return a worker of the index, with a cache of vectors."""
    model = sparse_encoder.model
    table = Table(model.name, model.dimension, model.pooling, sparse_encoder.fingerprint, 1_000, {}, "")
    cache = Cache(queue.broker, queue.keys, table)
    indexes = {"default": learned}
    return Worker(queue.consumer(), sparse_encoder, indexes, Bucketing(4_096), cache=cache)


def search(*texts: str, **options: Any) -> Search:
    return Search(list(texts), reply_to="me", k=len(DOCUMENTS), search=SearchOptions(**options))


def weights(encoder: Encoder, text: str, prompts: tuple[str, ...]) -> dict[int, float]:
    """Return the weights of the tokens of a text."""
    (encoded,) = encoder.encoded([text], Options(output="sparse"), encoder.prompt(Options(), prompts))
    vector: SparseVector = encoded.made["sparse"]
    return dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True))


def products(encoder: Encoder, query: str) -> dict[str, float]:
    """Return the products of the sparse vectors of a query and of each document."""
    asked = weights(encoder, query, QUERY_PROMPTS)
    found = {}
    for document_id, text in DOCUMENTS.items():
        of_text = weights(encoder, text, DOCUMENT_PROMPTS)
        found[document_id] = sum(weight * of_text.get(token, 0.0) for token, weight in asked.items())
    return found


def test_scores_are_the_products_of_sparse_vectors(worker: Worker, sparse_encoder: Encoder) -> None:
    query = "storm europe"
    options: list[dict[str, Any]] = [{"mode": "lexical"}, {"mode": "hybrid", "alpha": 0.0}, {"mode": "hybrid"}]
    found = ask(worker, *(search(query, explain=True, **one) for one in options))
    lexical, hybrid, fused = (hits(reply)[0] for reply in found)
    expected = products(sparse_encoder, query)
    rounding = 0.02 * max(expected.values())
    assert {hit["id"]: hit["score"] for hit in lexical} == pytest.approx(
        {found: score for found, score in expected.items() if score}, abs=rounding
    )
    best = lexical[0]["score"]
    for hit in (*hybrid, *fused):
        assert hit["explain"]["bm25"] == pytest.approx(expected[hit["id"]], abs=rounding)
    assert [hit["score"] for hit in hybrid[: len(lexical)]] == pytest.approx([hit["score"] / best for hit in lexical])
    assert {hit["score"] for hit in fused} != {hit["score"] for hit in hybrid}


def test_several_texts_as_one_query_add_up(worker: Worker, sparse_encoder: Encoder) -> None:
    (reply,) = ask(worker, search("storm", "rain", mode="lexical", fuse=True, snippet={}))
    one, other = products(sparse_encoder, "storm"), products(sparse_encoder, "rain")
    assert {hit["id"] for hit in hits(reply)[0]} == {name for name in one if one[name] + other[name]}
    for hit in hits(reply)[0]:
        assert hit["score"] == pytest.approx(one[hit["id"]] + other[hit["id"]], rel=0.02)
        assert bool(hit["snippet"]["highlights"]) == ("storm" in hit["text"] or "rain" in hit["text"])


def test_a_search_by_meaning_alone_uses_the_cache_and_may_replace_the_pooling(worker: Worker) -> None:
    found = [ask(worker, search("storm", mode=mode))[0] for mode in ("dense", "dense", "lexical", "hybrid")]
    assert [reply.cached for reply in found] == [0, 1, 0, 0]
    pooled = [Search(["storm"], Options(pooling="cls"), search=SearchOptions(**one)) for one in POOLED]
    assert all(hits(reply)[0] for reply in (found[2], *ask(worker, *pooled)))


#: Options of searches by words.
POOLED: list[dict[str, Any]] = [{"mode": "hybrid"}, {"snippet": {}}]


def test_a_search_is_answered_from_a_version_with_learned_words_that_was_published_meanwhile(
    queue: Queue, sparse_encoder: Encoder, learned: Index, index: Index
) -> None:
    indexes = {"default": index}
    worker = Worker(queue.consumer(), sparse_encoder, indexes, Bucketing(4_096))
    jobs = [search("storm europe", mode="lexical") for _ in range(2)]
    queue.put("interactive", jobs)
    worker.step(block_s=0)
    assert worker.scheduler.works
    indexes["default"] = learned
    (later,) = ask(worker, search("storm europe", mode="lexical"))
    assert [hits(reply) for reply in replies(worker, *jobs)] == [hits(later)] * 2


def test_a_model_without_sparse_vectors_is_refused(
    queue: Queue, encoder: Encoder, learned: Index, sparse_encoder: Encoder, tmp_path: Path
) -> None:
    worker = Worker(queue.consumer(), encoder, {"default": learned}, Bucketing(4_096))
    refused, dense = ask(worker, search("storm", mode="hybrid"), search("storm"))
    assert error(refused).code == "index_mismatch"
    assert "learned weights, and this worker's model makes no sparse vectors" in error(refused).message
    assert len(hits(dense)[0]) == len(DOCUMENTS)
    assert json.loads((learned.folder / LEXICAL).read_text())["version"] == 2  # earlier releases refuse this layout too
    (tmp_path / "texts.txt").write_text("storm\n")
    with pytest.raises(Unsupported, match=r"makes no sparse vectors, which the language learned needs: build"):
        build(Source(tmp_path / "texts.txt"), tmp_path / "index", LocalEncoder(encoder), language="learned")


def test_a_pool_encodes_texts_as_the_process_that_builds_does(
    worker: Worker, client: Client, sparse_encoder: Encoder
) -> None:
    texts = list(DOCUMENTS.values()) * 10
    worker.pool.announce(worker.id, service.about(worker))
    with running(worker):
        model = served_model(client.pool.ready().values())
        assert model
        found = list(PoolEncoder(client, model).encode(texts, ("vector", "sparse"), print))
    expected = list(LocalEncoder(sparse_encoder).encode(texts, ("vector", "sparse"), print))
    vectors, others = (np.concatenate([some.vectors for some in each]) for each in (found, expected))
    np.testing.assert_allclose(vectors, others, atol=1e-4)
    sparse, other_sparse = ([vector for some in each for vector in some.sparse] for each in (found, expected))
    for one, other in zip(sparse, other_sparse, strict=True):
        assert one.indices.tolist() == other.indices.tolist()
        np.testing.assert_allclose(one.values, other.values, atol=1e-4)


class TestWordsAlone:
    @pytest.fixture
    def worker(self, queue: Queue, words_encoder: Encoder, words_alone: Index) -> Worker:
        """Return a worker of an index of words alone."""
        return Worker(queue.consumer(), words_encoder, {"default": words_alone}, Bucketing(4_096))

    def test_are_searched_by_default(self, worker: Worker, sparse_encoder: Encoder) -> None:
        options: list[dict[str, Any]] = [{}, {"mode": "lexical", "explain": True}, {"min_score": 1e-3, "snippet": {}}]
        jobs = [search("storm europe", **one) for one in options]
        found = ask(worker, *jobs, search("storm", "rain", fuse=True, cursor=""))
        plain, explained, least, fused = (hits(reply)[0] for reply in found)
        expected = {found: score for found, score in products(sparse_encoder, "storm europe").items() if score}
        rounding = 0.02 * max(expected.values())
        assert {hit["id"]: hit["score"] for hit in plain} == pytest.approx(expected, abs=rounding)
        assert [hit["id"] for hit in plain] == [hit["id"] for hit in explained] == [hit["id"] for hit in least]
        assert set(explained[0]["explain"]) == {"mode", "bm25", "words"}
        assert explained[0]["explain"]["mode"] == "lexical"
        assert len(fused) == len({*DOCUMENTS} & {hit["id"] for hit in fused}) > 0

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"mode": "dense"}, "mode dense"),
            ({"mode": "hybrid"}, "mode hybrid"),
            ({"like": ["1"]}, "like"),
            ({"vectors": [[1.0]]}, "vectors"),
            ({"diversity": 0.5}, "diversity"),
            ({"num_negative": 1}, "negative"),
        ],
    )
    def test_have_no_vectors(self, worker: Worker, options: dict[str, Any], name: str) -> None:
        refused = error(ask(worker, search("storm", "rain", **options))[0])
        assert refused.code == "invalid_request"
        assert f"{name} needs vectors, and this index has words alone: leave it out" in refused.message

    def test_facets_count_as_passes_over_the_documents(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shoal.operations.search, "MAX_JOB_ROWS", 2 * len(DOCUMENTS))
        plain, refused = ask(worker, search("storm", "rain"), search("storm", "rain", facets=["topic"]))
        assert plain.status == "done"
        assert "may ask for 1 with these options" in error(refused).message

    def test_are_reused_by_the_next_build(self, words_encoder: Encoder, tmp_path: Path) -> None:
        built(tmp_path, words_encoder, None)
        with (tmp_path / "texts.csv").open("a") as file:
            file.write("new,rain storm\n")
        source, encoder = Source(tmp_path / "texts.csv"), LocalEncoder(words_encoder)
        result, again = (build(source, tmp_path / "index", encoder) for _ in range(2))
        assert (result.num_embedded, result.num_reused, again.is_unchanged) == (1, len(DOCUMENTS), True)

    def test_are_searched_by_the_weights_that_a_table_gives_queries(
        self, queue: Queue, words_encoder: Encoder, words_alone: Index
    ) -> None:
        model = replace(words_encoder.model, query_form=QueryForm(48))
        table = np.zeros(1_000, np.float32)
        table[words_encoder.tokenize(["rain"])[0].ids[1]] = 0.5
        parts = words_encoder.tokenizer, words_encoder.engine, words_encoder._head_graphs
        worker = Worker(queue.consumer(), Encoder(model, *parts, table), {"default": words_alone}, Bucketing(4_096))
        (found,) = hits(ask(worker, search("europe rain"))[0])
        assert {hit["id"] for hit in found} == {name for name, text in DOCUMENTS.items() if "rain" in text.split()}

    @pytest.mark.parametrize(("language", "kept"), [("english", "english"), (None, "learned")])
    def test_may_be_left_for_and_taken_by_a_migration(
        self, words_encoder: Encoder, encoder: Encoder, tmp_path: Path, language: str | None, kept: str
    ) -> None:
        out, (one, other) = tmp_path / "index", [encoder, words_encoder][:: 1 if language is None else -1]
        built(tmp_path, one, None)
        request = MigrateIndex.of("index", out, publish=True, language=language or "learned")
        build_index(request, out, LocalEncoder(other), lambda _: None)
        index = Index.open(out)
        assert index.manifest.language == kept
        assert index.manifest.dimension == (0 if kept == "learned" else encoder.model.dimension)
        with pytest.raises(Unsupported, match=r"makes no vectors: .* alone, so name the language learned"):
            built(tmp_path, words_encoder, "english")


@pytest.mark.parametrize("has_vectors", [True, False])
def test_added_documents_have_learned_words_too(
    queue: Queue, client: Client, sparse_encoder: Encoder, words_encoder: Encoder, tmp_path: Path, has_vectors: bool
) -> None:
    encoder = sparse_encoder if has_vectors else words_encoder
    index, log = built(tmp_path, encoder, "learned"), ChangeLog(queue.broker, queue.keys)
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096))
    texts = {"new": "storm rain storm", "newer": "europe", "long": " ".join(WORDS)}
    with announced(worker, LaneLimits()), running(worker):
        assert client.index("default").add({"id": name, "text": text} for name, text in texts.items()) == len(texts)
    opener = VersionOpener(encoder.model, ONE_THREAD, log)
    with opener.following:
        opener.catch_up("default", index)
    assert index.change_fault == ""
    (reply,) = ask(worker, search("storm", mode="lexical"))
    scores = {hit["id"]: hit["score"] for hit in hits(reply)[0]}
    asked = weights(encoder, "storm", QUERY_PROMPTS)
    for added in ("new", "long"):
        of_text = weights(encoder, texts[added], DOCUMENT_PROMPTS)
        expected = sum(weight * of_text.get(token, 0.0) for token, weight in asked.items())
        assert scores[added] == pytest.approx(expected, rel=0.02)
    assert "newer" not in scores
