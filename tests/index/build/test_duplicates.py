"""Documents with the same words or nearly the same vector, which a build counts and lists."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from conftest import TESTS
from numpy.typing import NDArray
from test_builder import MadeVectors
from test_chunked_index import LONG, cutter_of

from shoal.records.source import Source
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.duplicates import LEAST_COSINE, NearestEarlier, near_by_bits, word_hash
from shoal_workers.index.build.local_encoder import LocalEncoder
from shoal_workers.index.files.manifest import DUPLICATES, NEAR_DUPLICATES
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.vectors.quantisation import QuantisedVectors


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Storms in Europe.", "storms  in\nEUROPE"),
        ("Straße", "STRASSE"),
        ("ﬁne — “day”", "fine day"),
        ("e\u0301t\u00e9", "\u00e9te\u0301"),
        ("?!", " ?! "),
        ("e\u0301te\u0301 " * 1_000, "\u00c9T\u00c9 " * 1_000),
    ],
)
def test_texts_of_the_same_words_are_the_same(text: str, other: str) -> None:
    assert word_hash(text) == word_hash(other)


@pytest.mark.parametrize(("text", "other"), [("a b", "ab"), ("?!", "!?"), ("1.5", "1.6"), ("été", "ete"), ("", "a")])
def test_texts_of_other_words_are_others(text: str, other: str) -> None:
    assert word_hash(text) != word_hash(other)


HOSTILE = """
import resource, sys
from shoal_workers.index.build.duplicates import word_hash
from shoal_workers.index.lexical.analyzer import Analyzer
from shoal_workers.index.lexical.snippet import snippet
text = ("a" + sys.argv[1] * 2**20)[:2**20]
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
word_hash(text)
words = Analyzer("none")
words.terms(text)
snippet(text + " storm", words, {words.terms("storm")[0]: 1.0}, 200, 2**21)
"""


#: Pieces whose normalisation takes longest.
SLOW = ("\u0301\u0327", "\u0344\u0327", "\ufdfa", "\uff76\uff9e", "\u0e01\u0e47")


@pytest.mark.parametrize(
    "piece", ["a\u0301", ".'", "\n ", *(pytest.param(piece, marks=pytest.mark.wide) for piece in SLOW)]
)
def test_the_words_of_the_longest_text_take_a_time_that_grows_with_its_length(piece: str) -> None:
    """Marks took over half an hour when a text was normalised as a whole; now all takes a second or two."""
    subprocess.run([sys.executable, "-c", HOSTILE, piece], check=True)


def test_one_function_normalises_all_texts() -> None:
    root = TESTS.parent
    files = [path for room in ("shared", "api", "workers") for path in (root / room).rglob("*.py")]
    calls = [
        path.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "normalize" and ast.unparse(node.value) == "unicodedata"
    ]
    assert calls == ["words.py"]


def found(out: Path) -> list[dict[str, str]]:
    """Return the duplicates that the current version lists."""
    return [json.loads(line) for line in (current_version(out) / DUPLICATES).read_text().splitlines()]


def test_a_build_lists_each_duplicate_with_the_first_of_its_words(tmp_path: Path) -> None:
    texts = ["Storm in Europe", "rain", "storm, in europe!", "RAIN", "wind", "storm in europe"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    result = build(Source(path), tmp_path / "index", MadeVectors())
    assert (result.num_duplicates, result.count) == (3, 6)
    assert found(tmp_path / "index") == [
        *({"id": f"d{n}", "same_as": f"d{first}"} for n, first in ((2, 0), (3, 1), (5, 0)))
    ]


def test_duplicates_are_whole_documents_and_not_chunks(tmp_path: Path, encoder: Encoder) -> None:
    texts = {"a": LONG, "b": LONG.upper(), "c": LONG + LONG, "d": "rain. " * 100}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": one, "text": text}) + "\n" for one, text in texts.items()))
    result = build(Source(path), tmp_path / "index", MadeVectors(), cutter=cutter_of(encoder, 10))
    assert result.num_duplicates == 1
    assert found(tmp_path / "index") == [{"id": "b", "same_as": "a"}]


def test_without_duplicates_the_list_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("rain\nstorm\n")
    assert build(Source(path), tmp_path / "index", MadeVectors()).num_duplicates == 0
    assert found(tmp_path / "index") == []


def near(out: Path) -> list[dict[str, Any]]:
    """Return the near duplicates that the current version lists."""
    return [json.loads(line) for line in (current_version(out) / NEAR_DUPLICATES).read_text().splitlines()]


def nearest(vectors: NDArray[np.float32]) -> NearestEarlier:
    """Return the nearest earlier rows that are found of vectors of length 1, each of a document of its own."""
    rows = np.arange(len(vectors))
    found = NearestEarlier(vectors, rows)
    for left, right in near_by_bits(QuantisedVectors.of(vectors).codes, rows, lambda _: None):
        found.compare(left, right)
    return found


class TestNear:
    def test_a_build_lists_each_with_the_nearest_earlier_one(self, tmp_path: Path, encoder: Encoder) -> None:
        texts = [
            *("storm in europe and rain in paris", "the ministers meet", "Storm in Europe and rain in Paris!"),
            *("storm in europe and rain in paris now", "wind"),
        ]
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
        result = build(Source(path), tmp_path / "index", LocalEncoder(encoder))
        vectors = Index.open(tmp_path / "index").vectors
        cosine = float(vectors[0] @ vectors[3])
        assert (result.num_duplicates, result.num_near_duplicates) == (1, 1)
        assert near(tmp_path / "index") == [{"id": "d3", "near": "d0", "cosine": pytest.approx(cosine, abs=1e-4)}]

    def test_chunks_of_one_document_are_none_of_each_other(self, tmp_path: Path, encoder: Encoder) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"id": "a", "text": "rain in paris. " * 50 + "rain in paris, now. " * 50}) + "\n")
        result = build(Source(path), tmp_path / "index", LocalEncoder(encoder), cutter=cutter_of(encoder, 10))
        assert result.num_near_duplicates == 0
        assert near(tmp_path / "index") == []

    @pytest.mark.parametrize("count", [1, 2, 9])
    def test_rows_of_equal_vectors_are_those_of_the_first(self, count: int) -> None:
        vectors = np.repeat(unit_vectors(1, 64, 1), count, axis=0)
        assert nearest(vectors).rows.tolist() == [-1, *[0] * (count - 1)]

    def test_most_of_those_that_all_pairs_have_are_found(self) -> None:
        """Half of 4,000 rows are an earlier one, turned away from it by up to 25 degrees."""
        generator, vectors = np.random.default_rng(3), unit_vectors(4_000, 64, 2)
        origins = np.arange(2_000, 4_000) - generator.integers(1, 2_000, 2_000)
        away = unit_vectors(2_000, 64, 4)
        away -= np.vecdot(away, vectors[origins])[:, None] * vectors[origins]
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        angles = np.radians(generator.uniform(0, 25, (2_000, 1))).astype(np.float32)
        for row, origin in enumerate(origins, 2_000):  # an origin may be turned itself
            n = row - 2_000
            turned = np.cos(angles[n]) * vectors[origin] + np.sin(angles[n]) * away[n]
            vectors[row] = turned / np.linalg.norm(turned)
        found, cosines = nearest(vectors), np.tril(vectors @ vectors.T, -1).max(axis=1)
        expected, listed = cosines >= LEAST_COSINE, found.cosines >= LEAST_COSINE
        assert not (listed & ~expected).any()
        assert (listed & expected).sum() > 0.9 * expected.sum()
        assert expected.sum() > 1_000
        rows = np.flatnonzero(listed)
        assert (found.rows[rows] < rows).all()
        np.testing.assert_allclose(found.cosines[rows], np.vecdot(vectors[rows], vectors[found.rows[rows]]), atol=1e-6)
