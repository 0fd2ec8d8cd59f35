"""Every rule of `shoal.records`, on real files."""

import csv
import datetime
import decimal
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadDocument, InvalidRequest
from shoal.records.document import Document
from shoal.records.source import Source

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write_file(columns: dict[str, Any]) -> Path:
        path = tmp_path / "news.parquet"
        parquet.write_table(pyarrow.table(columns), path)
        return path

    return write_file


def refusal(path: Path, **columns: Any) -> str:
    with pytest.raises(BadDocument) as caught:
        list(Source(path, **columns))
    return caught.value.message


def texts(path: Path, **columns: Any) -> list[str]:
    return [document.text for document in Source(path, **columns)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,text,topic\nx,"one, two",sea\ny,three,air\n'),
        ("a.tsv", "id\ttext\ttopic\nx\tone, two\tsea\ny\tthree\tair\n"),
        ("a.jsonl", '{"id":"x","text":"one, two","topic":"sea"}\n{"id":"y","text":"three","topic":"air"}'),
    ],
)
def test_each_text_format_gives_the_same_documents_packed_or_not(write: Write, name: str, content: str) -> None:
    expected = [Document("x", "one, two", {"topic": "sea"}), Document("y", "three", {"topic": "air"})]
    for path in (
        write(name, content),
        write(name.upper(), content),
        write(f"{name}.gz", gzip.compress(content.encode())),
        write(f"bom.{name}", b"\xef\xbb\xbf" + content.encode()),
        write(f"crlf.{name}", content.replace("\n", "\r\n")),
    ):
        source = Source(path)
        assert list(source) == expected
        assert list(source) == expected, "a second pass starts anew"


def test_txt_holds_one_document_a_line_and_skips_blank_lines(write: Write) -> None:
    path = write("a.txt", '\ufeffone "quoted\r\n\n   \n two, three\tfour \nlast\u2028still last')
    assert list(Source(path)) == [
        Document("0", 'one "quoted', {}),
        Document("1", " two, three\tfour ", {}),
        Document("2", "last\u2028still last", {}),
    ]
    assert texts(write("a.txt.gz", gzip.compress(b"one\ntwo\n"))) == ["one", "two"]


def test_tsv_takes_quotes_literally(write: Write) -> None:
    path = write("a.tsv", 'text\ttopic\n"open\t"a"b\n')
    assert list(Source(path)) == [Document("0", '"open', {"topic": '"a"b'})]


def test_jsonl_keeps_the_values_of_other_fields(write: Write) -> None:
    fields = {"n": 1, "x": 0.1, "none": None, "yes": True, "list": [1, {"deep": ["é", None]}]}
    path = write("a.jsonl", json.dumps({"text": "one", **fields}))
    assert list(Source(path)) == [Document("0", "one", fields)]


def test_an_unknown_ending_is_refused_with_the_endings_that_work(write: Write) -> None:
    for name in ("a.xlsx", "a", "a.parquet.gz"):
        path = write(name, "text\none\n")
        with pytest.raises(InvalidRequest) as caught:
            Source(path)
        assert all(part in caught.value.message for part in (str(path), ".csv", ".txt", ".parquet", ".csv.gz"))


def test_a_missing_file_is_refused_by_path(write: Write, tmp_path: Path) -> None:
    for path in (tmp_path / "missing.csv", tmp_path / "missing.csv" / "below.csv"):
        with pytest.raises(InvalidRequest, match=path.name):
            Source(path)
    path = write("a.csv", "text\none\n")
    source = Source(path)
    path.unlink()
    with pytest.raises(InvalidRequest, match=r"a\.csv"):
        list(source)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose first byte cannot be read")
