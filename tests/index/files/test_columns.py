"""Columns of documents' fields: their kinds are found, and they have exactly the values of the documents."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_builder import MadeVectors

from shoal.errors import BadDocument, IndexCorrupt
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.columns import Columns, save_columns
from shoal_workers.index.files.field_kinds import DAY_US, SECOND_US, date_span
from shoal_workers.index.files.field_values import MAX_COLUMNS, MAX_KEYWORD_CHARS, DocumentFields
from shoal_workers.index.files.manifest import COLUMNS, FIELDS
from shoal_workers.index.index import Index
from shoal_workers.index.long_jobs import BuildIndex

#: Values of each kind. Some are equal as values but not as texts.
NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, -0.0, 1.0, 2.5, "1", "2.50", 2**53, 1e300])
DATES = st.sampled_from(
    ["2001-05-03", "2001-05", "2001", "2001-05-03T00:00:00Z", "2001-05-03T02:00+02:00", "1969-12-31"]
)
KEYWORDS = st.sampled_from(["a", "b", "B", "ä", "aa", "日本", "x y", "1_0", "007"])
BOOLEANS = st.sampled_from([True, False, "true", "FALSE"])


def columns_of(values: Sequence[Any], kinds: Mapping[str, str] | None = None, *, is_lenient: bool = False) -> Columns:
    """Return the columns of documents with one field `f`; None stands for a document without the field."""
    fields = DocumentFields(kinds or {}, is_lenient)
    for value in values:
        fields.add({"id": "1", "text": "storm"} | ({} if value is None else {"f": value}))
    return Columns({column.name: column for column in fields.columns()}, fields.num_left_out)


#: By kind, values, and the function that returns the term of a value.
KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "number": (NUMBERS, float),
    "date": (DATES, lambda value: date_span(value)[0]),
    "keyword": (KEYWORDS, str.encode),
    "boolean": (BOOLEANS, lambda value: str(value).lower() == "true"),
}


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_column_has_the_values_of_the_documents(kind: str, data: st.DataObject) -> None:
    values, read = KINDS[kind]
    documents = data.draw(st.lists(values | st.lists(values | st.none(), max_size=4) | st.none(), max_size=30))
    lists = [value if isinstance(value, list) else [value] for value in documents]
    expected = [sorted({read(one) for one in one_list if one is not None}) for one_list in lists]
    column = columns_of(documents, {"f": kind})["f"]
    terms = [column.value(code) for code in range(len(column.terms))]
    assert column.kind == kind
    assert terms == sorted({one for found in expected for one in found})
    for code, term in enumerate(terms):
        assert column.rows_between(code, code + 1).tolist() == [n for n, one in enumerate(expected) if term in one]
    places = {term: place for place, term in enumerate(terms)}
    assert column.lowest.tolist() == [places[found[0]] if found else -1 for found in expected]
    assert column.highest.tolist() == [places[found[-1]] if found else -1 for found in expected]
    assert column.is_list == any(len(found) > 1 for found in expected)


def test_a_field_has_the_kind_that_all_its_values_have() -> None:
    fields: list[tuple[list[Any], str]] = [
        ([1, 2.5, None], "number"),
        (["1", "2.5", ""], "number"),
        ([1, "2"], "number"),
        ([2**70], "number"),
        (["20010503"], "number"),
        (["007", "8"], "keyword"),
        (["1_000"], "keyword"),
        (["1e999"], "keyword"),
        ([2**53 + 1, 1], "keyword"),
        ([10**400], "stored"),
        (["2001-05-03", "2001-05", "2001"], "date"),
        (["2001-05-03T10:00:00+02:00", "2001-05-03 10:00"], "date"),
        (["2001-13-03"], "keyword"),
        (["2001-05-03", 7], "keyword"),
        ([True, "false"], "boolean"),
        ([True, 1], "keyword"),
        (["a", ["b", "c"], [], None], "keyword"),
        (["x" * MAX_KEYWORD_CHARS], "keyword"),
        (["a", "x" * (MAX_KEYWORD_CHARS + 1)], "stored"),
        ([{}, 1], "stored"),
        ([[1, [2]]], "stored"),
    ]
    for values, kind in fields:
        for order in (values, values[::-1]):
            assert columns_of(order)["f"].kind == kind, values


def test_the_value_that_made_a_field_one_of_keywords_is_reported() -> None:
    expected: list[tuple[list[Any], dict[str, Any]]] = [
        (["1", "2.5", "20x5", "x", "7"], {"document": 3, "odd": "20x5", "others": "number"}),
        ([None, ["1", "2"], ["3", "n/a"]], {"document": 3, "odd": "n/a", "others": "number"}),
        ([7, "unknown", "none"], {"document": 2, "odd": "unknown", "others": "number"}),
        (["2001", "2001-05", "May"], {"document": 3, "odd": "May", "others": "date"}),
        (["true", "false", "maybe"], {"document": 3, "odd": "maybe", "others": "boolean"}),
        (["a", "b", "1984"], {}),
        ([True, "a"], {}),
    ]
    for values, odd in expected:
        for kinds in ({}, {"f": "keyword"}):
            fields = DocumentFields(kinds)
            for value in values:
                fields.add({} if value is None else {"f": value})
            assert fields.kinds_found() == {"f": {"kind": "keyword"} | ({} if kinds else odd)}


def test_a_build_makes_the_columns(tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "text": f"storm {n}", "n": n, "tags": ["a", "b"][: n % 3]} for n in range(9)]
    (source := tmp_path / "source.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    for kinds, kind in (({}, "number"), ({"n": "keyword"}, "keyword")):
        build(Source(source), tmp_path / "index", MadeVectors(), kinds=kinds)
        columns = Index.open(tmp_path / "index").columns
        assert columns is not None
        assert columns.kinds == {"n": kind, "tags": "keyword"}
        assert columns["tags"].rows.tolist() == [1, 2, 4, 5, 7, 8, 2, 5, 8]
    with pytest.raises(BadDocument, match='document 2: "tags" is "a", but --field tags=date'):
        build(Source(source), tmp_path / "index", MadeVectors(), kinds={"tags": "date"})
    assert BuildIndex("n", "a.csv", field_kinds=["a=b=date", "n=number"]).kinds() == {"a=b": "date", "n": "number"}


def test_a_date_spans_all_of_its_time() -> None:
    dates: list[tuple[Any, str, int]] = [
        ("1970-01-01", "1970-01-01T00:00:00", DAY_US),
        ("1970-02", "1970-02-01T00:00:00", 28 * DAY_US),
        ("2000", "2000-01-01T00:00:00", 366 * DAY_US),
        ("9999-12", "9999-12-01T00:00:00", 31 * DAY_US),
        ("20030219", "2003-02-19T00:00:00", DAY_US),
        ("2026-W01", "2025-12-29T00:00:00", 7 * DAY_US),
        ("2026W013", "2025-12-31T00:00:00", DAY_US),
        ("2026-W01-3T10:00", "2025-12-31T10:00:00", 1),
        ("2003-02-19T10:00:00.000001+02:00", "2003-02-19T08:00:00.000001", 1),
        (86_400, "1970-01-02T00:00:00", 1),
        (-0.5, "1969-12-31T23:59:59.500000", 1),
        ("1045612800", "2003-02-19T00:00:00", 1),
        ("1045612800.5", "2003-02-19T00:00:00.500000", 1),
    ]
    for value, start, length_us in dates:
        first, end = date_span(value)
        since_1970 = datetime.fromisoformat(start).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        assert (first, end - first) == (round(since_1970.total_seconds() * SECOND_US), length_us), value
    texts = ("0000", "2001-00", "2001-02-30", "2026-W54", "2026-W01-8", "soon", "", "202605031000", "0306406152")
    for wrong in (*texts, 1e12, float("nan"), True):
        with pytest.raises(ValueError, match=r"."):
            date_span(wrong)


def test_a_value_of_another_kind_than_the_one_given_is_refused_and_none_in_added_documents() -> None:
    good = {"number": 1, "date": "2001", "boolean": True, "keyword": "a"}
    others: list[tuple[str, Any]] = [
        *(("number", "soon"), ("number", True), ("date", 3.3e11), ("boolean", 1), ("keyword", {"a": 1}))
    ]
    for kind, value in others:
        with pytest.raises(BadDocument, match=f'document 2: "f" is .*, but --field f={kind}'):
            columns_of([good[kind], value], {"f": kind})
        column = columns_of([good[kind], value, [value, good[kind]]], {"f": kind}, is_lenient=True)["f"]
        assert (column.kind, column.rows.tolist()) == (kind, [0, 2])


def test_a_given_kind_goes_before_the_kind_of_the_values_and_a_stored_field_has_rows_alone() -> None:
    assert columns_of(["1.10", "1.1"], {"f": "keyword"})["f"].terms[1] == b"1.10"
    assert columns_of(["20030219", 1_045_612_800], {"f": "date"})["f"].terms.tolist() == [1_045_612_800 * SECOND_US]
    assert columns_of([], {"f": "date"})["f"].rows.tolist() == []
    assert columns_of(["x" * 999], {"f": "keyword"})["f"].kind == "keyword"
    column = columns_of(["a", {"b": 1}, None, 3, "", "x" * 999, [], {}, 2**70])["f"]
    assert (column.kind, column.rows.tolist()) == ("stored", [0, 1, 3, 5, 7, 8])
    assert column.lowest.tolist() == [0, 0, -1, 0, -1, 0, -1, 0, 0]


def test_fields_whose_texts_would_fill_the_memory_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_workers.index.files.field_values.MAX_TERMS_BYTES", 10_000)
    documents = [{"url": f"https://{n}", "tag": str(n % 2) + "x"} for n in range(100)]
    fields = DocumentFields({})
    for document in documents:
        fields.add(document)
    tag, url = fields.columns()
    assert (tag.kind, url.kind, url.rows.tolist()) == ("keyword", "stored", list(range(100)))
    fields = DocumentFields({"url": "keyword"})
    with pytest.raises(BadDocument, match=r'take over 10,000 bytes of memory with "url": leave its kind out'):
        list(map(fields.add, documents))


def test_fields_for_which_there_is_no_column_are_counted() -> None:
    fields = DocumentFields({})
    for n in range(3):
        fields.add({f"f{m}": 1 for m in range(n, MAX_COLUMNS + n)})
    names = [column.name for column in fields.columns()]
    assert (names, fields.num_left_out) == (sorted(f"f{m}" for m in range(MAX_COLUMNS)), 2)


@given(st.lists(st.fixed_dictionaries({}, optional={"a": NUMBERS, "b": KEYWORDS, "ä\n": DATES, "d": BOOLEANS})))
def test_columns_are_read_as_they_were_written(tmp_path_factory: Any, documents: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("columns")
    fields = DocumentFields({})
    for document in documents:
        fields.add(document)
    written = list(fields.columns())
    save_columns(folder, written, 3)
    opened = Columns.open(folder, len(documents))
    assert (list(opened), opened.num_left_out) == (sorted({name for one in documents for name in one}), 3)
    for column in written:
        found = opened[column.name]
        assert (found.kind, found.is_list, len(found.terms)) == (column.kind, column.is_list, len(column.terms))
        assert all((a == b).all() for a, b in zip(found.arrays(), column.arrays(), strict=True))
    shutil.rmtree(folder)


def test_columns_that_no_build_of_these_documents_wrote_are_refused(tmp_path: Path) -> None:
    columns, path = columns_of([["a", "b"]]), tmp_path / FIELDS
    save_columns(tmp_path, columns.values(), 0)
    (about,) = json.loads(path.read_text())["fields"]
    changes: list[dict[str, Any]] = [
        *({"num_terms": 3}, {"num_terms": -1}, {"num_terms": 2**60}, {"num_terms": True}, {"num_bytes": 10**6}),
        *({"kind": "word"}, {"kind": None}, {"is_list": 1}, {"name": 5}, {"new": 2}),
    ]
    texts = [json.dumps({"fields": [about | change], "num_left_out": 0}) for change in changes]
    with pytest.raises(IndexCorrupt, match=COLUMNS):
        Columns.open(tmp_path, 99)
    for text in (*texts, "[]", '{"fields": 1, "num_left_out": 0}', '{"fields": [7], "num_left_out": 0}', "{" * 9_999):
        path.write_text(text)
        with pytest.raises(IndexCorrupt, match=f"{FIELDS}|{COLUMNS}"):
            Columns.open(tmp_path, 1)
    save_columns(tmp_path, [replace(columns_of(["a"])["f"], starts=np.array([0, 5]))], 0)
    with pytest.raises(IndexCorrupt, match=f"{COLUMNS} does not fit"):
        Columns.open(tmp_path, 1)
    save_array(tmp_path / COLUMNS, np.zeros(3, np.uint8))
    path.write_text('{"fields": [], "num_left_out": 0}')
    with pytest.raises(IndexCorrupt, match=COLUMNS):
        Columns.open(tmp_path, 1)
