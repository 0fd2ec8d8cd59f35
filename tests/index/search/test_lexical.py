"""The lexical index: words in any script, BM25 scores against a plain computation, and files that no build wrote."""

import json
import math
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from made_documents import DIMENSION
from numpy.typing import NDArray
from test_search_modes import Scene

from shoal.contract.languages import LANGUAGES, NO_LANGUAGE
from shoal.contract.vectors import SparseVector
from shoal.errors import IndexCorrupt
from shoal.records.document import Document
from shoal_workers.index.files.manifest import DOCUMENTS, LEXICAL, POSTINGS, STARTS
from shoal_workers.index.lexical.analyzer import Analyzer, find_language, find_words, split_words
from shoal_workers.index.lexical.lexical_file import WEIGHTS, weights_of, write_learned, write_lexical
from shoal_workers.index.lexical.lexical_index import IMPACT_STEP, K1, B, LexicalIndex
from shoal_workers.index.lexical.snippet import snippet
from shoal_workers.index.lexical.stop_words import STOP_WORDS

ENGLISH = [
    "The river rose in the night, and the roads to the village were under water until the morning.",
    "A committee of the council has agreed on the plans for a new library that will be built at the station.",
    "They said that they had not been told about it, but it was clear to them that this would be a long winter.",
]
GERMAN = [
    "Der Fluss ist in der Nacht gestiegen, und die Straßen zu dem Dorf standen bis zum Morgen unter Wasser.",
    "Ein Ausschuss des Rates hat den Plänen für eine neue Bibliothek zugestimmt, die am Bahnhof gebaut wird.",
    "Sie sagten, dass ihnen nichts davon gesagt worden war, aber es war ihnen klar, dass es ein langer Winter wird.",
]


def built(folder: Path, texts: Sequence[str], language: str | None = NO_LANGUAGE) -> LexicalIndex:
    """Return the opened lexical index of these texts."""
    (folder / DOCUMENTS).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write_lexical(folder, len(texts), language, lambda _: None)
    return LexicalIndex.open(folder, len(texts))


def scores(index: LexicalIndex, query: str) -> list[float]:
    """Return the scores of all documents for a query."""
    found: list[float] = index.scores(index.weigh([query])).tolist()
    return found


def plain_scores(texts: Sequence[str], query: str) -> list[float]:
    """Return BM25 by its formula, with impacts in steps, for texts whose words are separated by spaces."""
    documents = [Counter(text.split()) for text in texts]
    average = max(1.0, sum(document.total() for document in documents) / len(documents))
    found = [0.0] * len(texts)
    for word in query.split():
        num_with = sum(word in document for document in documents)
        weight = math.log(1 + (len(texts) - num_with + 0.5) / (num_with + 0.5))
        for row, document in enumerate(documents):
            if count := document[word]:
                impact = count * (K1 + 1) / (count + K1 * (1 - B + B * document.total() / average))
                found[row] += weight * min(255, max(1, round(impact / IMPACT_STEP))) * IMPACT_STEP
    return found


def test_words_are_found_in_any_script_and_have_their_places() -> None:
    assert split_words("Wi-Fi 6E, isn't it?") == ["Wi", "Fi", "6E", "isn", "t", "it"]
    assert split_words("snake_case äöü e\u0301cole 🐟 \x00") == ["snake", "case", "äöü", "e\u0301cole"]
    assert split_words("हिन्दी में 東京タワー and 서울") == ["हिन्दी", "में", "東京タワー", "and", "서울"]
    text = "Zwei Füße, 東京都 and हिन्दी"
    assert [(text[start:stop], word) for start, stop, word in find_words(text)] == [
        (word, word) for word in ("Zwei", "Füße", "東京", "京都", "and", "हिन्दी")
    ]


def test_words_that_differ_in_form_alone_are_one_term() -> None:
    plain, english = Analyzer(NO_LANGUAGE), Analyzer("english")
    pairs = [("École", "ecole"), ("STRASSE", "straße"), ("ﬁsh", "FISH"), ("e\u0301", "é"), ("ｆｉｓｈ", "fish")]
    for one, other in (*pairs, ("a" * 2**20, "a" * 64)):
        assert plain.terms(one).tolist() == plain.terms(other).tolist() != []
    assert english.terms("connections").tolist() == english.terms("Connected").tolist()
    assert english.terms("what is the this").tolist() == []
    assert plain.terms("what is").tolist() != []
    assert set(STOP_WORDS) < set(LANGUAGES)
    for language in LANGUAGES:
        assert len(Analyzer(language).terms("xylophones книги 東京")) == 5


