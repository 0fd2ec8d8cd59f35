"""The files of an index: columns have the values of the documents, and any file that no build wrote is refused."""

import io
import json
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadDocument, IndexCorrupt, IndexNotFound
from shoal.index_folder import CURRENT
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.array_file import MAX_HEADER_BYTES, open_array, save_array
from shoal_workers.index.files.columns import Columns, save_columns
from shoal_workers.index.files.field_kinds import DAY_US, SECOND_US, date_span
from shoal_workers.index.files.field_values import MAX_COLUMNS, MAX_KEYWORD_CHARS, DocumentFields
from shoal_workers.index.files.manifest import CHANGES, COLUMNS, FIELDS, FILES, MANIFEST
from shoal_workers.index.index import Index, check_model, current_version
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
    return Columns({column.name: column for column in fields.columns()})


#: The values of each kind, and the function that returns the term of a value.
KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "number": (NUMBERS, float),
    "date": (DATES, lambda value: date_span(value)[0]),
    "keyword": (KEYWORDS, str.encode),
    "boolean": (BOOLEANS, lambda value: str(value).lower() == "true"),
}


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_column_has_the_values_of_the_documents_and_is_read_as_it_was_written(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
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
    save_columns(folder := tmp_path_factory.mktemp("columns"), [column, replace(column, name="ä\n")])
    for opened in Columns.open(folder, len(documents)).values():
        assert (opened.kind, opened.is_list, len(opened.terms)) == (kind, column.is_list, len(terms))
        assert all((a == b).all() for a, b in zip(opened.arrays(), column.arrays(), strict=True))
    shutil.rmtree(folder)


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
    of_long_ids = columns_of([2**60, 2**60 + 1])["f"]  # float64 would round the second one only
    assert [of_long_ids.value(code) for code in range(2)] == [b"1152921504606846976", b"1152921504606846977"]


def test_a_date_spans_all_of_its_time() -> None:
    dates: list[tuple[Any, str, int]] = [
        ("1970-01-01", "1970-01-01T00:00:00", DAY_US),
        ("1970-02", "1970-02-01T00:00:00", 28 * DAY_US),
        ("2000", "2000-01-01T00:00:00", 366 * DAY_US),
        ("9999-12", "9999-12-01T00:00:00", 31 * DAY_US),
        ("20030219", "2003-02-19T00:00:00", DAY_US),
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
    texts = ("0000", "2001-00", "2001-02-30", "2026-W01", "2026W013", "soon", "", "202605031000", "0306406152")
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
    assert BuildIndex("n", "a.csv", field_kinds=["a=b=date", "n=number"]).kinds() == {"a=b": "date", "n": "number"}
    long = columns_of(["x" * 999], {"f": "keyword"})["f"]
    assert (long.kind, long.value(0)) == ("keyword", b"x" * 999)
    assert columns_of([3, {"b": 1}])["f"].rows.tolist() == [0, 1]
    column = columns_of(["a", {"b": 1}, None, 3, "", "x" * 999, [], {}, 2**70])["f"]
    assert (column.kind, column.rows.tolist()) == ("stored", [0, 1, 3, 5, 7, 8])
    assert column.lowest.tolist() == [0, 0, -1, 0, -1, 0, -1, 0, 0]


def test_further_fields_than_the_first_have_no_column() -> None:
    fields = DocumentFields({})
    for n in range(3):
        fields.add({f"f{m}": 1 for m in range(n, MAX_COLUMNS + n)})
    assert [column.name for column in fields.columns()] == sorted(f"f{m}" for m in range(MAX_COLUMNS))


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


def test_columns_that_no_build_of_these_documents_wrote_are_refused(tmp_path: Path) -> None:
    columns, path = columns_of([["a", "b"]]), tmp_path / FIELDS
    save_columns(tmp_path, columns.values())
    (about,) = json.loads(path.read_text())["fields"]
    changes: list[dict[str, Any]] = [
        *({"num_terms": 3}, {"num_terms": -1}, {"num_terms": 2**60}, {"num_terms": True}, {"num_bytes": 10**6}),
        *({"kind": "word"}, {"kind": None}, {"is_list": 1}, {"name": 5}, {"new": 2}),
    ]
    texts = [json.dumps({"fields": [about | change]}) for change in changes]
    with pytest.raises(IndexCorrupt, match=COLUMNS):
        Columns.open(tmp_path, 99)
    for text in (*texts, "[]", '{"fields": 1}', '{"fields": [7]}', "{" * 9_999):
        path.write_text(text)
        with pytest.raises(IndexCorrupt, match=f"{FIELDS}|{COLUMNS}"):
            Columns.open(tmp_path, 1)
    save_columns(tmp_path, [replace(columns_of(["a"])["f"], starts=np.array([0, 5]))])
    with pytest.raises(IndexCorrupt, match=f"{COLUMNS} does not fit"):
        Columns.open(tmp_path, 1)
    save_array(tmp_path / COLUMNS, np.zeros(3, np.uint8))
    path.write_text('{"fields": []}')
    with pytest.raises(IndexCorrupt, match=COLUMNS):
        Columns.open(tmp_path, 1)


#: The files of an index without changes, except the file of changes, which is empty.
NOT_EMPTY = [name for name in FILES if name != CHANGES]

Damage = Callable[[bytes], bytes]


@pytest.fixture
def copy(index_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(index_folder, tmp_path / "index"))


def test_an_opened_index_is_read_only_and_finds_nothing_for_no_query(index: Index, encoder: Encoder) -> None:
    assert (set(index.manifest.checksums), index.manifest.quantised_width) == (set(FILES), 64)
    check_model(index.folder, index.manifest, encoder.model)
    assert not index.vectors.flags.writeable
    assert index.search(np.empty((0, 32), np.float32), 5) == []


@pytest.mark.parametrize(
    "how",
    [lambda data: data[:-2], lambda data: data[:-9] + b"?" * 9, lambda data: b"?" + data[1:]],
    ids=["short", "changed at its end", "changed at its beginning"],
)
def test_a_damaged_or_missing_file_is_named(copy: Path, how: Damage) -> None:
    for name in (*NOT_EMPTY, MANIFEST):
        path = current_version(copy) / name
        right = path.read_bytes()
        path.write_bytes(how(right))
        with pytest.raises(IndexCorrupt, match=name):
            Index.open(copy)
        path.unlink()
        with pytest.raises(IndexCorrupt, match=name):
            Index.open(copy)
        path.write_bytes(right)


def test_a_manifest_of_another_layout_or_that_does_not_fit_its_files_is_refused(copy: Path) -> None:
    path = current_version(copy) / MANIFEST
    manifest = json.loads(path.read_bytes())
    wrong: list[tuple[Any, str]] = [
        *(({"count": count}, "build the index again") for count in (65, 2**63)),
        *(({"quantised_width": width}, "build the index again") for width in (128, 0)),
        *(({name: value}, "build the index again") for name, value in (("num_bad", -1), ("built_at", "\ud800"))),
        *(({name: value}, "build the index again") for name, value in (("dimension", 32.0), ("checksums", []))),
        *(({name: value}, "build the index again") for name, value in (("digest", 5), ("layout", 5.0))),
        ({"new": 1}, 'another version of Shoal built it, with "new"'),
        *(
            ({"layout": layout}, f"the index has layout {named}.*, this version of Shoal reads .*build")
            for layout, named in ((None, "null"), (4, "4"), (99, "99"), ("x" * 999, '"xxx'))
        ),
    ]
    for changed, said in wrong:
        values = {name: value for name, value in (manifest | changed).items() if value is not None}
        path.write_text(json.dumps(values))
        with pytest.raises(IndexCorrupt, match=said):
            Index.open(copy)


def test_a_folder_without_an_index_and_a_pointer_to_nothing_are_refused(copy: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(IndexNotFound, match="shoal index build"):
            Index.open(folder)
    no_name = "which is not a version"
    for content, said in ((b"", no_name), (b"../x", no_name), (b"\xff\xfe", no_name), (b"nowhere\n", MANIFEST)):
        (copy / CURRENT).write_bytes(content)
        with pytest.raises(IndexCorrupt, match=said):
            Index.open(copy)


ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def npy(header: str, version: bytes = b"\1\0") -> bytes:
    """Return a file with this text as its header."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + ARRAY.tobytes()


#: The header of the array.
HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"


def whole(save_as: np.ndarray) -> bytes:
    """Return the bytes that numpy itself writes for an array."""
    file = io.BytesIO()
    np.save(file, save_as)
    return file.getvalue()


def test_an_array_is_written_as_by_numpy_and_mapped_read_only(tmp_path: Path) -> None:
    save_array(tmp_path / "a.npy", ARRAY)
    assert (tmp_path / "a.npy").read_bytes() == whole(ARRAY)
    array = open_array(tmp_path / "a.npy", np.float32, (3, 4))
    assert (array == ARRAY).all()
    assert isinstance(array.base, np.memmap)
    assert array.ctypes.data % 64 == 0
    assert not array.flags.writeable
    for path in (tmp_path / "missing.npy", tmp_path):
        with pytest.raises(IndexCorrupt, match="build the index again"):
            open_array(path, np.float32, (3, 4))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "magic string", id="empty"),
        pytest.param(whole(ARRAY)[:60], "header", id="cut in the header"),
        pytest.param(whole(ARRAY)[:-1], "file size", id="one byte short"),
        pytest.param(whole(ARRAY) + b"\0", "1 bytes after", id="one byte too long"),
        pytest.param(whole(ARRAY.T.copy()), r"\[4, 3\]", id="another shape"),
        pytest.param(whole(ARRAY.astype(">f4")), ">f4", id="another type"),
        pytest.param(whole(np.asfortranarray(ARRAY)), "in Fortran order", id="Fortran order"),
        pytest.param(whole(ARRAY.astype(object)), "object", id="pickled objects"),
        pytest.param(npy(HEADER + " " * MAX_HEADER_BYTES), "large", id="huge header"),
        pytest.param(npy("[" * 900), "parse|EOF|nested", id="deep nesting"),
        pytest.param(npy("-" * 900 + "1"), "", id="many signs"),
        pytest.param(npy(HEADER, version=b"\2\0"), "version", id="version 2"),
    ],
)
def test_any_other_file_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(data)
    with pytest.raises(IndexCorrupt, match=rf"a\.npy cannot be read \((?s:.*)({reason})(?s:.*): build") as caught:
        open_array(path, np.float32, (3, 4))
    assert len(caught.value.message) < 400 + len(str(path))
