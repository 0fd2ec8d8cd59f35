"""Reranks: the scores of Sentence Transformers' CrossEncoder, in jobs that share passes like all others."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import openvino
import pytest
from click.testing import CliRunner
from conftest import TESTS
from numpy.typing import NDArray
from queues import Queue, drive

from shoal import Client, operations
from shoal.cli.main import main
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, InvalidText, ModelMismatch, ShoalError, Unsupported
from shoal.operations import Embed, Rerank
from shoal.settings import Settings
from shoal.supervisor.summary import print_summary
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.engines import int8
from shoal_workers.encoding.reranker import Reranker, sigmoid
from shoal_workers.index.index import Index
from shoal_workers.loop.admission import Limits
from shoal_workers.loop.worker import Worker
from shoal_workers.model import parity
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.model.prepare import prepare, prepare_if_needed
from shoal_workers.service import service

#: Largest difference from the scores of CrossEncoder, in f32.
MAX_ERROR = 1e-4

QUERY = "storm in europe"
DOCUMENTS = ["the storm rises", "market falls", "", "rain in the market and a change of climate", "Zürich 価格 😀"]
LONG, LONGER = "rain and change " * 20, "the storm of europe falls in " * 30

#: Pairs of which neither text is too long, one is, the other is, or both are; and texts of which a part is read.
PAIRS = [
    *((QUERY, text) for text in DOCUMENTS),
    *((first, second) for first in (QUERY, LONG, LONGER) for second in (LONG, LONGER, "a")),
    *[(QUERY, "storm " * 5_000), ("storm " * 5_000, "a")],
]


@pytest.fixture(scope="module")
def originals(torch_reference: None, reranker_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of cross-encoders, and their scores of the `PAIRS` by Sentence Transformers, from its own process."""
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(reranker_source, folder / "bert")
    (folder / "pairs.json").write_text(json.dumps(PAIRS))
    script = TESTS / "shared/models/reranker_reference.py"
    arguments = [script, folder / "pairs.json", folder / "bert", folder / "roberta"]
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def expected(originals: Path, name: str, what: str) -> NDArray[np.float32]:
    """The scores of the `PAIRS` by Sentence Transformers."""
    with np.load(originals / f"{name}.npz") as arrays:
        found: NDArray[np.float32] = arrays[what]
        return found


@pytest.fixture(scope="module", params=["bert", "roberta"])
def name(request: pytest.FixtureRequest) -> str:
    """The model that is compared."""
    return str(request.param)