def test_words_take_memory_once_for_all_indexes_and_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    text, taken = " ".join(map(str, range(10**6, 10**6 + 10_000))), list[int]()
    for _ in range(2):
        analyzer = Analyzer(NO_LANGUAGE)
        tracemalloc.start()
        assert len(analyzer.terms(text)) == 10_000
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert taken[1] < 0.1 * taken[0]
    monkeypatch.setattr("shoal_workers.index.lexical.analyzer._MAX_KEPT", 100)
    analyzer.terms(text[::-1])
    assert len(analyzer._terms) <= 100


def test_words_show_the_language() -> None:
    unknown: list[list[str]] = [
        [],
        ["the of and " * 16],  # too few words
        ["Lorem ipsum dolor sit amet consectetur " * 20],
        ["東京タワー" * 50],
    ]
    for texts, language in ((ENGLISH, "english"), (GERMAN, "german")):
        assert find_language(iter(texts)) == language
    for texts in (*unknown, [*ENGLISH, *GERMAN]):
        assert find_language(iter(texts)) == NO_LANGUAGE


class TestScores:
    def test_equal_the_formula(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shoal_workers.index.lexical.lexical_file._DOCUMENTS_AT_ONCE", 70)  # three runs
        monkeypatch.setattr("shoal_workers.index.lexical.lexical_file._MERGED_AT_ONCE", 500)  # merged in parts
        draw = random.Random(15)
        words = [f"w{n}" for n in range(40)]
        texts = [" ".join(draw.choices(words, k=draw.randint(0, 30))) for _ in range(200)]
        index = built(tmp_path, texts)
        assert not (tmp_path / "postings.runs").exists()
        for _ in range(50):
            query = " ".join(draw.choices([*words, "unknown"], k=draw.randint(1, 12)))
            np.testing.assert_allclose(scores(index, query), plain_scores(texts, query), rtol=1e-4, atol=1e-6)

    def test_find_texts_without_spaces_and_the_beginning_of_a_query(self, tmp_path: Path) -> None:
        index = built(tmp_path, ["東京タワーに行きました", "京都の寺", "ฉันรักกรุงเทพ", "서울에서 만나요", "fish", ""])
        for row, query in enumerate(["東京", "京都", "กรุงเทพ", "서울"]):
            assert int(np.argmax(scores(index, query))) == row
        assert scores(index, "寺")[1] > 0
        assert scores(index, "") == [0] * 6
        assert scores(index, " bird " * (8_192 // 6) + " fish " * 2**18)[4] == 0

    def test_leave_out_terms_of_most_documents_if_there_are_too_many_postings(self) -> None:
        count, num_common = 140_000, 10
        analyzer = Analyzer(NO_LANGUAGE)
        words = [f"common{n}" for n in range(num_common)] + ["rare"]
        terms = np.concatenate([analyzer.terms(word) for word in words])
        sizes = np.array([count] * num_common + [1])
        order = np.argsort(terms)
        rows = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes[order]])
        starts = np.concatenate([[0], np.cumsum(sizes[order])])
        index = LexicalIndex(count, analyzer, 10.0, terms[order], starts, rows, np.full(len(rows), 9, np.uint8))
        query = index.weigh([" ".join(words)])
        assert len(query.terms) == 8
        assert analyzer.terms("rare")[0] in query.terms

    def test_of_added_documents_use_the_statistics_of_the_version(self, tmp_path: Path) -> None:
        texts = ["a b c", "a a d", "e", "", "b e e f"]
        index = built(tmp_path, texts)
        live = index.emptied().after(texts, range(5))
        query = index.weigh(["a e b unknown"])
        assert live.scores(query).tolist() == index.scores(query).tolist()
        later = live.after(["e", "unknown"], [4, 6, 0, 5])
        expected = index.scores(query)[[4, 0, 0, 2]]
        found = later.scores(query)
        assert found[[0, 2, 3]].tolist() == expected[[0, 1, 3]].tolist()
        assert found[1] > 0


class TestLearnedWords:
    def test_score_by_the_products_of_weights(self, tmp_path: Path) -> None:
        """Rows with one text share its vector, and rows of the former version keep their postings."""
        draw = np.random.default_rng(33)
        vectors = list(random_vectors(draw, 30))
        first = np.array([-1, -2, -1, *range(-3, -31, -1)])
        (tmp_path / "first").mkdir()
        learn(tmp_path / "first", first, vectors, None)
        former = LexicalIndex.open(tmp_path / "first", len(first))
        check_products(former, [vectors[-1 - number] for number in first], draw)

        second, more = np.array([3, -2, 0, 0, -1, 17]), list(random_vectors(draw, 2))
        (tmp_path / "second").mkdir()
        learn(tmp_path / "second", second, more, former)
        documents = [vectors[-1 - first[row]] if row >= 0 else more[-1 - row] for row in second]
        check_products(LexicalIndex.open(tmp_path / "second", len(second)), documents, draw)
        assert not (tmp_path / "second" / "postings.runs").exists()

    def test_of_added_documents_are_in_their_sparse_vectors(self, tmp_path: Path) -> None:
        vectors = [*random_vectors(np.random.default_rng(35), 3)]
        learn(tmp_path, np.array([-1, -2, -3]), vectors, None)
        index = LexicalIndex.open(tmp_path, 3)
        live = index.emptied().after(["one", "other", "by an earlier release"], [1, 2], [vectors[1], vectors[2], None])
        live = live.after(["one"], [0, 1, 2], [vectors[1]])
        scores = index.scores(index.weigh_learned(vectors), live)
        assert scores[1:3].min() > 0
        assert scores[3:].tolist() == pytest.approx([scores[2], 0, scores[1]])


def learn(
    folder: Path, taken_from: NDArray[np.int64], vectors: Sequence[SparseVector], former: LexicalIndex | None
) -> None:
    """Write a lexical index with the weights in these sparse vectors of new texts."""
    (folder / WEIGHTS).write_bytes(weights_of(vectors, 0).tobytes())
    write_learned(folder, taken_from, former, lambda _: None)


def random_vectors(draw: np.random.Generator, count: int) -> Iterator[SparseVector]:
    """Yield sparse vectors of a vocabulary of 60 tokens; the first has no weights."""
    for number in range(count):
        tokens = np.sort(draw.choice(60, 20 if number else 0, replace=False)).astype(np.int32)
        yield SparseVector(tokens, draw.gamma(1.0, 1.0, len(tokens)).astype(np.float32))


def check_products(index: LexicalIndex, documents: Sequence[SparseVector], draw: np.random.Generator) -> None:
    """Assert that scores are the products of sparse vectors, whose weights are rounded to 255 steps."""
    plain = np.zeros((len(documents), 60), np.float32)
    for row, vector in enumerate(documents):
        plain[row, vector.indices] = vector.values
    for _ in range(5):
        *_, query = random_vectors(draw, 2)
        found = index.scores(index.weigh_learned([query]))
        rounding = query.values.sum() * plain.max() / 255
        np.testing.assert_allclose(found, plain[:, query.indices] @ query.values, atol=float(rounding))
        terms = index.weigh_learned([query])
        for row in range(len(documents)):
            parts = terms.weights * index.impacts_in(row, terms.terms)
            assert parts.sum() == pytest.approx(found[row], abs=1e-4)


def test_a_description_and_postings_that_no_build_of_this_release_wrote_are_refused(tmp_path: Path) -> None:
    built(tmp_path, ["fish", "bird"])
    about = json.loads((tmp_path / LEXICAL).read_text())
    changes: list[dict[str, Any]] = [
        {"language": "klingon"},
        {"num_terms": 10**12},
        {"average_length": math.nan},
        {"step": 0},
        {"version": 99},
    ]
    for text in ("", "[]", "[" * 100_000, *(json.dumps(about | change) for change in changes)):
        (tmp_path / LEXICAL).write_text(text)
        with pytest.raises(IndexCorrupt, match="build the index again"):
            LexicalIndex.open(tmp_path, 2)
    built(tmp_path, ["fish", "bird"])
    np.save(tmp_path / POSTINGS, np.array([7, 7], np.int32))
    with pytest.raises(IndexCorrupt, match="build"):
        scores(LexicalIndex.open(tmp_path, 2), "fish")
    np.save(tmp_path / STARTS, np.load(tmp_path / STARTS)[::-1].copy())
    with pytest.raises(IndexCorrupt, match="where postings begin"):
        LexicalIndex.open(tmp_path, 2)


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
    of_one = found("寺", "b", 20)
    assert [of_one["text"][start:stop] for start, stop in of_one["highlights"]] == ["寺"]
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
    storm = dict.fromkeys(map(int, analyzer.terms("storm")), 1.0)
    assert snippet("storm at sea, storm on land", analyzer, storm, 10, 27)["start"] == 0  # the first of equal passages
    beginning = snippet("wind and storm", analyzer, storm, 40, 8)
    assert (beginning["text"], beginning["highlights"]) == ("wind and storm", [])
