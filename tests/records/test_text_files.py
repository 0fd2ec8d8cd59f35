"""Sources in text files, packed or not: documents, bad rows and files, and limits."""

import csv
import gzip
import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadDocument, InvalidRequest, PathNotAllowed
from shoal.process.system_limits import limited_memory
from shoal.records.document import MAX_ROW_BYTES, BadRow, BadRows, Document
from shoal.records.line_records import MAX_LINE_CHARS
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.task_progress import MAX_SHOWN

Write = Callable[[str, str | bytes], Path]

#: Only the kernel of Linux reports the most memory that a program has used since its start.
counts_memory = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a file."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def rows(path: Path, **options: Any) -> list[str | int]:
    """Return the text of each document and the number of each bad row. Check that its reason names its place."""
    found: list[str | int] = []
    for row in Source(path, **options).rows():
        found.append(row.text if isinstance(row, Document) else row.number)
        assert isinstance(row, Document) or row.reason.startswith((f"{path}, line ", f"{path}, row "))
    return found


def refusal(path: Path, **options: Any) -> str:
    """Return the error of a source with a bad row, or of a source that is bad as a whole."""
    with pytest.raises(BadDocument) as caught:
        list(Source(path, **options))
    return caught.value.message


def peak_mb(path: Path, expression: str = "sum(1 for _ in source.rows())") -> float:
    """Return the most memory in MB that a process needs to evaluate an expression about `source`."""
    script = (
        "import re, sys\nfrom pathlib import Path\nfrom shoal.records.source import Source\n"
        f"source = Source(sys.argv[1])\n{expression}\n"
        r"print(re.search(r'VmHWM:\s+(\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout) / 2**10


class TestFormats:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.csv", 'id,text,topic\nx,"one, two",sea\ny,three,air\n'),
            ("a.csv", '\n\r\nid;text;topic\nx;one, two;sea\n"y";three;air\n'),
            ("a.csv", 'id\ttext\ttopic\nx\tone, two\tsea\ny\t"three"\tair\n'),
            ("a.tsv", "id\ttext\ttopic\nx\tone, two\tsea\ny\tthree\tair\n"),
            *(
                (f"a.{ending}", '{"id":"x","text":"one, two","topic":"sea"}\n{"id":"y","text":"three","topic":"air"}')
                for ending in ("jsonl", "json", "ndjson")
            ),
        ],
    )
    def test_each_gives_the_same_documents_packed_or_not(self, write: Write, name: str, content: str) -> None:
        for path in (
            *(write(name, content), write(name.upper(), content), write(f"crlf.{name}", content.replace("\n", "\r\n"))),
            *(write(f"{name}.gz", gzip.compress(content.encode())), write(f"bom.{name}", "\ufeff" + content)),
        ):
            source = Source(path)
            for _ in range(2):  # a second pass starts anew
                expected = [Document("x", "one, two", {"topic": "sea"}), Document("y", "three", {"topic": "air"})]
                assert list(source) == expected

    def test_lines_of_txt_and_cells_of_tsv_are_taken_as_they_are(self, write: Write) -> None:
        path = write("a.txt", '\ufeffone "quoted\r\n\n   \n two, three\tfour \nlast\u2028still last')
        assert rows(path) == ['one "quoted', " two, three\tfour ", "last\u2028still last"]
        path = write("a.tsv", 'text\ttopic\n"open\t"a"b\n\\Nope\t\\N\n\\N\tsea\n')  # \N is the null of databases
        found = [Document("0", '"open', {"topic": '"a"b'}), Document("1", r"\Nope", {"topic": ""})]
        assert [*islice(Source(path), 2)] == found
        assert rows(path)[2] == 4
        for name in ("a.csv", "a.tsv", "a.jsonl", "a.txt"):
            for content in ("", "\ufeff", "\n\n" if name != "a.csv" else "text,topic\n"):
                assert rows(write(name, content)) == []

    def test_a_file_of_no_known_kind_or_that_cannot_be_read_is_refused_by_path(self, write: Write) -> None:
        for name in ("a.xlsx", "a", "a.parquet.gz"):
            path = write(name, "text\none\n")
            with pytest.raises(InvalidRequest, match=rf"{path} .*\.csv, .*\.txt, .*\.parquet, .*\.csv\.gz; unpack"):
                Source(path)
        source = Source(path := write("a.csv", "text\none\n"))
        path.unlink()
        for use in (lambda: Source(path), lambda: list(source)):
            with pytest.raises(InvalidRequest, match=r"a\.csv"):
                use()
        if Path("/proc/self/mem").exists():  # the first byte of this file cannot be read
            path.symlink_to("/proc/self/mem")
            with pytest.raises(InvalidRequest, match=r"a\.csv cannot be read \("):
                list(source)