@pytest.fixture(scope="module")
def opened(originals: Path, name: str, tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    """That model, prepared and opened in f32."""
    home = tmp_path_factory.mktemp(name)
    return Reranker.open(prepare_if_needed(home, str(originals / name)), "openvino", "f32", 2)


# The model


@pytest.mark.wide
def test_scores_are_those_of_sentence_transformers(opened: Reranker, originals: Path, name: str) -> None:
    raw = expected(originals, name, "raw")
    assert np.ptp(raw) > 1
    assert opened.score(PAIRS) == pytest.approx(raw, abs=MAX_ERROR)
    assert sigmoid(opened.score(PAIRS)) == pytest.approx(expected(originals, name, "scores"), abs=MAX_ERROR)


@pytest.mark.wide
def test_a_pair_alone_has_the_score_that_it_has_among_others(opened: Reranker, originals: Path, name: str) -> None:
    alone = np.concatenate([opened.score([pair]) for pair in PAIRS])
    assert alone == pytest.approx(expected(originals, name, "raw"), abs=MAX_ERROR)


@pytest.mark.wide
def test_pairs_may_lose_their_beginning(opened: Reranker, originals: Path, name: str) -> None:
    texts = [TokenizedText(tokens) for tokens in opened.tokenize(PAIRS, "left")]
    opened.encode(texts)
    found = np.concatenate([text.vectors[0] for text in texts if text.vectors is not None])
    assert found == pytest.approx(expected(originals, name, "left"), abs=MAX_ERROR)
    assert [text.tokens.truncated for text in texts] == [max(map(len, pair)) > 100 for pair in PAIRS]


@pytest.mark.wide
def test_the_torch_engine_makes_the_same_scores(
    torch_reference: None, reranker: Reranker, reranker_source: Path, home: Path
) -> None:
    folder = prepare_if_needed(home, str(reranker_source))
    assert Reranker.open(folder, "torch", "f32", 1).score(PAIRS) == pytest.approx(reranker.score(PAIRS), abs=MAX_ERROR)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_are_near_enough_to_serve(reranker_source: Path, home: Path, precision: str) -> None:
    folder = prepare_if_needed(home, str(reranker_source))
    assert np.isfinite(Reranker.open(folder, "openvino", precision, 1).score(PAIRS)).all()


def test_the_layer_with_one_output_is_not_rounded_to_8_bits(reranker_source: Path, home: Path) -> None:
    graph = openvino.Core().read_model(prepare_if_needed(home, str(reranker_source)) / GRAPH)
    int8.compress(graph)
    rounded = [tuple(node.shape) for node in graph.get_ops() if node.get_element_type().to_string() == "i8"]
    assert (32, 32) in rounded
    assert (1, 32) not in rounded


def test_an_engine_whose_scores_are_off_is_refused(tiny_model: Path, reranker: Reranker, home: Path) -> None:
    folder = prepare_if_needed(home, reranker.model.name)
    assert parity.check_scores(folder, reranker.score) < MAX_ERROR
    with pytest.raises(ModelMismatch, match=r"the engine's scores differ by .* from the fp32 reference, over 0\.05"):
        parity.check_scores(folder, lambda pairs: reranker.score(pairs) + np.float32(0.2))


@pytest.fixture
def source(reranker_source: Path, tmp_path: Path) -> Path:
    """A copy of the tiny cross-encoder that a test may change."""
    return Path(shutil.copytree(reranker_source, tmp_path / "source"))


def change(source: Path, file: str = "config.json", **values: Any) -> None:
    """Change settings in one of the model's files."""
    path = source / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, "has 2 labels, and a reranker makes one score of a pair"),
        ({"id2label": None}, "has 2 labels"),
        (
            {"model_type": "deberta-v2"},
            r"cannot score pairs with \(model_type is \"deberta-v2\"\): use a cross-encoder",
        ),
        ({"architectures": ["BertModel"]}, r"modules\.json is missing"),
    ],
)
def test_a_model_that_makes_no_single_score_is_refused(
    source: Path, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    change(source, **values)
    with pytest.raises(ShoalError, match=words):
        prepare("odd", source, tmp_path / "prepared")


def test_a_folder_of_sentence_transformers_is_taken_too(source: Path, tmp_path: Path, reranker: Reranker) -> None:
    layer = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (source / "modules.json").write_text(json.dumps([layer]))
    prepare("new", source, tmp_path / "prepared")
    opened = Reranker.open(tmp_path / "prepared", "openvino", "f32", 1)
    assert opened.score(PAIRS) == pytest.approx(reranker.score(PAIRS))


def test_a_tokenizer_that_names_no_token_types_gives_the_model_none(
    source: Path, tmp_path: Path, reranker: Reranker
) -> None:
    change(source, "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    prepare("untyped", source, tmp_path / "prepared")
    opened = Reranker.open(tmp_path / "prepared", "openvino", "f32", 1)
    assert (reranker.model.type_offset, opened.model.type_offset) == (64, 0)
    assert np.abs(opened.score(PAIRS) - reranker.score(PAIRS)).max() > 0.01


@pytest.mark.parametrize(("num_weights", "max_tokens"), [(0, 2_048), (500, 2_048), (1_000, 2_048), (8_000, 256)])
def test_a_larger_model_has_smaller_passes(reranker: Reranker, num_weights: int, max_tokens: int) -> None:
    assert reranker.model.num_weights > 0
    embedder = replace(reranker.model, num_weights=1_000)
    larger = Reranker(replace(reranker.model, num_weights=num_weights), reranker.tokenizer, reranker.engine)
    embeds: Bucketing[TokenizedText] = Bucketing(2_048, shares_rows=False)
    assert larger.bucketing(embeds, embedder) == Bucketing(max_tokens, shares_rows=True)
    assert larger.bucketing(embeds, replace(embedder, num_weights=0)) == Bucketing(2_048, shares_rows=True)


def test_each_kind_of_model_is_refused_in_place_of_the_other(
    tiny_model: Path, reranker_source: Path, home: Path
) -> None:
    with pytest.raises(
        ModelMismatch, match="makes vectors and scores no pairs: name a cross-encoder as SHOAL_RERANKER"
    ):
        Reranker.open(tiny_model, "openvino", "f32", 1)
    with pytest.raises(ModelMismatch, match="scores pairs of texts and makes no vectors: name it as SHOAL_RERANKER"):
        Encoder.open(prepare_if_needed(home, str(reranker_source)), "openvino", "f32", 1)


# Jobs


class FailingReranker(Reranker):
    """The real reranker. Notes the number of pairs in its passes, and fails on one that has `poison`."""

    def __init__(self, reranker: Reranker):
        super().__init__(reranker.model, reranker.tokenizer, reranker.engine)
        self.passes: list[int] = []
        (self.poison,) = reranker.tokenize([(QUERY, "poison")])

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self.passes.append(len(texts))
        if any(text.tokens.ids == self.poison.ids for text in texts):
            raise RuntimeError("the engine chokes")
        return super().start(texts)


@pytest.fixture
def failing(reranker: Reranker) -> FailingReranker:
    """A reranker that can fail."""
    return FailingReranker(reranker)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, failing: FailingReranker, index: Index) -> Worker:
    """A worker that embeds and reranks."""
    limits = Limits(max_job_texts=100, max_text_chars=40_000)
    bucketing: Bucketing[TokenizedText] = Bucketing(4_096)
    return Worker(queue.consumer(), encoder, {"default": index}, bucketing, limits, reranker=failing)


def put(queue: Queue, *texts: str, lane: str = "interactive", query: str = QUERY, **fields: Any) -> Rerank:
    """Put a rerank of the texts."""
    job = Rerank(list(texts), reply_to="me", query=query, **fields)
    queue.put(lane, [job])
    return job


def replies(queue: Queue) -> dict[str, Reply]:
    """Return the replies that have come, by job id."""
    return {reply.id: reply for reply in queue.inbox("me").wait()}


def scores(reply: Reply) -> NDArray[np.float32]:
    """Return the scores of a reply."""
    assert reply.error is None
    assert reply.scores is not None
    return reply.scores


def test_many_reranks_share_passes_and_each_has_its_own_scores(
    worker: Worker, queue: Queue, failing: FailingReranker, reranker: Reranker
) -> None:
    queries = ["storm", "rain in europe", QUERY]
    jobs = [put(queue, *DOCUMENTS, query=query) for query in queries for _ in range(4)]
    assert drive(worker) == len(jobs)
    assert failing.passes == [len(queries) * len(DOCUMENTS)]  # equal pairs are computed once
    found = replies(queue)
    for job in jobs:
        raw = reranker.score([(job.query or "", text) for text in DOCUMENTS])
        assert scores(found[job.id]) == pytest.approx(1 / (1 + np.exp(-raw)), abs=MAX_ERROR)
        reply = found[job.id]
        assert (reply.status, reply.vectors, reply.hits, reply.cached) == ("done", None, None, 0)
        assert reply.model == reranker.model.name
        assert reply.tokens == [len(t.ids) for t in reranker.tokenize([(job.query or "", d) for d in DOCUMENTS])]
        assert reply.timings["encode_s"] > 0


def test_raw_scores_are_the_numbers_of_the_model(worker: Worker, queue: Queue, reranker: Reranker) -> None:
    job = put(queue, *DOCUMENTS, raw_scores=True)
    drive(worker)
    assert scores(replies(queue)[job.id]) == pytest.approx(reranker.score([(QUERY, text) for text in DOCUMENTS]))


def test_a_pair_that_is_cut_is_said_or_refused(worker: Worker, queue: Queue) -> None:
    cut = put(queue, "a", LONG)
    refused = put(queue, "a", LONG, options=Options(truncate=False))
    long_query = put(queue, "a", query=LONGER, options=Options(truncate=False, truncation_side="left"))
    drive(worker)
    found = replies(queue)
    assert (found[cut.id].truncated, found[cut.id].tokens[1]) == ([False, True], 48)
    for job, number in ((refused, 1), (long_query, 0)):
        error = found[job.id].error
        assert error is not None
        assert error.code == "text_too_long"
        assert error.message.startswith(f"text {number} and the query have more than the 48 tokens")


def test_a_headline_waits_for_one_pass_of_a_long_rerank(
    queue: Queue, encoder: Encoder, failing: FailingReranker
) -> None:
    worker = Worker(queue.consumer(), encoder, {}, Bucketing(100), reranker=failing)
    long = put(queue, *(f"{n} {LONG}" for n in range(30)))
    worker.step(block_s=0)
    headline = Embed(["storm"], reply_to="me")
    queue.put("interactive", [headline])
    worker.step(block_s=0)
    worker.step(block_s=0)
    assert replies(queue).keys() == {headline.id}
    assert len(failing.passes) <= 2
    drive(worker)
    assert len(scores(replies(queue)[long.id])) == 30


def test_a_pair_that_the_engine_fails_on_harms_its_own_job_alone(worker: Worker, queue: Queue) -> None:
    bad, good = put(queue, "rain", "poison"), put(queue, "rain")
    embed = Embed(["rain"], reply_to="me")
    queue.put("interactive", [embed])
    drive(worker)
    found = replies(queue)
    error = found[bad.id].error
    assert error is not None
    assert error.code == "internal"
    assert error.message.startswith("the engine failed on text 1")
    assert found[good.id].status == found[embed.id].status == "done"


def test_without_a_reranker_a_rerank_is_refused(queue: Queue, encoder: Encoder) -> None:
    worker = Worker(queue.consumer(), encoder, {}, Bucketing(4_096))
    job = put(queue, "rain")
    drive(worker)
    error = replies(queue)[job.id].error
    assert isinstance(error, Unsupported)
    assert error.message == "this worker has no reranker: set SHOAL_RERANKER to a cross-encoder, on all workers"
    assert service.about(worker)["reranker"] is None


def test_the_heartbeat_names_the_reranker(worker: Worker, reranker: Reranker) -> None:
    assert service.about(worker)["reranker"] == reranker.model.name


def test_a_query_over_the_limit_is_refused(worker: Worker, queue: Queue) -> None:
    job = put(queue, "rain", query="x" * 40_001)
    drive(worker)
    error = replies(queue)[job.id].error
    assert error is not None
    assert (error.code, error.message) == ("too_large", "query has 40,001 characters and may have 40,000: shorten it")


# Fields


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "query is null: it takes a string"),
        ({"query": ""}, "query is empty: it takes the text that the texts are scored for"),
        ({"query": " \n"}, "query is empty"),
        ({"query": 5}, "query is 5: it takes a string"),
        ({"query": "a", "raw_scores": 1}, "raw_scores is 1: it takes true or false"),
        ({"query": "a", "texts": []}, "the list of texts is empty"),
        ({"query": "a", "texts": "b"}, "texts is a string: it takes a list of strings"),
        ({"query": "a", "options": Options(normalize=False)}, "normalize does not go with a rerank: leave it out"),
        ({"query": "a", "options": Options(pooling="cls")}, "pooling does not go with a rerank"),
        ({"query": "a", "options": Options(output="tokens")}, "output does not go with a rerank"),
        ({"query": "a", "options": Options(dimensions=8)}, "dimensions does not go with a rerank"),
        ({"query": "a", "options": Options(prompt_name="query")}, "prompt_name does not go with a rerank"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Rerank(**({"texts": ["b"]} | fields))


def test_the_fields_of_a_rerank_are_ignored_elsewhere() -> None:
    data = Embed(["a"], id="x").pack()
    named = msgpack.unpackb(data) | {"query": "b", "raw_scores": True}
    assert operations.unpack(msgpack.packb(named)).pack() == data


def test_a_query_that_utf_8_cannot_hold_is_named() -> None:
    with pytest.raises(InvalidText, match=r"^query: "):
        Rerank(["a"], query="\ud83d").pack()


def test_a_job_and_its_reply_are_packed_and_unpacked() -> None:
    job = Rerank(["a", "b"], Options(truncate=False), query="c", raw_scores=True)
    assert operations.unpack(job.pack()) == job
    assert [part.query for part in job.split(1)] == ["c", "c"]
    assert job.digest() != Rerank(["a", "b"], Options(truncate=False), query="d", raw_scores=True).digest()
    reply = Reply("x", scores=np.array([0.1, -7.25], np.float32), tokens=[3, 4], truncated=[False, True], model="m")
    found = Reply.unpack(reply.pack())
    assert found.scores is not None
    assert found.scores.dtype == np.float32
    assert found.scores.tolist() == reply.scores.tolist()  # type: ignore[union-attr]
    joined = Reply.join([reply, reply])
    assert joined.scores is not None
    assert joined.scores.tolist() == [*found.scores, *found.scores]


def test_scores_stay_between_0_and_1_however_large_they_are() -> None:
    assert sigmoid(np.array([-1e4, 0, 1e4], np.float32)).tolist() == [0, 0.5, 1]


# Commands and the process


@pytest.mark.usefixtures("serving")
def test_the_command_prints_texts_and_scores_best_first(
    client: Client, redis_url: str, keys: Keys, tmp_path: Path
) -> None:
    settings = ["--redis-url", redis_url, "--key-prefix", keys.prefix, "--pool", keys.pool]
    (tmp_path / "texts.txt").write_text("\n".join(DOCUMENTS))
    printed = CliRunner().invoke(main, ["rerank", QUERY, "--file", str(tmp_path / "texts.txt"), *settings]).stdout
    expected = sorted(zip(client.rerank(QUERY, DOCUMENTS).tolist(), DOCUMENTS, strict=True), reverse=True)
    assert printed.splitlines() == [f"{score:.3f}  {text}" for score, text in expected]
    as_json = CliRunner().invoke(main, ["rerank", QUERY, *DOCUMENTS, "--raw-scores", "--json", *settings]).stdout
    raw = client.rerank(QUERY, DOCUMENTS, raw_scores=True)
    assert json.loads(as_json) == pytest.approx(raw.tolist(), abs=MAX_ERROR)


def test_the_command_prepares_both_models(tiny_source: Path, reranker_source: Path, tmp_path: Path) -> None:
    models = ["--model", str(tiny_source), "--reranker", str(reranker_source), "--home", str(tmp_path)]
    done = CliRunner().invoke(main, ["model", "prepare", *models])
    folders = [Path(line) for line in done.stdout.splitlines() if line.startswith("/")]
    assert [Model.open(folder).is_reranker for folder in folders] == [False, True]


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("ms-marco-minilm", True),
        pytest.param("cross-encoder/ms-marco-MiniLM-L6-v2", True, marks=pytest.mark.wide),
        pytest.param("ms-marco-minilm", False, marks=pytest.mark.wide),
    ],
)
def test_a_reranker_is_had_by_its_short_name(
    tiny_source: Path, reranker_source: Path, tmp_path: Path, name: str, is_there: bool
) -> None:
    """The hub's cache has it under its full name; where neither has it, the message says what was asked for."""
    if is_there:
        repository = tmp_path / "hub" / "models--cross-encoder--ms-marco-MiniLM-L6-v2"
        shutil.copytree(reranker_source, repository / "snapshots" / ("a" * 40))
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("a" * 40)
    models = ["--model", str(tiny_source), "--reranker", name, "--home", str(tmp_path / "home")]
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "shoal", "model", "prepare", *models]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if is_there:
        assert done.returncode == 0, done.stderr
        assert Model.open(Path(done.stdout.split()[-1])).is_reranker
    else:
        assert "model cross-encoder/ms-marco-MiniLM-L6-v2 is no local folder" in done.stderr.replace('"', "")
        assert "cannot be had from the hub" in done.stderr
        assert done.returncode == 1


def test_the_summary_names_the_reranker(
    worker: Worker, reranker: Reranker, redis_url: str, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.pool.announce(worker.id, service.about(worker))
    print_summary(Settings(redis_url=redis_url, key_prefix=keys.prefix, pool=keys.pool))
    model, name = worker.encoder.model.name, reranker.model.name
    assert f"ready:  1 worker with {model} on openvino f32, reranker {name}, index default" in capsys.readouterr().out
