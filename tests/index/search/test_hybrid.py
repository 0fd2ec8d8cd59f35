"""Searches by words, and by words and vectors, against brute force over all documents of an index and its changes."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_versions import write_version
from numpy.typing import NDArray
from queues import Queue, drive

from shoal.changes.change import Change
from shoal.contract.languages import NO_LANGUAGE
from shoal.errors import IndexMismatch, InvalidRequest
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.manifest import FILES, FILES_OF, MANIFEST, Manifest
from shoal_workers.index.index import Index
from shoal_workers.index.lexical.analyzer import Analyzer
from shoal_workers.index.lexical.snippet import snippet
from shoal_workers.index.query import ALPHA
from shoal_workers.index.ranked_search import RankedSearch
from shoal_workers.index.ranker import MAX_KEPT_WORDS
from shoal_workers.loop.worker import Worker

DIMENSION = 16
WORDS = [f"w{n}" for n in range(60)]

Vectors = NDArray[np.float32]


def random_vectors(draw: random.Random, num: int) -> Vectors:
    """Return vectors of length 1, of which some are equal and some nearly so."""
    vectors = np.array([[draw.gauss(0, 1) for _ in range(DIMENSION)] for _ in range(num)], np.float32)
    for row in range(1, num):
        if (luck := draw.random()) < 0.2:
            vectors[row] = vectors[draw.randrange(row)] + (0 if luck < 0.1 else 1e-6)
    normalised: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalised


def random_text(draw: random.Random) -> str:
    """Return a text of a few words, of which low numbers are frequent."""
    return " ".join(WORDS[min(int(draw.expovariate(0.1)), 59)] for _ in range(draw.randint(1, 12)))


def made(tmp_path: Path, count: int = 300) -> Index:
    """Return an index of so many documents, a few of which were deleted, replaced or added since it was built."""
    draw = random.Random(count)
    texts = [random_text(draw) for _ in range(count)]
    write_version(
        tmp_path / "v", [Document(f"d{n}", text, {}) for n, text in enumerate(texts)], random_vectors(draw, count)
    )
    index = Index.open_version(tmp_path / "v")
    added = [Document(f"d{n}", random_text(draw), {}) for n in range(count - 10, count + 15)]
    deleted = tuple(f"d{n}" for n in range(5))
    change = Change(tuple(added), random_vectors(draw, len(added)), deleted, "d" * 64, 1.0)
    index.live = index.live.after([change], "1-1", index.rows_of)
    return index


def plain_answer(index: Index, text: str, vector: Vectors, options: SearchOptions, k: int) -> list[tuple[int, float]]:
    """Return rows and scores of the best documents, by scoring all of them."""
    words = index.lexical.weigh([text])
    assert index.live.terms is not None
    lexical = np.concatenate([index.lexical.scores(words), index.live.terms.scores(words)])
    cosines = np.concatenate([np.vecdot(index.vectors, vector), np.vecdot(index.live.vectors, vector)])
    is_found = np.ones(len(lexical), bool)
    is_found[index.live.hidden_rows] = False
    if options.mode == "lexical":
        scores, is_found = lexical, is_found & (lexical > 0)
    elif best := lexical[is_found].max(initial=0):
        alpha = ALPHA if options.alpha is None else options.alpha
        scores = np.float32(alpha) * cosines + np.float32((1 - alpha) / best) * lexical
    else:
        scores = cosines
    rows = np.flatnonzero(is_found)
    order = rows[np.argsort(-scores[rows], kind="stable")][:k]
    return [(int(row), float(scores[row])) for row in order]


def found_by(index: Index, texts: list[str], vectors: Vectors, k: int, **options: Any) -> list[list[dict[str, Any]]]:
    """Return the hits of a search."""
    return index.answer(Search(texts, k=k, search=SearchOptions(**options)), vectors).hits


@pytest.mark.parametrize(
    "options", [{"mode": "lexical"}, *({"mode": "hybrid", "alpha": n} for n in (None, 0.0, 0.4, 1.0))]
)
@pytest.mark.parametrize(("count", "k"), [(40, 10), (40, 300), (700, 1), (3_000, 10), (3_000, 300)])
def test_hits_are_those_of_brute_force(tmp_path: Path, count: int, options: dict[str, Any], k: int) -> None:
    index = made(tmp_path, count)
    draw = random.Random(k)
    texts = [*(random_text(draw) for _ in range(12)), "unknown", "w59"]
    vectors = random_vectors(draw, len(texts))
    ids = [index.document(row)["id"] for row in range(index.manifest.count)] + list(index.live.ids)
    found = found_by(index, texts, vectors, k, **options)
    with index.exact_search.shared(vectors[1:]) as shared:
        job = Search(texts, k=k, search=SearchOptions(**options))
        assert index.answer(job, vectors, shared=shared).hits == found
    for text, vector, hits in zip(texts, vectors, found, strict=True):
        expected = plain_answer(index, text, vector, SearchOptions(**options), k)
        assert [hit["id"] for hit in hits] == [ids[row] for row, _ in expected]
        assert [hit["score"] for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-6)


def test_jobs_of_one_pass_get_the_hits_that_each_gets_alone(queue: Queue, encoder: Encoder, index: Index) -> None:
    hybrid = SearchOptions(mode="hybrid")
    queries = [f"{text} {n}" for n, text in enumerate(["storm", "rain europe", "unknown", "sun"] * 10)]
    jobs = [Search([query], k=3, reply_to="me", search=hybrid) for query in queries]
    bad = [replace(job, id=f"bad-{n}", search=replace(hybrid, fields=["no-such"])) for n, job in enumerate(jobs[:3])]
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(256))
    queue.put("interactive", [*jobs[:20], *bad, *jobs[20:]])
    drive(worker)
    for job in jobs[::10]:
        queue.put("interactive", [replace(job, id=f"{job.id}-alone")])
        drive(worker)
    found = {reply.id: reply for reply in queue.inbox("me").wait()}
    for job in jobs[::10]:
        together, alone = (found[job_id].hits or [[{}]] for job_id in (job.id, f"{job.id}-alone"))
        assert [hit["score"] for hit in together[0]] == pytest.approx([hit["score"] for hit in alone[0]], abs=1e-5)
    assert all(isinstance(found[job.id].error, InvalidRequest) for job in bad)


def test_words_that_no_document_has_find_nothing_by_words_and_the_nearest_with_vectors(tmp_path: Path) -> None:
    index = made(tmp_path)
    vectors = random_vectors(random.Random(1), 1)
    assert found_by(index, ["unknown"], vectors, 3, mode="lexical") == [[]]
    dense = found_by(index, ["unknown"], vectors, 3, explain=True)
    hybrid = found_by(index, ["unknown"], vectors, 3, mode="hybrid", explain=True)
    assert [hit["score"] for hit in hybrid[0]] == [hit["score"] for hit in dense[0]]


def test_a_score_is_explained_by_its_parts(tmp_path: Path) -> None:
    index = made(tmp_path)
    text, vectors = "w3 w17 w1 unknown", random_vectors(random.Random(2), 1)
    (hits,) = found_by(index, [text], vectors, 20, mode="hybrid", explain=True)
    best = max(found_by(index, [text], vectors, 1, mode="lexical")[0][0]["score"], 0)
    for hit in hits:
        parts = hit["explain"]
        assert hit["score"] == pytest.approx(ALPHA * parts["cosine"] + (1 - ALPHA) * parts["bm25"] / best, abs=1e-5)
        assert sum(parts["words"].values()) == pytest.approx(parts["bm25"], rel=1e-4)
        assert set(parts["words"]) == set(hit["text"].split()) & set(text.split())


@pytest.mark.parametrize("added", ["w31 w31 w31 w31", "w59"])
def test_the_order_of_later_pages_is_that_of_the_first_whatever_is_added_or_deleted(tmp_path: Path, added: str) -> None:
    index = made(tmp_path)
    text, vectors = "w31 w17 w3", random_vectors(random.Random(5), 1)
    (whole,) = found_by(index, [text], vectors, 400, mode="hybrid")
    job = Search([text], k=10, search=SearchOptions(mode="hybrid", cursor=""))
    (cursor,) = index.answer(job, vectors).cursors or [""]
    deleted = tuple(hit["id"] for hit in found_by(index, [text], vectors, 3, mode="lexical")[0])
    change = Change((Document("last", added, {}),), -vectors, deleted, "d" * 64, 2.0)
    index.live = index.live.after([change], "1-2", index.rows_of)
    pages = [hit["id"] for hit in whole[:10]]
    while cursor:
        page = index.answer(Search([text], k=50, search=SearchOptions(mode="hybrid", cursor=cursor)), vectors)
        pages += [hit["id"] for hit in page.hits[0]]
        (cursor,) = page.cursors or [""]
    expected = [hit["id"] for hit in whole[:10]] + [hit["id"] for hit in whole[10:] if hit["id"] not in deleted]
    assert [one for one in pages if one != "last"] == expected


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_the_words_of_few_queries_are_kept_at_a_time(tmp_path: Path, mode: str) -> None:
    index = made(tmp_path)
    texts = [f"w{n}" for n in range(MAX_KEPT_WORDS + 5)]
    vectors = random_vectors(random.Random(4), len(texts))
    job = Search(texts, search=SearchOptions(mode=mode, explain=True, snippet={}))
    search = RankedSearch(index, job, vectors)
    found = search.answer(search.find()).hits
    assert len(search._ranker._words) == MAX_KEPT_WORDS
    alone = [
        found_by(index, [text], vector[None], 5, mode=mode, explain=True, snippet={})[0]
        for text, vector in zip(texts, vectors, strict=True)
    ]
    assert [[hit["id"] for hit in hits] for hits in found] == [[hit["id"] for hit in hits] for hits in alone]


def test_words_are_explained_without_reading_texts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, read = made(tmp_path), list[str]()

    def noted(method: Callable[[Analyzer, str], Any]) -> Callable[[Analyzer, str], Any]:
        def call(analyzer: Analyzer, text: str) -> Any:
            read.append(text)
            return method(analyzer, text)

        return call

    for name in ("terms", "words"):
        monkeypatch.setattr(Analyzer, name, noted(getattr(Analyzer, name)))
    vectors = random_vectors(random.Random(2), 1)
    (hits,) = found_by(index, ["w3 w17"], vectors, 50, mode="hybrid", explain=True)
    assert len([hit for hit in hits if hit["explain"]["words"]]) > 2
    assert read == ["w3 w17"] * 2


def test_a_search_for_many_lists_tells_of_each_that_it_goes_on(tmp_path: Path) -> None:
    index, marks = made(tmp_path), list[None]()
    job = Search(["w3", "w17", "w1"], k=2, search=SearchOptions(mode="hybrid"))
    index.answer(job, random_vectors(random.Random(2), 3), lambda: marks.append(None))
    assert len(marks) >= 2 * len(job.texts)


def test_a_search_by_words_takes_texts(tmp_path: Path) -> None:
    index = made(tmp_path)
    with pytest.raises(InvalidRequest, match="takes texts"):
        index.answer(
            Search([], search=SearchOptions(mode="lexical", like=["d20"])), np.empty((0, DIMENSION), np.float32)
        )


def test_an_index_of_an_older_layout_is_searched_by_vectors_alone(tmp_path: Path) -> None:
    vectors = random_vectors(random.Random(3), 30)
    write_version(tmp_path / "v", [Document(f"d{n}", "w1", {}) for n in range(30)], vectors)
    manifest = Manifest.read(tmp_path / "v")
    sums = {name: manifest.checksums[name] for name in FILES_OF[4]}
    for name in set(FILES) - set(sums):
        (tmp_path / "v" / name).unlink()
    older = {name: getattr(manifest, name) for name in manifest.__slots__} | {"checksums": sums, "layout": 4}
    Manifest(**older).save(tmp_path / "v")
    assert (tmp_path / "v" / MANIFEST).exists()
    index = Index.open_version(tmp_path / "v")
    assert len(index.search(vectors[:1], 5)[0]) == 5
    for mode in ("lexical", "hybrid"):
        with pytest.raises(IndexMismatch, match="build the index again"):
            found_by(index, ["w1"], vectors[:1], 5, mode=mode)


#: Words, and what stands after them in a text.
MADE_WORDS = st.sampled_from(["storm", "rain", "wind", "snow", "sunshine"])
WORD_ENDS = st.sampled_from([" ", ". ", "\n", ", ", "  "])


class TestASnippet:
    TEXT = (
        "The committee met on Monday. It spoke of roads. The old bridge over the river was closed after the flood. "
        "Repairs of the bridge will take two years, the mayor said, and cost more than was planned. "
        + "Nothing else. "
        * 40
    )

    def index(self, tmp_path: Path) -> Index:
        """Return an index of three texts."""
        documents = [
            Document("a", self.TEXT, {}),
            Document("b", "東京の橋は古いです。京都の寺も古いです。", {}),
            Document("c", "...", {}),
        ]
        write_version(tmp_path / "v", documents, np.eye(3, DIMENSION, dtype=np.float32))
        return Index.open_version(tmp_path / "v")

    def snippet(self, index: Index, query: str, document_id: str, **options: Any) -> dict[str, Any]:
        vectors = np.ones((1, DIMENSION), np.float32) / math.sqrt(DIMENSION)
        (hits,) = found_by(index, [query], vectors.astype(np.float32), 3, snippet=options)
        found = next(hit for hit in hits if hit["id"] == document_id)
        snippet: dict[str, Any] = found["snippet"]
        assert snippet["text"] == found["text"][snippet["start"] : snippet["stop"]]
        assert len(snippet["text"]) <= options.get("max_chars", 240)
        return snippet

    def test_has_the_words_of_the_query(self, tmp_path: Path) -> None:
        index = self.index(tmp_path)
        found = self.snippet(index, "cost of repairs BRIDGE", "a", max_chars=100)
        marked = {found["text"][start:stop] for start, stop in found["highlights"]}
        assert marked >= {"Repairs", "bridge", "cost"}
        assert found["text"].startswith("Repairs")

    def test_marks_runs_without_spaces(self, tmp_path: Path) -> None:
        index = self.index(tmp_path)
        found = self.snippet(index, "京都の寺", "b", max_chars=20)
        assert [found["text"][start:stop] for start, stop in found["highlights"]][-1] == "京都の寺"

    def test_is_the_beginning_where_no_word_is_found(self, tmp_path: Path) -> None:
        index = self.index(tmp_path)
        found = self.snippet(index, "unknown", "a", max_chars=60)
        assert found["start"] == 0
        assert found["highlights"] == []
        assert self.snippet(index, "unknown", "c")["text"] == "..."

    @given(st.lists(st.tuples(MADE_WORDS, WORD_ENDS), max_size=60), st.sets(MADE_WORDS), st.integers(20, 120))
    def test_marks_each_word_of_the_query_in_it_and_nothing_else(
        self, parts: list[tuple[str, str]], query: set[str], max_chars: int
    ) -> None:
        text, analyzer = "".join(word + end for word, end in parts), Analyzer(NO_LANGUAGE)
        weights = {int(term): 1.0 for word in query for term in analyzer.terms(word)}
        found = snippet(text, analyzer, weights, max_chars, len(text))
        assert found["text"] == text[found["start"] : found["stop"]] == found["text"].rstrip()
        assert found["stop"] <= len(text)
        assert len(found["text"]) <= max_chars
        marked = [found["text"][start:stop] for start, stop in found["highlights"]]
        assert marked == [word for word in re.findall(r"\w+", found["text"]) if word in query]
        assert bool(marked) == any(word in query for word, _ in parts)

    @pytest.mark.parametrize("snippet", [{"max_chars": 5}, {"max_chars": "9"}, {"maxchars": 100}, []])
    def test_is_refused_in_another_form(self, snippet: Any) -> None:
        with pytest.raises(InvalidRequest, match="snippet"):
            SearchOptions(snippet=snippet)