#: Tables, the columns to use, and the first document.
FIRST: list[tuple[str, dict[str, Any], Document]] = [
    ("title,text\na,b\n", {}, Document("0", "b", {"title": "a"})),
    ("quote\na\n", {}, Document("0", "a", {})),
    ("id,quote\na,b\n", {}, Document("a", "b", {})),
    ("a;b\tc,text\nd,e\n", {}, Document("0", "e", {"a;b\tc": "d"})),
    ("key,title,body\nk,a,b\n", {"text_column": "body", "id_column": "key"}, Document("k", "b", {"title": "a"})),
    ("key,body\nk,b\n", {"text_column": "key", "id_column": "key"}, Document("k", "k", {"body": "b"})),
    ("id,score\nk,one\n", {"text_column": "id", "id_column": "score"}, Document("one", "k", {})),
    ("_id,text\na,b\n", {}, Document("a", "b", {})),
    ("_id,id,text\na,b,c\n", {}, Document("b", "c", {"_id": "a"})),
    ("_id,key,text\na,b,c\n", {"id_column": "key"}, Document("b", "c", {"_id": "a"})),
    (",_id,text\na,b,c\n", {"id_column": ""}, Document("a", "c", {"_id": "b"})),
    ("key,text\na,b\n", {"reserved": frozenset({"text"})}, Document("0", "b", {"key": "a"})),
]


class TestColumns:
    def test_the_text_and_the_id_are_the_named_or_usual_columns(self, write: Write) -> None:
        for content, columns, found in FIRST:
            source = Source(write("a.csv", content), **columns)
            assert [*source] == [found]
            assert source.ids_are_positions is (found.id == "0")

    def test_a_column_that_must_be_named_does_not_exist_or_has_a_reserved_name_is_refused(self, write: Write) -> None:
        for header in ("id", "Text,Title", "headline,topic,id", ",".join("abcdefghij")):  # a message lists ten columns
            columns = ", ".join(f'"{name}"' for name in header.split(","))
            with pytest.raises(InvalidRequest, match=re.escape(f"its first line has the columns {columns}; name the")):
                rows(write("a.csv", f"{header}\n{header}\n"))
        for named in ("text_column", "id_column"):
            with pytest.raises(InvalidRequest, match='no column is called "headline"; there are "key", "title"'):
                rows(write("a.csv", "key,title\na,b\n"), **{named: "headline"})
        for header, options, taken in (
            ("text,score", {}, "score"),
            ("text,title", {"text_column": "title"}, "text"),
            ("id,key,text", {"id_column": "key"}, "id"),
        ):
            path = write("a.csv", f"{header}\n{header}\n")
            assert f'"{taken}"' in refusal(path, **options)
            assert len(rows(path, **options, reserved=frozenset())) == 1  # allowed if documents never become hits
        names = ",".join(f"c{n}" for n in range(200_000))
        assert rows(write("a.csv", f"text,{names}\n"), text_column="text") == []
        assert 'more than one column is called "text"' in refusal(write("a.csv", f"text,{names},text\n"))

    def test_ids_become_strings_and_missing_ids_are_positions(self, write: Write) -> None:
        path = write("a.jsonl", '{"id":7,"text":"one"}\n{"id":"x","text":"two"}\n{"id":0,"text":"three"}\n')
        assert [document.id for document in Source(path)] == ["7", "x", "0"]
        # If a bad row is corrected later, the ids of other rows stay.
        found = [row for row in Source(write("a.txt", b"one\n\n\xff\ntwo\n")).rows() if isinstance(row, Document)]
        assert [(row.id, row.text) for row in found] == [("0", "one"), ("2", "two")]