def test_a_failing_read_is_refused_by_path(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(InvalidRequest, match=r"a\.txt cannot be read \("):
        list(Source(path))


@pytest.mark.parametrize(
    ("header", "position"),
    [
        ("title,text,body", 1),
        ("quote", 0),
        ("id,quote", 1),
        ("topic,headline", 1),
        ("date,content", 1),
        ("date,sentence", 1),
    ],
)
def test_the_text_column_is_found(write: Write, header: str, position: int) -> None:
    cells = [f"cell {number}" for number in range(header.count(",") + 1)]
    assert texts(write("a.csv", f"{header}\n{','.join(cells)}\n")) == [cells[position]]


def test_the_log_tells_which_of_several_columns_is_the_text(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = write("rows.csv", "topic,headline\nsea,storm\n")
    assert [document.text for document in Source(path)] == ["storm"]
    assert caplog.messages == [f"{path}: the texts are those of its column headline"]
    assert list(Source(write("texts.csv", "secret text\nstorm\n")))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("header", ["topic,date", "id", "Text,Title", "headline,content,id"])
def test_an_unclear_text_column_is_refused(write: Write, header: str) -> None:
    path = write("a.csv", f"{header}\n{header}\n")
    with pytest.raises(InvalidRequest, match="--text-column") as caught:
        list(Source(path))
    assert all(f'"{name}"' in caught.value.message for name in header.split(",") if name != "id")


def test_named_columns_are_used_and_left_out_of_the_fields(write: Write) -> None:
    path = write("a.csv", "key,title,body\nk1,one,two\n")
    assert list(Source(path, "body", "key")) == [Document("k1", "two", {"title": "one"})]
    assert next(iter(Source(path, "key", "key"))).fields == {"title": "one", "body": "two"}


@pytest.mark.parametrize(
    ("header", "columns", "taken"),
    [
        ("text,score", {}, "score"),
        ("text,title", {"text_column": "title"}, "text"),
        ("id,key,text", {"id_column": "key"}, "id"),
    ],
)
def test_a_column_named_like_a_part_of_a_hit_is_refused(
    write: Write, header: str, columns: dict[str, str], taken: str
) -> None:
    path = write("a.csv", f"{header}\n{header}\n")
    assert f'"{taken}"' in refusal(path, **columns)


def test_a_column_named_like_a_part_of_a_hit_may_hold_the_text_or_the_id(write: Write) -> None:
    path = write("a.csv", "id,score\nk,one\n")
    assert list(Source(path, text_column="score")) == [Document("k", "one", {})]
    assert list(Source(path, text_column="id", id_column="score")) == [Document("one", "k", {})]


def test_a_later_json_object_may_not_bring_such_a_field(write: Write) -> None:
    message = refusal(write("a.jsonl", '{"text":"one"}\n{"text":"two","id":"x"}\n'))
    assert "a.jsonl, line 2: " in message
    assert '"id"' in message


def test_ids_become_strings_and_count_from_zero_where_there_are_none(write: Write) -> None:
    path = write("a.jsonl", '{"id":7,"text":"one"}\n{"id":"x","text":"two"}\n{"id":0,"text":"three"}\n')
    assert [document.id for document in Source(path)] == ["7", "x", "0"]
    path = write("a.csv", "text\none\n\ntwo\n")
    assert [document.id for document in Source(path)] == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.csv", "id,text\nx,one\n,two\n", 3),
        ("a.csv", "id,text\n  ,one\n", 2),
        ("a.jsonl", '{"id":"x","text":"one"}\n{"text":"two"}\n', 2),
        ("a.jsonl", '{"id":null,"text":"one"}\n', 1),
        ("a.jsonl", '{"id":"","text":"one"}\n', 1),
    ],
)
def test_a_missing_id_is_refused(write: Write, name: str, content: str, line: int) -> None:
    path = write(name, content)
    message = refusal(path)
    assert message.startswith(f"{path}, line {line}: ")
    assert '"id"' in message


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        pytest.param("a.csv", "text,topic\none,sea\ntwo\n", 3, id="too few cells"),
        pytest.param("a.csv", "text,topic\none,sea,air\n", 2, id="too many cells"),
        pytest.param("a.csv", 'text,topic\n"one\n\nmore",sea\n"two\nmore"\n', 5, id="after a cell of three lines"),
        pytest.param("a.csv", "text,text\none,two\n", 1, id="two columns of one name"),
        pytest.param("a.csv", 'text,topic\none,sea\n"two\nmore,sea\n', 3, id="open quote"),
        pytest.param("a.csv", 'text\none\n"two" more\n', 3, id="text after a quote"),
        pytest.param("a.csv", f'text\none\n"two\n{"x" * 600_000}\n{"x" * 600_000}"\n', 3, id="text too long"),
        pytest.param("a.csv", "text,topic\none,sea\n,sea\n", 3, id="empty text"),
        pytest.param("a.csv", 'text\n"  \n\t"\n', 2, id="blank text"),
        pytest.param("a.csv", b'text\none\n"two\nand\0more"\n', 4, id="nul in csv"),
        pytest.param("a.tsv", b"text\none\0\n", 2, id="nul in tsv"),
        pytest.param("a.csv", b"text\none\ncaf\xe9\n", 3, id="latin-1"),
        pytest.param("a.txt", b"one\n" * 99_999 + b"\xc3", 100_000, id="cut in a character"),
        pytest.param("a.txt", "one\n".encode("utf-16"), 1, id="utf-16"),
        pytest.param("a.jsonl", '{"text":"one"}\n{"text":"two"\n', 2, id="open brace"),
        pytest.param("a.jsonl", '{"text":"one"} {"text":"two"}\n', 1, id="two objects on a line"),
        pytest.param("a.jsonl", '\n["one"]\n', 2, id="a list"),
        pytest.param("a.jsonl", '{"text":"one"}\n{"title":"two"}\n', 2, id="no text"),
        pytest.param("a.jsonl", '{"text":"one"}\n{"text":5}\n', 2, id="a number"),
        pytest.param("a.jsonl", '{"text":"\\ud83d"}\n', 1, id="half a pair"),
        pytest.param("a.jsonl", '{"text":"one","tags":[{"\\udc00":1}]}\n', 1, id="half a pair in a field"),
        pytest.param("a.jsonl", '{"text":"one","n":NaN}\n', 1, id="NaN"),
        pytest.param("a.jsonl", '{"text":"one","n":1e999}\n', 1, id="float overflow"),
        pytest.param("a.jsonl", '{"text":"one","n":9223372036854775808}\n', 1, id="integer over 64 bits"),
        pytest.param("a.jsonl", f'{{"text":"one","n":{"9" * 5000}}}\n', 1, id="integer of 5000 digits"),
        pytest.param("a.jsonl", f'{{"text":"one","n":{"[" * 99_999}}}\n', 1, id="deep nesting"),
    ],
)
def test_a_bad_row_is_refused_by_its_line(write: Write, name: str, content: str | bytes, line: int) -> None:
    path = write(name, content)
    assert refusal(path).startswith(f"{path}, line {line}: ")


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", "text,topic\none\n", "2 cells, this row 1"),
        ("a.csv", b"text\n\xff\n", "0xff"),
        ("a.csv", "nr;text\n1;one\n", "by commas in a .csv"),
        ("a.tsv", "nr;text\n1;one\n", "by tabs in a .tsv"),
        ("a.csv", "text,topic,topic\n1,2,3\n", '"topic"'),
        ("a.jsonl", '{"text":"one", "n":NaN}', "NaN"),
        ("a.jsonl", '{"text":"one"', "character 14"),
        ("a.jsonl", f'{{"text":"one","n":[{"[]," * 100_000}1]}}', "it has 100,002 brackets"),
        ("a.jsonl", f'{{"text":"one","n":{"9" * 5_000}}}', "does not fit in 64 bits"),
    ],
)
def test_a_refusal_says_what_is_wrong(write: Write, name: str, content: str | bytes, part: str) -> None:
    assert part in refusal(write(name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", ""), ("a.csv", "text,topic\n"), ("a.tsv", "text\n\n"), ("a.jsonl", "\n\n"), ("a.txt", b"\xef\xbb\xbf")],
)
def test_a_file_without_rows_has_no_documents(write: Write, name: str, content: str | bytes) -> None:
    assert texts(write(name, content)) == []


def test_good_rows_are_streamed_before_a_bad_one_is_met(write: Write) -> None:
    documents = iter(Source(write("a.txt", b"one\ntwo\n\xff\n")))
    assert [next(documents).text, next(documents).text] == ["one", "two"]
    with pytest.raises(BadDocument):
        next(documents)


def test_parquet_values_become_what_json_can_hold(write_parquet: Callable[[dict[str, Any]], Path]) -> None:
    path = write_parquet(
        {
            "id": [10, 11],
            "text": ["one", "two"],
            "day": [datetime.date(2024, 2, 29), None],
            "at": [datetime.datetime(2024, 2, 29, 12, 30), None],
            "price": [decimal.Decimal("1.50"), None],
            "raw": [b"ab", None],
            "x": [float("nan"), 0.5],
            "tags": [[datetime.date(2024, 2, 29)], [None]],
            "size": [{"w": 1.5, "h": float("inf")}, None],
        }
    )
    source = Source(path)
    first, second = source
    assert (first.id, first.text, second.id, second.text) == ("10", "one", "11", "two")
    assert first.fields == {
        "day": "2024-02-29",
        "at": "2024-02-29 12:30:00",
        "price": "1.50",
        "raw": "b'ab'",
        "x": None,
        "tags": ["2024-02-29"],
        "size": {"w": 1.5, "h": None},
    }
    assert second.fields == {**dict.fromkeys(first.fields), "x": 0.5, "tags": [None]}


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({"text": ["one", "two", None]}, 3),
        ({"text": [1, 2]}, 1),
        ({"id": ["a", None], "text": ["one", "two"]}, 2),
        ({"id": [1.0, float("nan")], "text": ["one", "two"]}, 2),
        ({"text": ["one"] * 3000 + [None]}, 3001),
        ({"text": ["one"], "score": [1.0]}, 1),
    ],
)
def test_a_bad_parquet_row_is_refused_by_its_number(
    write_parquet: Callable[[dict[str, Any]], Path], columns: dict[str, Any], row: int
) -> None:
    path = write_parquet(columns)
    assert refusal(path).startswith(f"{path}, row {row}: ")


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "twins.parquet"
    parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    assert '"text"' in refusal(path)


