"""Searches by words, and by words and vectors: over many documents, in shared passes, explained, and with snippets."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from made_documents import DIMENSION, near_ties
from queues import Queue, drive
from test_search_modes import Scene

from shoal.contract.languages import NO_LANGUAGE
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.index.lexical.analyzer import Analyzer
from shoal_workers.index.lexical.snippet import snippet
from shoal_workers.index.ranker import ALPHA, MAX_KEPT_WORDS
from shoal_workers.loop.worker import Worker


def random_texts(num: int, seed: int) -> list[str]:
    """Return texts of a few words each; the words are numbers, and low numbers are frequent."""
    draw = random.Random(seed)
    return [" ".join(f"w{min(int(draw.expovariate(0.1)), 59)}" for _ in range(draw.randint(1, 12))) for _ in range(num)]


def scene_of(folder: Path, count: int) -> Scene:
    """Return an index with this number of documents, some of them deleted, replaced or added since it was built."""
    ids = [*range(count - 10), *range(count - 20, count - 10)]
    texts = random_texts(len(ids), count)
    documents = [Document(str(n), text, {}) for n, text in zip(ids, texts, strict=True)]
    vectors = np.concatenate([near_ties(count // 2, 1), unit_vectors(count - count // 2, DIMENSION, 2)])
    return Scene.of(folder / "v1", documents, vectors, count - 15, ["0", "1", "2"])


@pytest.mark.parametrize(
    "options", [{"mode": "lexical"}, *({"mode": "hybrid", "alpha": alpha} for alpha in (None, 0.0, 1.0))]
)
def test_hits_of_many_documents_are_as_by_scoring_all(tmp_path: Path, options: dict[str, Any]) -> None:
    scene = scene_of(tmp_path, 3_000)
    texts = [*random_texts(12, 1), "unknown", "w59"]
    vectors = np.concatenate([near_ties(7, 1), unit_vectors(7, DIMENSION, 3)])
    for k in (10, 300):
        job = Search(texts, k=k, search=SearchOptions(**options))
        found = scene.index.find(job, vectors).answer().hits
        with scene.index.exact_search.shared(vectors[1:]) as shared:
            assert scene.index.find(job, vectors, shared=shared).answer().hits == found
        for hits, ranked in zip(found, scene.lists(job, vectors), strict=True):
            assert hits == [scene.hit(place, job.search) for place in ranked[:k]]


def test_jobs_of_one_pass_get_the_hits_that_each_gets_alone(queue: Queue, encoder: Encoder, index: Index) -> None:
    hybrid, odd = SearchOptions(mode="hybrid"), SearchOptions(mode="hybrid", fields=["no-such"])
    queries = [f"{text} {n}" for n, text in enumerate(["storm", "rain europe", "unknown", "sun"] * 10)]
    jobs = [Search([query], k=3, reply_to="me", search=hybrid) for query in queries]
    bad = [Search([query], reply_to="me", search=odd) for query in queries[:3]]
    again = [Search([query], k=3, reply_to="me", search=hybrid) for query in queries[::10]]
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(256))
    queue.put("interactive", [*jobs[:20], *bad, *jobs[20:]])
    drive(worker)
    for job in again:
        queue.put("interactive", [job])
        drive(worker)
    found = {reply.id: reply for reply in queue.inbox("me").wait()}
    for one, other in zip(jobs[::10], again, strict=True):
        together, alone = (found[job.id].hits or [[{}]] for job in (one, other))
        assert [hit["score"] for hit in together[0]] == pytest.approx([hit["score"] for hit in alone[0]], abs=1e-5)
    assert all(isinstance(found[job.id].error, InvalidRequest) for job in bad)


def test_a_score_is_explained_by_its_parts(tmp_path: Path) -> None:
    scene, query = scene_of(tmp_path, 300), unit_vectors(1, DIMENSION)[0]
    text = "w3 w17 w1 unknown"
    explained: dict[str, Any] = {"mode": "hybrid", "explain": True}
    best = scene.answer(query, 1, text, mode="lexical").hits[0][0]["score"]
    for hit in scene.answer(query, 300, text, **explained).hits[0]:
        parts = hit["explain"]
        assert hit["score"] == pytest.approx(ALPHA * parts["cosine"] + (1 - ALPHA) * parts["bm25"] / best, abs=1e-5)
        assert sum(parts["words"].values()) == pytest.approx(parts["bm25"], rel=1e-4)
        assert set(parts["words"]) == set(hit["text"].split()) & set(text.split())
    reranked = Search([text], k=2, search=SearchOptions(rerank={"top_n": 3}, **explained))
    (hits,) = scene.index.find(reranked, query[None]).answer([0.1, 0.2, 0.3]).hits
    assert [hit["explain"]["rerank"] for hit in hits] == [0.3, 0.2]


def test_more_lists_than_words_are_kept_for_are_explained_and_each_is_announced(tmp_path: Path) -> None:
    scene, marks = scene_of(tmp_path, 300), list[None]()
    texts = [f"w{n}" for n in range(MAX_KEPT_WORDS + 5)]
    vectors = near_ties(len(texts), 4)
    options: dict[str, Any] = {"mode": "hybrid", "explain": True, "snippet": {}}
    job = Search(texts, k=5, search=SearchOptions(**options))
    found = scene.index.find(job, vectors, lambda: marks.append(None)).answer().hits
    alone = [scene.answer(vector, 5, text, **options).hits[0] for text, vector in zip(texts, vectors, strict=True)]
    assert found == alone
    assert len(marks) >= 2 * len(texts)


#: Words, and the texts between them.
MADE_WORDS = st.sampled_from(["storm", "rain", "wind", "snow", "sunshine"])
WORD_ENDS = st.sampled_from([" ", ". ", "\n", ", ", "  "])

TEXT = (
    "The committee met on Monday. It spoke of roads. The old bridge over the river was closed after the flood. "
    "Repairs of the bridge will take two years, the mayor said, and cost more than was planned. "
    + "Nothing else. "
    * 40
)


def test_a_snippet_has_the_words_of_the_query(tmp_path: Path) -> None:
    texts = {"a": TEXT, "b": "東京の橋は古いです。京都の寺も古いです。", "c": f"{' ' * 300}..."}
    documents = [Document(name, text, {}) for name, text in texts.items()]
    scene = Scene.of(tmp_path / "v1", documents, np.eye(3, DIMENSION, dtype=np.float32), 3)

    def found(text: str, name: str, max_chars: int) -> dict[str, Any]:
        hits = scene.answer(unit_vectors(1, DIMENSION)[0], 3, text, snippet={"max_chars": max_chars}).hits[0]
        made: dict[str, Any] = next(hit["snippet"] for hit in hits if hit["id"] == name)
        assert made["text"] == texts[name][made["start"] : made["stop"]]
        assert len(made["text"]) <= max_chars
        return made

    of_words = found("cost of repairs BRIDGE", "a", 100)
    assert {of_words["text"][start:stop] for start, stop in of_words["highlights"]} >= {"Repairs", "bridge", "cost"}
    assert of_words["text"].startswith("Repairs")
    of_runs = found("京都の寺", "b", 20)
    assert [of_runs["text"][start:stop] for start, stop in of_runs["highlights"]][-1] == "京都の寺"
    beginning = found("unknown", "a", 60)
    assert (beginning["start"], beginning["highlights"]) == (0, [])
    assert found("unknown", "c", 240)["text"] == "..."
    (hit,) = scene.answer(unit_vectors(1, DIMENSION)[0], 3, "京橋", mode="lexical", explain=True).hits[0]
    assert set(hit["explain"]["words"]) == {"京", "橋"}
    assert sum(hit["explain"]["words"].values()) == pytest.approx(hit["score"])


@given(st.lists(st.tuples(MADE_WORDS, WORD_ENDS), max_size=60), st.sets(MADE_WORDS), st.integers(20, 120))
def test_a_snippet_marks_each_word_of_the_query_in_it_and_nothing_else(
    parts: list[tuple[str, str]], query: set[str], max_chars: int
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


def test_of_a_long_text_a_snippet_searches_the_beginning() -> None:
    analyzer = Analyzer(NO_LANGUAGE)
    weights = dict.fromkeys(map(int, analyzer.terms("storm")), 1.0)
    assert snippet("rain and storm", analyzer, weights, 40, len("rain and")) == {
        "text": "rain and storm",
        "start": 0,
        "stop": 14,
        "highlights": [],
    }