#: Bad rows: the file's name and content, the text of each document and the number of each bad row, and words of the
#: reason of the first bad row.
BAD_ROWS: list[tuple[str, str | bytes, list[str | int], str]] = [
    ("a.txt", b"one\n\xff\n\ntwo\0\nthree", ["one", 2, 4, "three"], "line 2: byte 0xff is not UTF-8"),
    ("a.txt", "one\n" * 9_999 + "Möbel", ["one"] * 9_999 + [10_000], "UTF-8; ENCODING is often CP1252"),
    ("a.csv", "text,n\none,1\n,2\n  ,3\ntwo\nthree,3,4\n", ["one", 3, 4, 5, 6], ""),
    ("a.csv", "text,topic\none\n", [2], "line 2: the header has 2 cells, this row 1"),
    ("a.csv", "id,text\nx,one\n,two\n  ,three\n", ["one", 3, 4], 'the id "id" is missing or empty'),
    ("a.csv", 'text,n\n"one",1\n"two" x,2\nthree,3\n', ["one", 3, "three"], "is a quote not closed"),
    ("a.csv", 'text,n\n"one\n1,2\n"three" x,3\nfour,4\n', [2, "four"], "in lines 2 to 4; is a quote"),
    ("a.csv", b'text,n\n"one\n\xff" x,1\ntwo,2\n', [2, "two"], "line 3: byte 0xff is not UTF-8"),
    ("a.txt", "rain\n".encode("utf-16-le"), [1, 2], "there is a NUL byte; the file must be UTF-8 text"),
    ("a.csv", 'text,n\n"a\n\nb",1\n"two\nmore"\n', ["a\n\nb", 5], "line 5: the header has 2 cells"),
    ("a.csv", b'text,n\n"o\n\xff\nne",1\ntwo,2\n', [2, "two"], "line 3: byte 0xff is not UTF-8"),
    ("a.csv", b'text\none\n"two\nand\0more"\n', ["one", 3], "there is a NUL byte"),
    ("a.tsv", b"text\tn\none\t1\ntwo\nth\0ree\t3\nfour\t4\n", ["one", 3, 4, "four"], "cells, this row 1"),
    ("a.jsonl", '{\n{"text":"one"}\n{"title":"x"}\n[]\n', [1, "one", 3, 4], "not valid JSON"),
    ("a.jsonl", '{"text":"one"} {}\n{"text":5}\n{"text":"two"\n', [1, 2, 3], "character 16"),
    ("a.jsonl", '{"text":"one"', [1], "character 14"),
    ("a.jsonl", '{"text":"\\ud83d"}\n{"text":"a","t":[{"\\udc00":1}]}\n', [1, 2], "surrogates not allowed"),
    ("a.jsonl", '{"text":"a","n":NaN}\n{"text":"b","n":1e999}\n', [1, "b"], "NaN"),
    ("a.jsonl", f'{{"text":"a","n":{2**63}}}\n{{"text":"a","n":{2**63 - 1}}}', [1, "a"], "does not fit in 64 bits"),
    ("a.jsonl", f'{{"text":"one","n":{"9" * 5_000}}}', [1], "does not fit in 64 bits"),
    ("a.jsonl", f'{{"text":"one","n":{"[" * 99_999}}}\n', [1], "maximum recursion depth"),
    ("a.jsonl", f'{{"text":"one","n":[{"[]," * 100_000}1]}}', [1], "it has 100,002 brackets"),
    ("a.jsonl", '{"id":null,"text":"a"}\n{"id":"","text":"a"}\n{"text":"a"}\n', [1, 2, 3], 'id "id" is missing'),
    ("a.jsonl", '{"id":{"a":1},"text":"one"}\n{"id":true,"text":"b"}', [1, 2], 'the id "id" is {"a": 1}; give'),
    ("a.jsonl", '{"_id":"a","text":"one"}\n{"text":"b"}', ["one", 2], 'line 2: the id "_id" is missing or empty'),
    ("a.jsonl", '{"text":"one"}\n{"text":"two","id":"x"}\n', ["one", 2], "a hit has its own"),
    ("a.json", '[{"text":"one"}]', [1], "is not a JSON object; write one JSON object on the line, as jq -c '.[]'"),
    ("a.json", "[\n", [1], "Expecting value at character 1; write one JSON object on the line, as jq"),
]


