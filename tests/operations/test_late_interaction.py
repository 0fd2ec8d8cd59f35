"""A late-interaction model as the reranker: its scores equal the library's, and a job encodes its query once."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import late_model
import numpy as np
import pytest
from asking import ask, error, hits, replies
from asking import scores as scores_of
from changes import unit_vectors
from conftest import TESTS, WORDS
from made_documents import apply
from numpy.typing import NDArray
from passes import Noting
from queues import Queue, drive
from test_rerank import DOCUMENTS, LONG, LONGER, MAX_ERROR, PAIRS, QUERY, rerank, search

from shoal.changes.change import Change
from shoal.contract.options import Options
from shoal.errors import InvalidRequest, Unavailable
from shoal.operations import Search
from shoal.records.document import Document
from shoal.records.source import Source
from shoal.settings import Settings
from shoal.task_progress import TaskProgress
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.reranker import LateReranker, QueryText, Reranker, max_sim, token_vectors
from shoal_workers.index.build.builder import BuildResult, build
from shoal_workers.index.build.document_encoder import GROUP, LocalEncoder
from shoal_workers.index.build.scratch import SCRATCH, SYNC_EVERY
from shoal_workers.index.build.text_encoding import LENGTHS
from shoal_workers.index.files.manifest import TOKENS
from shoal_workers.index.index import Index
from shoal_workers.index.long_jobs import BuildIndex, build_index
from shoal_workers.index.vectors.token_vectors import restored
from shoal_workers.loop.worker import Worker
from shoal_workers.service import service

Texts = list[TokenizedText]

ASKED = ("storm", "rain in europe")


def score(late: Reranker, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
    """Return the raw scores `[pairs]`, all computed in one pass."""
    inputs, queries = late.inputs_of(pairs)
    texts = [TokenizedText(tokens, outputs=(late.output,)) for tokens in late.tokenize(inputs)]
    late.encode(texts)
    pairs_of_vectors = [(token_vectors(texts[query]), token_vectors(texts[pair])) for pair, query in queries.items()]
    return np.concatenate([max_sim(*pair)[:, 0] for pair in pairs_of_vectors])


@pytest.fixture(scope="module")
def late_source(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late") / "late"
    late_model.save(folder, tiny_source)
    return folder


@pytest.fixture(scope="module")
def late(late_source: Path) -> LateReranker:
    """Return the model, opened in f32."""
    settings = Settings(reranker=str(late_source), home=str(late_source.parent), engine="openvino", precision="f32")
    opened = service.open_reranker(settings, 1)
    assert isinstance(opened, LateReranker)
    return opened


@pytest.mark.wide
def test_scores_equal_the_scores_of_sentence_transformers(
    torch_reference: None, late: LateReranker, late_source: Path
) -> None:
    pairs = late_source.with_name("pairs.json")
    pairs.write_text(json.dumps(PAIRS))
    command = [sys.executable, "-W", "ignore", TESTS / "shared/models/late_model.py", late_source, pairs]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    together, alone = score(late, PAIRS), np.concatenate([score(late, [pair]) for pair in PAIRS])
    with np.load(late_source.with_suffix(".npz")) as expected:
        assert np.ptp(expected["raw"]) > 0.5
        for raw in (together, alone):
            assert raw == pytest.approx(expected["raw"], abs=late_model.QUERY_TOKENS * MAX_ERROR)
            assert raw / late_model.QUERY_TOKENS == pytest.approx(expected["scores"], abs=MAX_ERROR)


def test_other_precisions_are_exact_enough_to_serve(late: LateReranker, late_source: Path) -> None:
    for precision in ("bf16", "int8"):
        settings = Settings(reranker=str(late_source), home=str(late_source.parent), precision=precision)
        opened = service.open_reranker(settings, 1)
        assert opened
        assert score(opened, PAIRS) == pytest.approx(score(late, PAIRS), abs=0.05 * late_model.QUERY_TOKENS)


def test_a_text_unlike_the_query_scores_0() -> None:
    rows = np.eye(2, 3, dtype=np.float32)
    for text, raw in ((-(rows[:1] + rows[1:]) / np.float32(2**0.5), -(2**0.5)), (rows[:0], -2)):
        assert max_sim(rows, text) == pytest.approx(np.array([[raw, 0]], np.float32))


class CountingReranker(Noting, LateReranker):
    """A late-interaction model that also notes the number of queries in each pass."""

    def __init__(self, late: LateReranker):
        super().__init__(late, "d poison")
        self.num_queries: list[int] = []
        self.before_pass = lambda texts: self.num_queries.append(sum(text.tokens.is_query for text in texts))


@pytest.fixture
def counting(late: LateReranker) -> CountingReranker:
    return CountingReranker(late)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, counting: CountingReranker, index: Index) -> Worker:
    """Return a worker with small passes, so that a job needs several."""
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(48), reranker=counting)


def test_a_job_reads_its_query_once_and_keeps_no_vectors_of_texts(
    worker: Worker, queue: Queue, counting: CountingReranker, late: LateReranker
) -> None:
    texts = [*DOCUMENTS, LONG, LONGER]
    raw, scaled = (rerank(*texts, raw_scores=raw) for raw in (True, False))
    queue.put("interactive", [raw, scaled])
    for _ in range(3):
        worker.step(block_s=0)
    kept = [text for work in worker.scheduler.works for text in work.encoded.values()]
    assert kept
    assert all(text.tokens.is_query for text in kept)
    drive(worker)
    first, second = replies(worker, raw, scaled)
    expected = score(late, [(QUERY, text) for text in texts])
    assert scores_of(first) == pytest.approx(expected, abs=MAX_ERROR)
    assert scores_of(second) == pytest.approx(expected / late_model.QUERY_TOKENS, abs=MAX_ERROR)
    assert sum(counting.num_queries) == 1  # both jobs have the same query
    assert len(counting.num_queries) > 2
    assert second.tokens == [len(tokens.ids) for tokens in late.tokenize([f"d {text}" for text in texts])]
    assert second.model == late.model.name


def check_hits(late: LateReranker, queries: Sequence[str], found: list[list[dict[str, Any]]], error: float) -> None:
    """Assert that the hits of each query come in the order of the model's scores."""
    for query, of_query in zip(queries, found, strict=True):
        scores = [hit["score"] for hit in of_query]
        assert scores == sorted(scores, reverse=True)
        expected = score(late, [(query, hit["text"]) for hit in of_query]) / late_model.QUERY_TOKENS
        assert scores == pytest.approx(np.maximum(expected, 0), abs=error)


