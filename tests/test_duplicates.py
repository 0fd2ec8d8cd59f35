"""Documents with the same words, which a build counts and lists."""

import json
from pathlib import Path

import pytest
from test_builder import MadeVectors
from test_chunked_index import LONG, cutter_of

from shoal.records.source import Source
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.duplicates import word_hash
from shoal_workers.index.files.manifest import DUPLICATES
from shoal_workers.index.index import current_version


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Storms in Europe.", "storms  in\nEUROPE"),
        ("Straße", "STRASSE"),
        ("ﬁne — “day”", "fine day"),
        ("e\u0301t\u00e9", "\u00e9te\u0301"),
        ("?!", " ?! "),
    ],
)
def test_texts_of_the_same_words_are_the_same(text: str, other: str) -> None:
    assert word_hash(text) == word_hash(other)


@pytest.mark.parametrize(("text", "other"), [("a b", "ab"), ("?!", "!?"), ("1.5", "1.6"), ("été", "ete"), ("", "a")])
def test_texts_of_other_words_are_others(text: str, other: str) -> None:
    assert word_hash(text) != word_hash(other)


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
