"""Reranks, and searches with a second stage. Their scores equal CrossEncoder's, and jobs share passes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from asking import ask, error, hits, replies, scores
from blocking import DeadLetters
from click.testing import CliRunner
from conftest import run_reference
from numpy.typing import NDArray
from passes import Noting
from queues import Queue, drive, step_while

from shoal import Client, operations
from shoal.cache.cache import Cache, Table
from shoal.cli.main import main
from shoal.contract.keys import Keys
from shoal.contract.options import QUERY_PROMPTS, Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, InvalidText, ModelMismatch, ShoalError
from shoal.operations import Embed, Rerank, Search
from shoal.operations.search_options import SearchOptions
from shoal.records.source import Source
from shoal.settings import Settings
from shoal.supervisor.serve import print_summary
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.engines import int8
from shoal_workers.encoding.reranker import Reranker, sigmoid
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.index import Index
from shoal_workers.index.search.diversity import most_diverse
from shoal_workers.loop.admission import Limits
from shoal_workers.loop.worker import Worker
from shoal_workers.model import parity
from shoal_workers.model.graph import core
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.model.prepare import prepare, prepare_if_needed
from shoal_workers.service import service

#: Largest difference, in f32, from the scores of CrossEncoder, and between scores of different passes.
MAX_ERROR = 1e-4

QUERY, TOP_N = "storm in europe", 20
DOCUMENTS = ["the storm rises", "market falls", "", "rain in the market and a change of climate", "Zürich 価格 😀"]
LONG, LONGER = "rain and change " * 20, "the storm of europe falls in " * 30

#: Pairs of two short texts, with one long text, or with two; and pairs with a text that is read in part.
PAIRS = [
    *((QUERY, text) for text in DOCUMENTS),
    *((first, second) for first in (QUERY, LONG, LONGER) for second in (LONG, LONGER, "a")),
    *[(QUERY, "storm " * 5_000), ("storm " * 5_000, "a")],
]


# The model


@pytest.fixture(scope="module")
def originals(torch_reference: None, reranker_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of cross-encoders, with the scores that Sentence Transformers gives to `PAIRS`."""
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(reranker_source, folder / "bert")
    (folder / "pairs.json").write_text(json.dumps(PAIRS))
    run_reference("reranker_reference.py", *(folder / name for name in ("pairs.json", "bert", "roberta", "modernbert")))
    return folder


@pytest.mark.wide
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_scores_equal_the_scores_of_sentence_transformers(originals: Path, name: str, tmp_path: Path) -> None:
    opened = Reranker.open(prepare_if_needed(tmp_path, str(originals / name)), "openvino", "f32", 2)
    cut_left = [TokenizedText(tokens) for tokens in opened.tokenize(PAIRS, "left")]
    opened.encode(cut_left)
    found = {
        "raw": opened.score(PAIRS),
        "scores": sigmoid(opened.score(PAIRS)),
        "left": np.concatenate([text.vectors[0] for text in cut_left if text.vectors is not None]),
    }
    with np.load(originals / f"{name}.npz") as expected:
        assert np.ptp(expected["raw"]) > 1
        for what, scores in found.items():
            assert scores == pytest.approx(expected[what], abs=MAX_ERROR)
    alone = np.concatenate([opened.score([pair]) for pair in PAIRS])
    assert alone == pytest.approx(found["raw"], abs=MAX_ERROR)
    assert [text.tokens.truncated for text in cut_left] == [max(map(len, pair)) > 100 for pair in PAIRS]


@pytest.mark.wide
def test_the_torch_engine_makes_the_same_scores(
    torch_reference: None, reranker: Reranker, reranker_source: Path, home: Path
) -> None:
    folder = prepare_if_needed(home, str(reranker_source))
    assert Reranker.open(folder, "torch", "f32", 1).score(PAIRS) == pytest.approx(reranker.score(PAIRS), abs=MAX_ERROR)


