"""Documents and ids from programs and requests: an error names each bad document or id, and the remedy."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import nested

from shoal.contract import wire
from shoal.errors import BadDocument, InvalidRequest, InvalidText, ShoalError, TooLarge
from shoal.records.document import MAX_FIELD_DEPTH, BadRow, Document
from shoal.records.given_document import Given, documents_of, ids_of
from shoal.records.source import Source

GOOD = {"id": "7", "text": "storm"}

#: Bad documents, with their error and words of its message.
WRONG: list[tuple[Any, type[ShoalError], str]] = [
    ("storm", BadDocument, 'document 1 is "storm": it takes a map with an id and a text'),
    ({}, BadDocument, "document 1: the id"),
    ({"id": "8"}, BadDocument, 'document 1 (id "8"): the text "text" is missing'),
    ({"id": 8, "text": "rain"}, BadDocument, "document 1: its id is 8: it takes a string"),
    ({"id": " ", "text": "rain"}, BadDocument, 'document 1 (id " "): the id "id" is missing or empty'),
    ({"id": "8", "text": " \n"}, BadDocument, 'document 1 (id "8"): the text in column "text" is empty'),
    ({"id": "8", "text": "x" * 101}, BadDocument, 'document 1 (id "8"): the text has 101 characters'),
    (GOOD | {"id": "8", "score": 1}, BadDocument, 'document 1 (id "8"): a hit has its own "score"'),
    (GOOD, BadDocument, 'document 1 has the id "7", sent before'),
    (GOOD | {"id": "8", b"a": 1}, BadDocument, 'document 1 (id "8"): bytes 61 is no name of a field'),
    (GOOD | {"id": "8", "a": b"a"}, BadDocument, 'document 1 (id "8"): "a" has a value that JSON'),
    (GOOD | {"id": "8", "a": np.float32(1)}, BadDocument, '"a" has a value that JSON'),
    (GOOD | {"id": "8", "a": nested(MAX_FIELD_DEPTH + 1)}, BadDocument, "nested over 63 levels deep"),
    *((GOOD | {"id": "8", "a": value}, BadDocument, '"a" has a value that') for value in ([math.nan], math.inf, 2**64)),
    (GOOD | {"id": "8", "text": "a \ud83c"}, InvalidText, "document 1 (id \"8\"): lone surrogate '\\ud83c'"),
    (GOOD | {"id": "8", "\ud83c": 1}, InvalidText, 'document 1 (id "8"): lone surrogate'),
    (GOOD | {"id": "\ud83c"}, InvalidText, "document 1 (id "),
]


WRONG_IDS: list[tuple[Any, type[ShoalError], str]] = [
    (7, InvalidRequest, "id 1 is 7: it takes a string that is not blank"),
    ("", InvalidRequest, 'id 1 is "": it takes'),
    ("7", InvalidRequest, 'id 1 is "7", which was sent before: send each id once'),
    ("\ud83c", InvalidText, "id 1: lone surrogate"),
]


class Unread(list[Any]):
    """A long list that raises an error if it is read."""

    def __len__(self) -> int:
        return 1_000_000

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("it is read")


def test_documents_with_too_many_values_are_refused_before_the_values_are_read() -> None:
    few = {"id": "8", "text": "rain", "numbers": list(range(84))}  # 4 + 84 values, and GOOD has 4 + 3
    assert len(documents_of([few], 10, 100, 95)) == 1
    long = few | {"numbers": {"of": Unread()}}
    whole = Document("8", "rain", {"numbers": Unread()})
    lists: list[list[Given]] = [[long], [GOOD, few], [GOOD, whole]]
    for given in lists:
        with pytest.raises(TooLarge, match=rf"with document {len(given) - 1}, the documents have over 95 values"):
            documents_of(given, 10, 100, 95)


def test_a_bad_document_or_id_is_named() -> None:
    for wrong, error, words in WRONG:
        with pytest.raises(error) as raised:
            documents_of([GOOD, wrong], 10, 100)
        assert words in raised.value.message
        assert len(raised.value.message) < 400
    for wrong, error, words in WRONG_IDS:
        with pytest.raises(error) as raised:
            ids_of(["7", wrong], 10)
        assert words in raised.value.message
    assert ids_of(["b", "a"], 2) == ["b", "a"]


def test_all_values_of_json_stay_as_they_are_up_to_the_depth_of_a_hit(tmp_path: Path) -> None:
    fields = {"a": [1, 2.5, None, True, {"b": "é"}], "": "", "deep": nested(MAX_FIELD_DEPTH), "big": 2**64 - 1}
    (document,) = documents_of([GOOD | fields], 1, 100)
    assert document == Document("7", "storm", fields)
    assert wire.is_json({"id": document.id, "text": document.text, **document.fields})
    rows = [GOOD | {"deep": nested(MAX_FIELD_DEPTH + more)} for more in (0, 1)]
    (path := tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, bad = Source(path).rows()
    assert found == Document("7", "storm", {"deep": fields["deep"]})
    assert isinstance(bad, BadRow)
    assert "nested over 63 levels deep" in bad.reason
    given = [Document("7", "storm", {"topic": "sea"}, 17), Document("8", "rain", {})]
    assert documents_of(iter(given), 2, 100) == given
    with pytest.raises(BadDocument, match='a hit has its own "score"'):
        documents_of([Document("7", "storm", {"score": 1})], 1, 100)


def test_reading_stops_at_the_first_document_or_id_too_many() -> None:
    read: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            read.append(len(read))
            yield GOOD | {"id": str(len(read))}

    with pytest.raises(TooLarge, match="more than 3 documents"):
        documents_of(endless(), 3, 100)
    with pytest.raises(TooLarge, match="more than 3 ids"):
        ids_of((document["id"] for document in endless()), 3)
    assert len(read) == 8