def test_the_hits_of_a_search_come_in_the_order_of_the_scores(
    worker: Worker, counting: CountingReranker, late: LateReranker
) -> None:
    (reply,) = ask(worker, search(*ASKED, k=10, rerank={"top_n": 10}))
    check_hits(late, ASKED, hits(reply), MAX_ERROR)
    assert sum(counting.num_queries) == len(ASKED)


def test_a_cut_text_is_reported_and_a_cut_query_is_refused_if_that_is_asked_for(worker: Worker) -> None:
    no_cut = Options(truncate=False)
    jobs = rerank("a", LONG, query=LONGER), rerank("a", LONG, options=no_cut), rerank("a", query=LONG, options=no_cut)
    first, text, query = ask(worker, *jobs)
    assert (first.truncated, first.tokens[1]) == ([False, True], late_model.TEXT_TOKENS)
    assert 0 < first.characters[1] < len(LONG)
    assert error(text).message.startswith(f"text 1 has more than the {late_model.TEXT_TOKENS} tokens")
    assert error(query).message.startswith(f"the query has more than the {late_model.QUERY_TOKENS} tokens")


@pytest.mark.parametrize(("query", "name"), [("poison", "the query"), (QUERY, "text 1")])
def test_a_text_that_the_engine_fails_on_harms_only_its_own_job(
    worker: Worker, counting: CountingReranker, query: str, name: str
) -> None:
    if query == "poison":
        (counting.poison,) = counting.tokenize([QueryText("q poison")])
    failed, done = ask(worker, rerank("rain", "poison", query=query), rerank("rain"))
    assert error(failed).message.startswith(f"the engine failed on {name}")
    assert done.error is None