def test_other_precisions_are_exact_enough_to_serve(reranker_source: Path, home: Path) -> None:
    folder = prepare_if_needed(home, str(reranker_source))
    for precision in ("bf16", "int8"):
        assert np.isfinite(Reranker.open(folder, "openvino", precision, 1).score(PAIRS)).all()
    graph = core().read_model(folder / GRAPH)
    int8.compress(graph)
    rounded = [tuple(node.shape) for node in graph.get_ops() if node.get_element_type().to_string() == "i8"]
    assert (32, 32) in rounded
    assert (1, 32) not in rounded  # the layer with one output


def test_an_engine_whose_scores_are_off_is_refused(tiny_model: Path, reranker: Reranker, home: Path) -> None:
    folder = prepare_if_needed(home, reranker.model.name)
    parity.check_scores(folder, reranker.score, MAX_ERROR)
    with pytest.raises(ModelMismatch, match=r"the engine's scores differ by .* from the fp32 reference, over 0\.05"):
        parity.check_scores(folder, lambda pairs: reranker.score(pairs) + np.float32(0.2))


@pytest.fixture
def changed(reranker_source: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that prepares a copy of the tiny cross-encoder with other values in one of its files."""
    source = Path(shutil.copytree(reranker_source, tmp_path / "source"))

    def prepare_with(file: str, values: Any) -> Path:
        path = source / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values if path.exists() else values))
        prepared = Path(tempfile.mkdtemp(dir=tmp_path)) / "prepared"
        prepare("changed", source, prepared)
        return prepared

    return prepare_with


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, "has 2 labels, and a reranker makes one score of a pair"),
        ({"model_type": "electra"}, r"cannot score pairs with \(model_type is \"electra\"\): use a cross-enc"),
        ({"architectures": ["BertModel"]}, r"modules\.json is missing"),
    ],
)
def test_a_model_that_makes_no_single_score_is_refused(
    changed: Callable[..., Path], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ShoalError, match=words):
        changed("config.json", values)


def test_folders_of_sentence_transformers_and_tokenizers_that_name_no_token_types_are_accepted(
    changed: Callable[..., Path], reranker: Reranker
) -> None:
    layer = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    opened = Reranker.open(changed("modules.json", [layer]), "openvino", "f32", 1)
    assert opened.score(PAIRS) == pytest.approx(reranker.score(PAIRS))
    for settings in ({"tokenizer_class": "TokenizersBackend"}, {"model_input_names": ["input_ids", "attention_mask"]}):
        opened = Reranker.open(changed("tokenizer_config.json", settings), "openvino", "f32", 1)
        assert (reranker.model.type_offset, opened.model.type_offset) == (64, 0)
        assert np.abs(opened.score(PAIRS) - reranker.score(PAIRS)).max() > 0.01


def test_a_larger_model_has_smaller_passes(reranker: Reranker) -> None:
    assert reranker.model.num_weights > 0
    embedder = replace(reranker.model, num_weights=1_000)
    embeds = Bucketing(2_048, shares_rows=False)
    for num_weights, max_tokens in ((0, 2_048), (1_000, 2_048), (8_000, 256)):
        larger = Reranker(replace(reranker.model, num_weights=num_weights), reranker.tokenizer, reranker.engine)
        assert larger.pair_bucketing(embeds, embedder) == Bucketing(max_tokens, shares_rows=True)
        assert larger.pair_bucketing(embeds, replace(embedder, num_weights=0)) == Bucketing(2_048, shares_rows=True)


def test_each_kind_of_model_is_refused_in_place_of_the_other(
    tiny_model: Path, reranker_source: Path, home: Path
) -> None:
    with pytest.raises(ModelMismatch, match="makes vectors and scores no pairs: name a cross-encoder or ColBERT"):
        Reranker.open(tiny_model, "openvino", "f32", 1)
    with pytest.raises(ModelMismatch, match="scores pairs of texts and makes no vectors: name it as SHOAL_RERANKER"):
        Encoder.open(prepare_if_needed(home, str(reranker_source)), "openvino", "f32", 1)


# Jobs


class NotingReranker(Noting, Reranker):
    """A reranker that notes its passes, and fails on a pass with `poison`."""


@pytest.fixture
def noting(reranker: Reranker) -> NotingReranker:
    return NotingReranker(reranker, (QUERY, "poison"))


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, noting: NotingReranker, index: Index) -> Worker:
    limits = Limits(max_job_texts=100, max_text_chars=40_000)
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), limits, reranker=noting)


@pytest.fixture
def small_passes(queue: Queue, encoder: Encoder, noting: NotingReranker, index: Index) -> Worker:
    """A worker with passes of few tokens, so that a second stage needs several."""
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(24), reranker=noting)


def rerank(*texts: str, query: str = QUERY, **fields: Any) -> Rerank:
    return Rerank(list(texts), reply_to="me", query=query, **fields)


def search(*queries: str, options: Options | None = None, k: int = 5, **fields: Any) -> Search:
    """Return a search whose best hits are reranked; `fields` may have further options of the search."""
    about = {"reply_to": "me"} | {name: fields.pop(name) for name in ("reply_to", "deadline") if name in fields}
    asked = SearchOptions(**{"rerank": {"top_n": TOP_N}} | fields)
    return Search(list(queries), options or Options(), k=k, search=asked, **about)


def test_many_reranks_share_passes_and_each_has_its_own_scores(
    worker: Worker, noting: NotingReranker, reranker: Reranker
) -> None:
    queries = ["storm", "rain in europe", QUERY]
    jobs = [rerank(*DOCUMENTS, query=query, raw_scores=raw) for query in queries for raw in (False, True)]
    found = ask(worker, *jobs)
    assert noting.passes == [len(queries) * len(DOCUMENTS)]  # equal pairs are computed once
    for job, reply in zip(jobs, found, strict=True):
        pairs = [(job.query or "", text) for text in DOCUMENTS]
        raw = reranker.score(pairs)
        assert scores(reply) == pytest.approx(raw if job.raw_scores else 1 / (1 + np.exp(-raw)), abs=MAX_ERROR)
        assert (reply.status, reply.vectors, reply.hits, reply.cached) == ("done", None, None, 0)
        assert reply.model == reranker.model.name
        assert reply.tokens == [len(tokens.ids) for tokens in reranker.tokenize(pairs)]
        assert reply.timings["encode_s"] > 0


def test_a_cut_pair_is_reported_or_refused_and_cut_on_the_side_that_its_job_names(worker: Worker) -> None:
    whole = Options(truncate=False)
    jobs = rerank("a", LONG, options=whole), rerank("a", query=LONGER, options=replace(whole, truncation_side="left"))
    sides = [rerank(f"{LONG} rain", options=Options(truncation_side=side)) for side in ("right", "left")]
    first, *others, right, left = ask(worker, rerank("a", LONG), *jobs, *sides)
    assert (first.truncated, first.tokens[1]) == ([False, True], 48)
    for reply, number in zip(others, (1, 0), strict=True):
        assert error(reply).code == "text_too_long"
        assert error(reply).message.startswith(f"text {number} and the query have more than the 48 tokens")
    assert scores(right) != scores(left)


def test_a_text_that_the_engine_fails_on_harms_only_its_own_job(
    queue: Queue, encoder: Encoder, noting: NotingReranker, tmp_path: Path
) -> None:
    worker = of_texts(queue, encoder, noting, tmp_path, "rain", "poison", "storm")
    bad, good = [rerank("rain", "poison"), search(QUERY)], [rerank("rain"), search("market"), Embed(["rain"])]
    pair, hit, *others = ask(worker, *bad, *good)
    assert error(pair).code == error(hit).code == "internal"
    assert error(pair).message.startswith("the engine failed on text 1")
    assert error(hit).message.startswith("the engine failed on a hit")
    assert "poison" not in str(hit.error)
    assert [reply.status for reply in others] == ["done"] * 3
    assert len(DeadLetters(queue).newest()) == 2


def of_texts(queue: Queue, encoder: Encoder, noting: NotingReranker, folder: Path, *texts: str) -> Worker:
    (folder / "texts.txt").write_text("\n".join(texts))
    build(Source(folder / "texts.txt"), folder / "texts", LocalEncoder(encoder))
    indexes = {"default": Index.open(folder / "texts")}
    return Worker(queue.consumer(), encoder, indexes, Bucketing(4_096), reranker=noting)


def test_without_a_reranker_a_rerank_is_refused(queue: Queue, encoder: Encoder, index: Index) -> None:
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096))
    for reply in ask(worker, rerank("rain"), search(QUERY)):
        assert error(reply).code == "unsupported"
        said = "this worker has no reranker: set SHOAL_RERANKER to a cross-encoder, on all workers"
        assert error(reply).message == said
    assert service.about(worker)["reranker"] is None


def test_texts_and_hits_over_the_limits_are_refused(worker: Worker) -> None:
    long = "x" * 40_001
    jobs = rerank("rain", query=long), search(QUERY, rerank={"top_n": TOP_N, "query": long})
    first, second, third = map(error, ask(worker, *jobs, search(*(f"query {n}" for n in range(6)))))
    assert first.code == second.code == third.code == "too_large"
    assert first.message == "query has 40,001 characters and may have 40,000: shorten it"
    assert second.message == "rerank.query has 40,001 characters and may have 40,000: shorten it"
    assert "the job has 120 hits to rerank and may have 100" in third.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "query is null: it takes a string"),
        ({"query": " \n"}, "query is empty: it takes the text that the texts are scored for"),
        ({"query": "a", "raw_scores": 1}, "raw_scores is 1: it takes true or false"),
        ({"query": "a", "options": Options(normalize=False)}, "normalize does not go with a rerank: leave it out"),
        ({"query": "a", "options": Options(output="tokens")}, "output does not go with a rerank"),
        ({"query": "a", "options": Options(prompt_name="query")}, "prompt_name does not go with a rerank"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Rerank(**({"texts": ["b"]} | fields))


def test_a_job_is_packed_and_split_with_its_query() -> None:
    job = Rerank(["a", "b"], Options(truncate=False), query="c", raw_scores=True)
    assert operations.unpack(job.pack()) == job
    assert [part.query for part in job.split(1)] == ["c", "c"]
    assert job.digest() != replace(job, query="d").digest()
    with pytest.raises(InvalidText, match=r"^query: "):
        Rerank(["a"], query="\ud83d").pack()
    assert sigmoid(np.array([-1e4, 0, 1e4], np.float32)).tolist() == [0, 0.5, 1]
    data = Embed(["a"], id="x").pack()  # an embed job ignores the fields of a rerank
    assert operations.unpack(msgpack.packb(msgpack.unpackb(data) | {"query": "b", "raw_scores": True})).pack() == data


# Searches with a second stage


def embedded(encoder: Encoder, query: str) -> NDArray[np.float32]:
    return encoder.embed([query], Options(), encoder.prompt(Options(), QUERY_PROMPTS))


def expected(
    index: Index, encoder: Encoder, reranker: Reranker, query: str, scored: str = "", top_n: int = TOP_N
) -> list[dict[str, Any]]:
    """Return the hits of a query with their scores for the text `scored`, or for the query, best first."""
    (found,) = index.search(embedded(encoder, query), top_n)
    by_reranker = sigmoid(reranker.score([(scored or query, hit["text"]) for hit in found]))
    return [found[n] | {"score": float(by_reranker[n])} for n in np.argsort(-by_reranker, kind="stable")]


def check_hits(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Assert that these are the best wanted hits. Hits with about equal scores may come in another order."""
    by_id = {hit["id"]: hit for hit in wanted}
    of_found = [hit["score"] for hit in found]
    assert of_found == sorted(of_found, reverse=True)
    assert of_found == pytest.approx([hit["score"] for hit in wanted[: len(found)]], abs=MAX_ERROR)
    for hit in found:
        assert hit | {"score": 0} == by_id[hit["id"]] | {"score": 0}
        assert hit["score"] == pytest.approx(by_id[hit["id"]]["score"], abs=MAX_ERROR)


def test_the_best_hits_come_in_the_order_of_the_reranker(
    worker: Worker, noting: NotingReranker, index: Index, encoder: Encoder, reranker: Reranker
) -> None:
    queries = ("storm", "rain in europe")
    found = ask(worker, *(search(*queries, rerank={"top_n": 10}) for _ in range(2)))
    assert noting.passes == [2 * 10]  # all jobs share a pass, and equal pairs are computed once
    for reply in found:
        for query, of_query in zip(queries, hits(reply), strict=True):
            assert len(of_query) == 5
            check_hits(of_query, expected(index, encoder, reranker, query, top_n=10))
        assert (reply.model, len(reply.tokens), reply.truncated) == (encoder.model.name, 2, [False, False])
        assert (reply.characters, reply.index_version) == ([*map(len, queries)], index.manifest.version)
        assert reply.scores is reply.vectors is None
        assert min(reply.timings["encode_s"], reply.timings["search_s"]) > 0
    assert (worker.counters["jobs"], worker.counters["texts"]) == (2, 2 * (2 + 2 * 10))
    plain = index.search(embedded(encoder, "storm"), 5)[0]
    assert [hit["id"] for hit in plain] != [hit["id"] for hit in hits(reply)[0]]


def test_hits_are_scored_for_a_given_query(worker: Worker, index: Index, encoder: Encoder, reranker: Reranker) -> None:
    options: dict[str, Any] = {"rerank": {"top_n": TOP_N, "query": "market"}}
    vector = embedded(encoder, "storm")[0].tolist()
    for reply in ask(worker, search("storm", **options), search(vectors=[vector], **options)):
        check_hits(hits(reply)[0], expected(index, encoder, reranker, "storm", "market"))


def test_long_documents_are_cut_although_queries_may_not_be(
    queue: Queue, encoder: Encoder, noting: NotingReranker, tmp_path: Path
) -> None:
    worker = of_texts(queue, encoder, noting, tmp_path, "storm in europe " * 40, "rain")
    options = [Options(truncate=False, truncation_side=side) for side in ("right", "left")]
    first, second = (hits(reply)[0] for reply in ask(worker, *(search("storm", options=one) for one in options)))
    assert len(first) == 2
    assert first == second


def test_diversity_uses_the_scores_of_the_reranker(
    worker: Worker, index: Index, encoder: Encoder, reranker: Reranker
) -> None:
    (reply,) = ask(worker, search(QUERY, diversity=0.7))
    pool = expected(index, encoder, reranker, QUERY)
    vectors = np.concatenate([index.vectors[index.documents.rows_of([hit["id"]])] for hit in pool])
    chosen = most_diverse(np.array([hit["score"] for hit in pool], np.float32), vectors, 5, 0.7)
    assert [hit["id"] for hit in hits(reply)[0]] == [pool[n]["id"] for n in chosen]


def test_nothing_is_scored_if_nothing_is_found_or_the_search_is_refused(
    worker: Worker, queue: Queue, noting: NotingReranker
) -> None:
    jobs = search(QUERY, min_score=1.0), search(QUERY, facets=["nothing"])
    nothing, refused = ask(worker, *jobs)
    assert (hits(nothing), error(refused).code) == ([[]], "invalid_request")
    assert noting.passes == []
    assert DeadLetters(queue).newest() == []


def test_a_search_that_is_cancelled_or_expires_between_two_passes_is_computed_no_further(
    small_passes: Worker, queue: Queue, noting: NotingReranker
) -> None:
    small_passes.clock.measure()
    deadline = small_passes.clock.now() + 3_600
    expiring = search(QUERY, rerank={"top_n": 100}, deadline=deadline)
    cancelled = search("storm", rerank={"top_n": 100}, reply_to=None)
    queue.put("interactive", [expiring, cancelled])
    step_while(small_passes, lambda: not noting.passes)
    assert small_passes.scheduler.works
    assert queue.cancel(cancelled.id) == "cancelled"
    small_passes.admission._next_check = 0.0  # otherwise the worker would look a quarter of a second later
    small_passes.clock._ahead_s += 7_200  # as if two hours had passed
    assert drive(small_passes) == 0
    assert len(noting.passes) <= 2
    (reply,) = replies(small_passes, expiring)
    assert error(reply).code == "expired"
    assert error(queue.wait_result(cancelled.id, 0) or Reply("")).code == "cancelled"


def test_vectors_of_queries_are_cached_and_scores_are_not(
    queue: Queue, encoder: Encoder, noting: NotingReranker, index: Index
) -> None:
    model = encoder.model
    cache = Cache(queue.broker, queue.keys, Table(model.name, model.dimension, model.pooling, "f", 1_000, {}, ""))
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), cache=cache, reranker=noting)
    first, second = (ask(worker, search(QUERY))[0] for _ in range(2))
    assert (first.cached, second.cached) == (0, 1)
    assert first.hits == second.hits
    assert [ask(worker, Embed(DOCUMENTS))[0].cached for _ in range(2)] == [0, len(DOCUMENTS)]
    assert len(scores(ask(worker, rerank(*DOCUMENTS))[0])) == len(DOCUMENTS)