def test_files_that_are_not_parquet_are_refused(write: Write) -> None:
    pytest.importorskip("pyarrow")
    for content in (b"", b"text\none\n", b"PAR1" + b"\0" * 64 + b"PAR1"):
        path = write("b.parquet", content)
        assert refusal(path).startswith(f"{path}, row 1: not readable as parquet: ")


def test_parquet_without_pyarrow_names_the_extra(write: Write, tmp_path: Path) -> None:
    write("a.parquet", b"PAR1")
    write("pyarrow.py", "raise ImportError('not installed')")
    code = "from shoal.records.source import Source; list(Source('a.parquet'))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    child = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "MissingExtra: reading parquet needs pyarrow" in child.stderr
    assert "[parquet]'" in child.stderr


any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
some_text = any_text.filter(str.strip)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)


def read_back(name: str, content: str) -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content.encode())
        source = Source(path)
        documents = list(source)
        assert list(source) == documents
        return documents


@given(st.lists(st.tuples(some_text, any_text, any_text), min_size=1, max_size=9))
def test_rows_of_csv_writer_are_read_back(rows: list[tuple[str, str, str]]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written).writerows([("text", "topic", 'a, "b"\n'), *rows])
    expected = [Document(str(n), text, {"topic": a, 'a, "b"\n': b}) for n, (text, a, b) in enumerate(rows)]
    assert read_back("a.csv", written.getvalue()) == expected


@given(st.lists(st.tuples(some_text, json_values), min_size=1, max_size=9), st.booleans())
def test_lines_of_json_dumps_are_read_back(rows: list[tuple[str, Any]], ensure_ascii: bool) -> None:
    objects = [{"id": n, "text": text, "more": more} for n, (text, more) in enumerate(rows)]
    lines = [json.dumps(item, ensure_ascii=ensure_ascii) for item in objects]
    expected = [Document(str(n), text, {"more": more}) for n, (text, more) in enumerate(rows)]
    assert read_back("a.jsonl", "\n".join(lines)) == expected


@given(st.lists(some_text.filter(lambda text: not set(text) & set("\r\n")), min_size=1, max_size=9))
def test_lines_of_text_are_read_back(lines: list[str]) -> None:
    assert [document.text for document in read_back("a.txt", "\n" + "\n".join(lines))] == lines