class TestBadRows:
    @pytest.mark.parametrize(("name", "content", "expected", "words"), BAD_ROWS, ids=range(len(BAD_ROWS)))
    def test_reading_continues_after_a_bad_row_and_the_reason_says_what_is_wrong(
        self, write: Write, name: str, content: str | bytes, expected: list[str | int], words: str
    ) -> None:
        if "CP1252" in words:
            content = str(content).encode("cp1252")
        path = write(name, content)
        assert rows(path) == expected
        good = [*takewhile(lambda row: isinstance(row, str), expected)]
        documents = iter(Source(path))
        assert [document.text for document in islice(documents, len(good))] == good
        with pytest.raises(BadDocument, match=rf"{re.escape(str(path))}, (?=line ).*{re.escape(words)}"):
            next(documents)

    def test_a_file_that_is_bad_as_a_whole_is_refused(self, write: Write) -> None:
        for name, content, part in (
            ("a.tsv", "nr;text\n1;one\n", "by tabs in a .tsv"),
            ("a.csv", "text,topic,topic\n1,2,3\n", 'more than one column is called "topic"'),
            (
                "a.csv",
                'text,n\none,1\n"two,2\nthree,3',
                "line 3: a quote is not closed within 8,388,608 bytes: close it",
            ),
            ("a.csv", 'text,n\n"' + f"{'x' * 1_000_000}\n" * 9 + "one,1\n", "line 2: a quote is not closed"),
            ("a.csv", "text,n\n" + '"\n' + "x\n" * 60_000 + '",1\n', "line 2: a quote is not closed"),
            (
                "a.txt",
                "rain\n".encode("utf-16"),
                "line 1: there is a NUL byte; the file must be UTF-8 text, not UTF-16",
            ),
        ):
            assert part in refusal(write(name, content))

    def test_bad_rows_are_counted_shown_and_saved(self, tmp_path: Path) -> None:
        path, bad_rows = tmp_path / "bad-rows.jsonl", [BadRow(n, f"a.txt, line {n}: it is empty") for n in range(2, 15)]
        with BadRows(path, most=12) as bad:
            for row in bad_rows[:12]:
                bad.add(row)
            with pytest.raises(BadDocument, match=r"over 12 rows cannot be used, .* the first: a.txt, line 2: it is"):
                bad.add(bad_rows[12])
        assert (bad.num, bad.first) == (12, tuple(row.reason for row in bad_rows[:MAX_SHOWN]))
        kept = [json.loads(line) for line in path.read_text().splitlines()]
        assert kept == [{"row": row.number, "reason": row.reason} for row in bad_rows[:12]]