# Commands and the process


@pytest.mark.usefixtures("serving")
def test_the_command_prints_texts_and_scores_best_first(
    client: Client, redis_url: str, keys: Keys, tmp_path: Path
) -> None:
    settings = ["--redis-url", redis_url, "--key-prefix", keys.prefix, "--pool", keys.pool]
    (tmp_path / "texts.txt").write_text("\n".join(DOCUMENTS))
    printed = CliRunner().invoke(main, ["rerank", QUERY, "--file", str(tmp_path / "texts.txt"), *settings]).stdout
    best_first = sorted(zip(client.rerank(QUERY, DOCUMENTS).tolist(), DOCUMENTS, strict=True), reverse=True)
    assert printed.splitlines() == [f"{score:.3f}  {text}" for score, text in best_first]
    as_json = CliRunner().invoke(main, ["rerank", QUERY, *DOCUMENTS, "--raw-scores", "--json", *settings]).stdout
    raw = client.rerank(QUERY, DOCUMENTS, raw_scores=True)
    assert json.loads(as_json) == pytest.approx(raw.tolist(), abs=MAX_ERROR)


def test_a_reranker_can_be_named_by_its_short_name(tiny_source: Path, reranker_source: Path, tmp_path: Path) -> None:
    """The hub's cache has the full name."""
    repository = tmp_path / "hub" / "models--cross-encoder--ms-marco-MiniLM-L6-v2"
    shutil.copytree(reranker_source, repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    models = ["--model", str(tiny_source), "--reranker", "ms-marco-minilm", "--home", str(tmp_path / "home")]
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "shoal", "model", "prepare", *models]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folders = [Path(line) for line in done.stdout.splitlines() if line.startswith("/")]
    assert [Model.open(folder).is_reranker for folder in folders] == [False, True]


def test_the_heartbeat_and_the_summary_name_the_reranker(
    worker: Worker, reranker: Reranker, redis_url: str, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.pool.announce(worker.id, service.about(worker))
    print_summary(Settings(redis_url=redis_url, key_prefix=keys.prefix, pool=keys.pool))
    model, name = worker.encoder.model.name, reranker.model.name
    assert f"ready:  1 worker with {model} on openvino f32, reranker {name}, index default" in capsys.readouterr().out