class TestStoredTokenVectors:
    """Second stages in an index that has the token vectors of its documents."""

    TEXTS = tuple(f"{first} {second}" for first in WORDS for second in WORDS)

    @pytest.fixture
    def folder(self, tmp_path: Path, encoder: Encoder, late: LateReranker) -> Path:
        """Return the folder of an index with token vectors. Two of its documents are equal, and one is empty."""
        self.build(tmp_path, (*self.TEXTS, self.TEXTS[0], "the"), encoder, late)
        return tmp_path / "index"

    def build(
        self, folder: Path, texts: Sequence[str], encoder: Encoder, late: LateReranker, **options: Any
    ) -> BuildResult:
        path, lines = folder / "texts.csv", "id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts))
        if not path.exists() or path.read_text() != lines:  # an interrupted build of a changed file begins anew
            path.write_text(lines)
        return build(Source(path), folder / "index", LocalEncoder(encoder), late=late, **options)

    def test_score_hits_without_reading_their_texts(
        self, queue: Queue, encoder: Encoder, counting: CountingReranker, late: LateReranker, folder: Path
    ) -> None:
        index = Index.open(folder)
        vectors = unit_vectors(1, encoder.model.dimension)
        apply(index, [Change((Document("new", "rain rain", {}),), vectors, (), encoder.model.digest, 0.0)])
        worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), reranker=counting)
        (reply,) = ask(worker, search(*ASKED, k=index.count, rerank={"top_n": index.count}))
        check_hits(late, ASKED, hits(reply), 0.01)
        for found in hits(reply):
            assert {hit["id"] for hit in found} == {*map(str, range(len(self.TEXTS) + 2)), "new"}
        assert sum(counting.num_queries) == len(ASKED)
        assert sum(counting.passes) == len(ASKED) + 1  # reads only the document that was added
        find = Index.open(folder).find(Search(["storm"]), vectors)  # vectors of another model are not used
        assert len(find.token_codes(late.token_digest)) == 5
        assert find.token_codes("") == find.token_codes("f" * 32) == {}
        assert Reranker.token_digest.fget(late) == ""  # type: ignore[attr-defined]

    def test_of_former_texts_are_reused(
        self, tmp_path: Path, encoder: Encoder, counting: CountingReranker, folder: Path, late: LateReranker
    ) -> None:
        texts = ("europe falls again", self.TEXTS[3], *self.TEXTS[1:], "europe falls again")
        self.build(tmp_path, texts, encoder, counting)
        assert sum(counting.passes) == 1
        built = Index.open(folder)
        assert self.build(tmp_path, texts, encoder, counting).is_unchanged
        (full := tmp_path / "full").mkdir()
        self.build(full, texts, encoder, late)
        expected = Index.open(full / "index")
        assert built.token_vectors
        assert expected.token_vectors
        for row in range(len(texts)):
            one, other = (index.token_vectors.of(row).astype(int) for index in (built, expected) if index.token_vectors)
            np.testing.assert_allclose(one, other, atol=1)
        assert np.array_equal(built.token_vectors.of(0), built.token_vectors.of(len(texts) - 1))
        data = (path := built.folder / TOKENS).read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        self.build(tmp_path, texts, encoder, counting)
        assert sum(counting.passes) == 1 + len({*texts})
        assert not build(Source(tmp_path / "texts.csv"), tmp_path / "index", LocalEncoder(encoder)).is_unchanged

    @pytest.mark.parametrize(("num_former", "damaged"), [(1, ""), (0, TOKENS), (0, LENGTHS)])
    def test_of_an_interrupted_build_are_kept_unless_their_files_are_damaged(
        self, tmp_path: Path, encoder: Encoder, counting: CountingReranker, num_former: int, damaged: str
    ) -> None:
        texts, seen = [f"storm {n}" for n in range(SYNC_EVERY + 100)], list[str]()
        if num_former:
            self.build(tmp_path, texts[:num_former], encoder, counting)

        def stop(progress: TaskProgress) -> None:
            seen.append(progress.step)
            num_groups = SYNC_EVERY // GROUP + bool(num_former)
            if seen.count("embedding tokens") == num_groups or progress.step == "quantising":
                raise Unavailable("stop")

        for _ in range(3):
            with pytest.raises(Unavailable):
                self.build(tmp_path, texts, encoder, counting, report=stop)
        path = tmp_path / "index" / SCRATCH / (damaged or TOKENS)
        os.truncate(path, path.stat().st_size + (-8 if damaged else 1_000_000))
        self.build(tmp_path, texts, encoder, counting)
        assert sum(counting.passes) == len(texts) + (SYNC_EVERY if damaged else 0)
        tokens = Index.open(tmp_path / "index").token_vectors
        (last,) = counting.encoded(texts[-1:], Options(output="multivector"), counting.prefix)
        assert tokens
        np.testing.assert_allclose(restored(tokens.of(len(texts) - 1)), token_vectors(last), atol=0.01)

    def test_need_a_late_interaction_model(
        self, tmp_path: Path, encoder: Encoder, reranker_source: Path, home: Path
    ) -> None:
        (tmp_path / "texts.txt").write_text("storm\n")
        request = BuildIndex("texts", str(tmp_path / "texts.txt"), token_vectors=True)
        for name in ("", str(reranker_source)):
            settings = Settings(reranker=name, home=str(home))
            with pytest.raises(InvalidRequest, match=r"SHOAL_RERANKER is .*: set it to .* a late-interaction model"):
                build_index(request, tmp_path / "index", LocalEncoder(encoder), print, settings=settings)