class TestLimits:
    def test_a_row_over_the_limit_is_left_out(self, write: Write) -> None:
        for name, row in (("a.txt", "{}"), ("a.jsonl", '{{"text":"{}"}}'), ("a.csv", '"{}"'), ("a.tsv", "{}")):
            header = "" if name in ("a.txt", "a.jsonl") else "text\n"
            texts = ("ok", "x" * MAX_ROW_BYTES, "ok")
            path = write(name, "".join([header, *(row.format(text) + "\n" for text in texts)]))
            assert rows(path, max_text_chars=2 * MAX_ROW_BYTES) == ["ok", header.count("\n") + 2, "ok"]
            assert f"over {MAX_ROW_BYTES:,} bytes" in refusal(path)

    @counts_memory
    def test_a_line_of_50_mb_does_not_fill_the_memory(self, write: Write) -> None:
        path = write("a.txt.gz", gzip.compress(b"one\n" + bytes(50 * 2**20) + b"\ntwo\n", 1))
        assert rows(path) == ["one", 2, "two"]
        assert peak_mb(path) < 110

    def test_reading_of_a_file_that_is_no_text_ends_early(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write("a.txt.gz", gzip.compress(b"one\n" + bytes(MAX_LINE_CHARS + 2**24), 1))
        assert "line 2: it has over 268,435,456 characters" in refusal(path)
        monkeypatch.setattr("shoal.records.source_file.FREE_BYTES", 2**20)
        assert "more than 250 times as many" in refusal(write("a.txt.gz", gzip.compress(b"one\n" * 10_000)))

    @counts_memory
    def test_memory_does_not_grow_with_the_number_of_rows(self, write: Write) -> None:
        line = '{"id": %d, "text": "some words of text", "n": 1}\n'
        few, many = (write(f"{n}.jsonl", "".join(line % i for i in range(n))) for n in (1_000, 30_000))
        assert peak_mb(many) < peak_mb(few) + 3

    @counts_memory
    def test_the_memory_of_a_step_can_be_limited(self) -> None:
        with limited_memory(2**28), pytest.raises(MemoryError):
            bytearray(2**29)
        with limited_memory(2**30):
            bytearray(2**29)
        with limited_memory(2**30, lambda: 2**30), pytest.raises(MemoryError):
            bytearray(2**29)
        bytearray(2**29)
        held = bytearray(2**29)
        with limited_memory(2**27):  # more memory than the process has already
            assert len(held) > len(bytearray(2**26))


def test_a_damaged_packed_file_is_refused(write: Write) -> None:
    data = gzip.compress("".join(f"line {n}\n" for n in range(20_000)).encode())
    assert len(rows(write("a.txt.gz", data))) == 20_000
    for broken in (data[:-9], data[: len(data) // 2], data[:2], b"no archive", data[:20] + b"\xff" * 50 + data[70:]):
        assert re.search(r"not readable as gzip.* lines before it were read", refusal(write("b.txt.gz", broken)))


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_the_fraction_that_is_read_and_the_fingerprint_are_known(write: Write, packed: str) -> None:
    content = random.Random(1).randbytes(500_000).hex("\n", 40).encode()
    pack: Callable[[bytes], bytes] = gzip.compress if packed else bytes
    source = Source(path := write(f"a.txt{packed}", pack(content)))
    assert source.fraction is None
    parts = [source.fraction or 0 for n, _ in enumerate(source) if n % 1_000 == 0]
    assert parts == sorted(parts)
    assert parts[0] < 0.5 < parts[-1] <= 1
    assert source.fraction == 1
    before = source.fingerprint()
    assert before == source.fingerprint()
    assert (before["name"], before["size_bytes"]) == (path.name, path.stat().st_size)
    write(path.name, pack(content[:-1] + b"x"))
    assert source.fingerprint() != before


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_link_from_below_a_root_stays_below_it(write: Write, tmp_path: Path) -> None:
    (root := tmp_path / "root").mkdir()
    other, path, rules = write("secret.txt", "secret\n"), root / "a.txt", SourceRules(root_folders=[root])
    path.symlink_to(other)
    source = Source(path, rules=rules)
    for use in (source.fingerprint, lambda: list(source)):
        with pytest.raises(PathNotAllowed, match=r"root/a.txt is a link to a file that is below none"):
            use()
    assert rows(path) == ["secret"]  # no root limits this source
    assert rows(other, rules=rules) == ["secret"]  # the caller has allowed this root
    path.unlink()
    path.symlink_to(write("root/b.txt", "two\n"))
    assert [document.text for document in source] == ["two"]


any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
some_text = any_text.filter(str.strip)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(some_text, any_text, any_text), min_size=1, max_size=9))
def test_rows_of_csv_writer_are_read_back(tmp_path_factory: Any, rows: list[tuple[str, str, str]]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written).writerows([("text", "topic", 'a, "b"\n'), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(written.getvalue().encode())
    expected = [Document(str(n), text, {"topic": a, 'a, "b"\n': b}) for n, (text, a, b) in enumerate(rows)]
    assert list(Source(path)) == expected


@given(st.lists(st.tuples(some_text, json_values), min_size=1, max_size=9), st.booleans())
def test_lines_of_json_are_read_back(tmp_path_factory: Any, rows: list[tuple[str, Any]], ensure_ascii: bool) -> None:
    objects = [{"id": n, "text": text, "more": more} for n, (text, more) in enumerate(rows)]
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_bytes("\n".join(json.dumps(item, ensure_ascii=ensure_ascii) for item in objects).encode())
    assert list(Source(path)) == [Document(str(n), text, {"more": more}) for n, (text, more) in enumerate(rows)]
