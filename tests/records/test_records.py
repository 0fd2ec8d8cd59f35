"""Sources that go on after bad rows, packed and remote files, and memory that does not grow with a source."""

import gzip
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from http_servers import Canned, CannedServer, running

from shoal.errors import AddressNotAllowed, BadDocument, FileError, InvalidRequest, PathNotAllowed, ShoalError
from shoal.long_task import MAX_SHOWN
from shoal.process.system_limits import limited_memory
from shoal.records.bad_rows import BadRows
from shoal.records.document import MAX_ROW_BYTES, BadRow, Document
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.records.text_records import MAX_BLANK_CHARS, MAX_LINE_CHARS, MAX_OPEN_QUOTES
from shoal.records.web_file import PACE_S, Pace, WebFile

Write = Callable[[str, str | bytes], Path]

#: Python before 3.14 has it in a package.
zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
pyarrow = pytest.importorskip("pyarrow")

LOOPBACK = frozenset({"127.0.0.1"})


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def rows(path: Path, **columns: Any) -> list[str | int]:
    """Return the text of each document, and the number of each bad row, whose reason begins with its place."""
    found: list[str | int] = []
    for row in Source(path, **columns).rows():
        found.append(row.text if isinstance(row, Document) else row.number)
        assert isinstance(row, Document) or row.reason.startswith((f"{path}, line ", f"{path}, row "))
    return found


def reasons(path: Path) -> list[str]:
    return [row.reason.partition(": ")[2] for row in Source(path).rows() if isinstance(row, BadRow)]


#: The kernel of Linux counts the most memory of a program from its start on.
counts_memory = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")


def peak_mb(path: Path, expression: str) -> float:
    """Return the most memory that a process needs to evaluate an expression of `source`, in MB."""
    script = (
        "import re, sys\nfrom pathlib import Path\nfrom shoal.records.source import Source\n"
        f"source = Source(sys.argv[1])\n{expression}\n"
        r"print(re.search(r'VmHWM:\s+(\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout) / 2**10


@counts_memory
def test_the_memory_that_something_takes_has_a_limit() -> None:
    with limited_memory(2**28), pytest.raises(MemoryError):
        bytearray(2**29)
    with limited_memory(2**30):
        bytearray(2**29)
    with limited_memory(2**30, lambda: 2**30), pytest.raises(MemoryError):
        bytearray(2**29)
    bytearray(2**29)


def test_a_header_of_very_many_columns(write: Write) -> None:
    names = ",".join(f"c{n}" for n in range(200_000))
    assert rows(write("a.csv", f"text,{names}\n"), text_column="text") == []
    with pytest.raises(BadDocument, match='more than one column is called "text"'):
        rows(write("a.csv", f"text,{names},text\n"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        pytest.param("a.txt", b"one\n\xff\n\ntwo\0\nthree", ["one", 2, 4, "three"], id="encoding and nul"),
        pytest.param(
            "a.jsonl", '{"text":"one"}\n{\n[]\n{"text":5}\n{"text":"two"}\n', ["one", 2, 3, 4, "two"], id="json"
        ),
        pytest.param("a.jsonl", '{\n{"text":"one"}\n{"title":"x"}\n', [1, "one", 3], id="the first line is bad"),
        pytest.param("a.csv", "text,n\none,1\n,2\n  ,3\ntwo\nthree,3\n", ["one", 3, 4, 5, "three"], id="cells"),
        pytest.param("a.csv", 'text,n\n"one",1\n"two" x,2\nthree,3\n', ["one", 3, "three"], id="text after a quote"),
        pytest.param("a.csv", 'text,n\n"one\n1,2\n"three" x,3\nfour,4\n', [2, "four"], id="a row of three lines"),
        pytest.param("a.csv", 'text,n\none,1\n"two,2\nthree,3\nfour,4\n', ["one", 3, "three", "four"], id="open quote"),
        pytest.param("a.csv", 'text,n\none,1\n"two,2', ["one", 3], id="open quote in the last line"),
        pytest.param("a.csv", b'text,n\n"o\n\xff\nne",1\ntwo,2\n', [2, "two"], id="encoding in a row of three lines"),
        pytest.param("a.csv", b'text,n\n"one\n\xff,1\ntwo,2\n', [2, 3, "two"], id="encoding after an open quote"),
        pytest.param("a.tsv", "text\tn\none\t1\ntwo\nthree\t3\n", ["one", 3, "three"], id="tsv"),
    ],
)
def test_reading_goes_on_after_a_bad_row(write: Write, name: str, content: str | bytes, expected: list[Any]) -> None:
    path = write(name, content)
    assert rows(path) == expected
    with pytest.raises(BadDocument):
        list(Source(path))


def test_the_reason_of_a_bad_row_has_its_lines(write: Write) -> None:
    assert "in lines 2 to 4; is a quote" in reasons(write("a.csv", 'text,n\n"one\n1,2\n"three" x,3\nfour,4\n'))[0]
    assert reasons(write("b.csv", 'text\none\n"two\nthree\n')) == ["a quote is not closed; close it, or double it"]
    (reason,) = [
        row.reason for row in Source(write("c.csv", b'text\n"o\n\xff\nne"\n')).rows() if isinstance(row, BadRow)
    ]
    assert "c.csv, line 3: byte 0xff is not UTF-8" in reason


@pytest.mark.parametrize(
    ("name", "row"),
    [("a.txt", "{}"), ("a.jsonl", '{{"text":"{}"}}'), ("a.csv", "{}"), ("a.csv", '"{}"'), ("a.tsv", "{}")],
)
def test_a_row_over_the_limit_is_left_out(write: Write, name: str, row: str) -> None:
    header = "" if name in ("a.txt", "a.jsonl") else "text\n"
    path = write(name, "".join([header, *(row.format(text) + "\n" for text in ("ok", "x" * MAX_ROW_BYTES, "ok"))]))
    assert rows(path) == ["ok", header.count("\n") + 2, "ok"]
    assert f"over {MAX_ROW_BYTES:,} bytes" in reasons(path)[0]


@counts_memory
def test_a_line_of_50_mb_does_not_fill_the_memory(write: Write) -> None:
    path = write("a.txt.zst", zstd.compress(b"one\n" + bytes(50 * 2**20) + b"\ntwo\n"))
    assert rows(path) == ["one", 2, "two"]
    assert peak_mb(path, "sum(1 for _ in source.rows())") < 110


def test_a_file_with_a_line_of_gigabytes_is_not_read_on(write: Write) -> None:
    path = write("a.txt.zst", zstd.compress(b"one\n" + bytes(MAX_LINE_CHARS + 2**24)))
    with pytest.raises(BadDocument, match="line 2: it has over 268,435,456 characters"):
        rows(path)


def test_a_file_of_blank_lines_is_not_read_on(write: Write) -> None:
    blank = b" " * (MAX_BLANK_CHARS * 2 // 3) + b"\n"
    path = write("a.txt.zst", zstd.compress(b"one\n" + blank + b"two\n" + blank + b"three\n"))
    assert rows(path) == ["one", "two", "three"]
    path = write("a.txt.zst", zstd.compress(b"one\n" + b"\n" * (MAX_BLANK_CHARS + 1)))
    with pytest.raises(BadDocument, match="line 1048578: over 1,048,576 characters of blank lines"):
        rows(path)


def test_a_table_with_many_open_quotes_is_not_read_on(write: Write) -> None:
    source = Source(write("a.csv", "text\n" + 'x","\n' * MAX_OPEN_QUOTES * 1_000))
    found = islice(source.rows(), 3 * MAX_OPEN_QUOTES)
    with pytest.raises(BadDocument, match="over 100 quotes are not closed"):
        sum(isinstance(row, BadRow) for row in found)


def test_a_row_of_many_lines_is_limited_too(write: Write) -> None:
    path = write("a.csv", 'text,n\n"' + f"{'x' * 1_000_000}\n" * 9 + "one,1\ntwo,2\n")
    found = rows(path)
    assert found[-2:] == ["one", "two"]
    assert found[:-2] == list(range(2, 11))


def test_bad_rows_are_counted_shown_and_kept(tmp_path: Path) -> None:
    path, rows = tmp_path / "bad-rows.jsonl", [BadRow(n, f"a.txt, line {n}: it is empty") for n in range(2, 15)]
    with BadRows(path, most=12) as bad:
        for row in rows[:12]:
            bad.add(row)
        with pytest.raises(BadDocument, match=r"over 12 rows cannot be used, .* the first: a.txt, line 2: it is empty"):
            bad.add(rows[12])
    assert (bad.num, bad.first) == (12, tuple(row.reason for row in rows[:MAX_SHOWN]))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert kept == [{"row": row.number, "reason": row.reason} for row in rows[:12]]


def test_ids_without_a_column_are_those_of_the_rows(write: Write) -> None:
    """A bad row that is corrected later changes the ids of no others."""
    found = [row for row in Source(write("a.txt", b"one\n\xff\ntwo\n")).rows() if isinstance(row, Document)]
    assert [(row.id, row.text) for row in found] == [("0", "one"), ("2", "two")]


@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_a_truncated_file_is_a_fault_of_the_file(write: Write, packed: str) -> None:
    content = "".join(f"line {n}\n" for n in range(20_000)).encode()
    data = gzip.compress(content) if packed == ".gz" else zstd.compress(content)
    assert len(rows(write(f"a.txt{packed}", data))) == 20_000
    for broken in (data[:-9], data[: len(data) // 2], data[:2], b"no archive", data[:20] + b"\xff" * 50 + data[70:]):
        path = write(f"b.txt{packed}", broken)
        with pytest.raises(BadDocument, match=r"not readable as (gzip|zstd).* lines before it were read"):
            rows(path)


def test_a_wrong_column_is_a_fault_of_the_file(write: Write) -> None:
    for columns in ({"text_column": "headline"}, {"id_column": "headline"}):
        with pytest.raises(InvalidRequest, match='no column is called "headline"; there are "n", "text"'):
            rows(write("a.csv", "n,text\n1,one\n"), **columns)
    with pytest.raises(BadDocument, match="UTF-16"):
        rows(write("a.csv", "text\none\n".encode("utf-16")))


def test_names_of_parts_of_hits_are_columns_like_others_where_there_are_no_hits(write: Write) -> None:
    path = write("a.csv", "id,text,score\n1,one,0.5\n")
    assert rows(path) == [2]
    assert rows(path, reserved=frozenset()) == ["one"]


def write_batches(path: Path, columns: dict[str, Any], compression: str | None = None) -> None:
    """Write a file of Arrow."""
    from pyarrow import ipc

    table = pyarrow.table(columns)
    options = ipc.IpcWriteOptions(compression=compression)
    with path.open("wb") as file, ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_link_leads_from_below_a_root_to_no_other_place(write: Write, tmp_path: Path) -> None:
    (root := tmp_path / "root").mkdir()
    other, path = write("secret.txt", "secret\n"), root / "a.txt"
    path.write_text("one\n")
    source = Source(path, rules=SourceRules(root_folders=[root]))
    assert [document.text for document in source] == ["one"]
    path.unlink()
    path.symlink_to(other)
    for use in (source.fingerprint, lambda: list(source)):
        with pytest.raises(PathNotAllowed, match=r"root/a.txt is a link to a file that is below none"):
            use()
    assert rows(path) == ["secret"]  # there is no root
    assert rows(other, rules=SourceRules(root_folders=[root])) == ["secret"]  # the caller has allowed it
    path.unlink()
    path.symlink_to(write("root/b.txt", "two\n"))
    assert [document.text for document in source] == ["two"]


class TestColumns:
    """Files of columns: .parquet, and Arrow's."""

    @pytest.fixture(params=[".parquet", ".arrow", ".feather", "stream.arrow"])
    def save(self, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], Path]:
        def write_table(columns: dict[str, Any]) -> Path:
            from pyarrow import ipc, parquet

            path = tmp_path / f"a{request.param}"
            table = pyarrow.table(columns)
            if request.param == ".parquet":
                parquet.write_table(table, path)
            else:
                new = ipc.new_stream if "stream" in request.param else ipc.new_file
                with path.open("wb") as file, new(file, table.schema) as writer:
                    writer.write_table(table, max_chunksize=2_000)
            return path

        return write_table

    def test_rows_are_documents(self, save: Callable[[dict[str, Any]], Path]) -> None:
        path = save(
            {"id": [*range(5_000)], "text": [f"text {n % 7}" for n in range(5_000)], "tags": [["a", None]] * 5_000}
        )
        source = Source(path)
        found = list(source)
        assert found[4_999] == Document("4999", "text 1", {"tags": ["a", None]})
        assert len(found) == 5_000
        assert source.fraction == 1.0

    def test_maps_are_lists_of_pairs(self, save: Callable[[dict[str, Any]], Path]) -> None:
        sizes = pyarrow.array([[("w", 1), ("h", 2)], [("w", 3)], None], pyarrow.map_(pyarrow.string(), pyarrow.int32()))
        path = save({"text": ["one", "two", "three"], "size": sizes})
        assert [row.fields["size"] for row in Source(path)] == [[["w", 1], ["h", 2]], [["w", 3]], None]
        large = pyarrow.array([[("w", "x" * (MAX_ROW_BYTES + 1))], [("w", "x")]], pyarrow.map_("string", "string"))
        assert rows(save({"text": ["one", "two"], "size": large})) == [1, "two"]

    def test_bad_rows_are_left_out(self, save: Callable[[dict[str, Any]], Path]) -> None:
        assert rows(save({"text": ["one", None, " ", "two"]})) == ["one", 2, 3, "two"]
        words = pyarrow.array([b"one", b"\xff", b"two"])
        words = pyarrow.Array.from_buffers(pyarrow.string(), len(words), words.buffers())
        assert rows(save({"text": words})) == ["one", 2, "two"]
        large = "x" * (MAX_ROW_BYTES + 1)
        assert rows(save({"text": ["one", "two", "three"], "page": ["", large, ""]})) == ["one", 2, "three"]

    @counts_memory
    def test_repeated_values_do_not_fill_the_memory(self, save: Callable[[dict[str, Any]], Path]) -> None:
        values = pyarrow.array(["x" * 500_000]).take(pyarrow.array([0] * 400))
        path = save({"text": ["one"] * 400, "page": values.dictionary_encode()})
        del values
        assert peak_mb(path, "sum(1 for _ in source.rows())") < 180

    @pytest.mark.wide
    def test_a_row_that_nearly_fills_the_memory_ends_in_a_sentence(self, tmp_path: Path) -> None:
        """In a process of its own, as pyarrow loads parts of itself when they are used first."""
        numbers = pyarrow.ListArray.from_arrays(pyarrow.array([0, 50_000_000], "int32"), pyarrow.repeat(0, 50_000_000))
        path = tmp_path / "a.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": ["one"], "page": numbers}), path)
        code = "import sys; from shoal.records.source import Source as S; print(list(S(sys.argv[1]).rows()))"
        ended = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert "it has over 8,388,608 bytes" in ended.stdout or "BadDocument" in ended.stderr, ended.stderr[-500:]

    @pytest.mark.parametrize("last", [b"valid", b"\xff"])
    def test_a_small_file_of_a_terabyte_of_rows_is_refused(self, tmp_path: Path, last: bytes) -> None:
        numbers = pyarrow.repeat(pyarrow.scalar(0, "int32"), 10**6)
        texts = pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array(["x" * 10**6]))
        words = pyarrow.array([b""] * (10**6 - 1) + [last])
        words = pyarrow.Array.from_buffers(pyarrow.string(), len(words), words.buffers())
        batch = pyarrow.record_batch([texts, words], names=["text", "word"])
        options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
        with pyarrow.ipc.new_file(tmp_path / "a.arrow", batch.schema, options=options) as file:
            file.write_batch(batch)
        assert (tmp_path / "a.arrow").stat().st_size < 100_000
        with pytest.raises(BadDocument, match="times as many: if they are right, unpack the file"):
            sum(1 for _ in Source(tmp_path / "a.arrow").rows())

    @pytest.mark.parametrize("kind", ["dictionary", "view", "nulls", "booleans"])
    def test_a_row_whose_values_are_small_in_the_file_alone_is_too_long(self, tmp_path: Path, kind: str) -> None:
        large = pyarrow.array(["x" * 2**19])
        views = pyarrow.py_buffer(struct.pack("<i4sii", 2**19, b"xxxx", 0, 0) * 32)
        values = {
            "dictionary": lambda: pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 32, pyarrow.int8()), large),
            "view": lambda: pyarrow.Array.from_buffers(pyarrow.string_view(), 32, [None, views, large.buffers()[2]]),
            "nulls": lambda: pyarrow.nulls(2**21),
            "booleans": lambda: pyarrow.repeat(True, 2**21),
        }[kind]()
        places = pyarrow.array([0, 0, len(values), len(values)], pyarrow.int32())
        lists = pyarrow.ListArray.from_arrays(places, values)
        write_batches(tmp_path / "a.arrow", {"text": ["one", "two", "three"], "values": lists})
        assert rows(tmp_path / "a.arrow") == ["one", 2, "three"]

    @pytest.mark.parametrize("kind", ["run_end_encoded", "dense_union", "list_view"])
    def test_a_type_of_repeated_values_is_refused(self, tmp_path: Path, kind: str) -> None:
        numbers = pyarrow.array([1, 2], pyarrow.int32())
        values = {
            "run_end_encoded": lambda: pyarrow.RunEndEncodedArray.from_arrays(numbers, numbers),
            "dense_union": lambda: pyarrow.UnionArray.from_dense(numbers.cast("int8"), numbers, [numbers] * 3),
            "list_view": lambda: pyarrow.ListViewArray.from_arrays([0, 0], [2, 2], numbers),
        }[kind]()
        write_batches(tmp_path / "a.arrow", {"text": ["one", "two"], "values": values})
        with pytest.raises(BadDocument, match=rf'row 1: the column "values" is of the type "{kind}<.*convert it'):
            rows(tmp_path / "a.arrow")

    @counts_memory
    def test_a_record_batch_that_unpacks_to_gigabytes(self, tmp_path: Path) -> None:
        path, noise = tmp_path / "a.arrow", random.Random(5).randbytes(2**17)
        write_batches(path, {"text": ["one"], "page": pyarrow.array([noise])}, compression="zstd")
        packer, zeros = zstd.ZstdCompressor(), bytes(2**20)
        bomb = b"".join(packer.compress(zeros) for _ in range(2**11)) + packer.flush()
        packed = pyarrow.compress(noise, "zstd", asbytes=True)
        skipped = len(packed) - len(bomb) - 8
        padding = b"\x50\x2a\x4d\x18" + skipped.to_bytes(4, "little") + bytes(skipped)
        former, new = (num_bytes.to_bytes(8, "little") for num_bytes in (2**17, 2**31))
        assert path.read_bytes().count(former + packed) == 1
        path.write_bytes(path.read_bytes().replace(former + packed, new + bomb + padding))
        with pytest.raises(BadDocument, match=r"a.arrow, row 1: reading on takes over 1,073,741,824 bytes of memory"):
            rows(path)

    def test_a_truncated_file_is_a_fault_of_the_file(self, save: Callable[[dict[str, Any]], Path]) -> None:
        path = save({"text": [f"text {n}" for n in range(5_000)]})
        path.write_bytes(path.read_bytes()[:-1_000])
        with pytest.raises(BadDocument, match=r"not readable as (parquet|Arrow)"):
            rows(path)
        assert rows(save({"text": pyarrow.array([], pyarrow.string())})) == []


@counts_memory
def test_memory_does_not_grow_with_the_number_of_rows(write: Write) -> None:
    line = '{"id": %d, "text": "some words of text", "n": 1}\n'
    few, many = (write(f"{n}.jsonl", "".join(line % i for i in range(n))) for n in (1_000, 30_000))
    assert peak_mb(many, "sum(1 for _ in source)") < peak_mb(few, "sum(1 for _ in source)") + 3


def test_the_part_that_was_read_is_known(write: Write) -> None:
    content = random.Random(1).randbytes(500_000).hex("\n", 40).encode()
    packed = {"a.txt": content, "a.txt.gz": gzip.compress(content), "a.txt.zst": zstd.compress(content)}
    for name, data in packed.items():
        source = Source(write(name, data))
        assert source.fraction is None
        parts = [source.fraction or 0 for n, _ in enumerate(source) if n % 1_000 == 0]
        assert parts == sorted(parts)
        assert parts[0] < 0.5 < parts[-1] <= 1
        assert source.fraction == 1
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one"] * 3_000}), path := write("a.parquet", ""))
    source = Source(path)
    assert {source.fraction for _ in source} == {0.0, 1_024 / 3_000, 2_048 / 3_000}


def test_a_change_of_the_file_changes_its_fingerprint(write: Write) -> None:
    source = Source(write("a.txt", "one\n"))
    before = source.fingerprint()
    assert before == source.fingerprint()
    assert (before["name"], before["size_bytes"]) == ("a.txt", 4)
    write("a.txt", "two\n")
    assert source.fingerprint() != before


class TestStores:
    """Files that fsspec opens, in its store in memory."""

    @pytest.fixture(autouse=True)
    def store(self) -> Iterator[Any]:
        fsspec = pytest.importorskip("fsspec")
        store = fsspec.filesystem("memory")
        yield store
        store.store.clear()

    def test_one_is_read_as_a_local_file_is(self, store: Any) -> None:
        store.pipe("/bucket/a.csv.gz", gzip.compress(b"text\none\ntwo\n"))
        source = Source("memory://bucket/a.csv.gz")
        assert [document.text for document in source] == ["one", "two"]
        assert source.fraction == 1
        assert source.fingerprint()["name"] == "a.csv.gz"

    def test_one_over_sftp_tells_its_position_and_not_where_it_went(
        self, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.pipe("/bucket/a.csv", b"text\none\ntwo\n")
        opened = store.open("/bucket/a.csv")
        go_to = opened.seek
        monkeypatch.setattr(type(opened), "seek", lambda self, *place: go_to(*place) and None)
        source = Source("memory://bucket/a.csv")
        assert len(list(source)) == 2
        assert source.fraction == 1

    def test_parquet_is_read_from_its_end(self, store: Any, tmp_path: Path) -> None:
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
        store.pipe("/bucket/a.parquet", (tmp_path / "a.parquet").read_bytes())
        assert [document.text for document in Source("memory://bucket/a.parquet")] == ["one", "two"]

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("memory://bucket/missing.txt", "there is no file"),
            ("nostore://bucket/a.txt", "cannot be read"),
            ("simplecache::memory://bucket/a.txt", "double colon"),
            ("s3://[/a.txt", "cannot be read|needs"),
            ("memory://bucket/a.xlsx", "of no known kind"),
        ],
    )
    def test_one_that_cannot_be_read_is_refused(self, url: str, message: str) -> None:
        with pytest.raises(ShoalError, match=message):
            list(Source(url))


class PartServer(CannedServer):
    """A server that sends parts of its `content` where it has no other answers."""

    content = b""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Canned] = []

    def next_answer(self) -> Canned:
        if self.first:
            return self.first.pop(0)
        if self.answers:
            return super().next_answer()
        parts = {"Accept-Ranges": "bytes", "ETag": '"a"'}
        asked = self.requests[-1][1].get("Range", "").removeprefix("bytes=").rstrip("-")
        if not asked:
            return Canned(200, self.content, parts)
        place = f"bytes {asked}-{len(self.content) - 1}/{len(self.content)}"
        return Canned(206, self.content[int(asked) :], parts | {"Content-Range": place})


class TestWeb:
    """Files of a web server."""

    @pytest.fixture
    def server(self) -> Iterator["PartServer"]:
        server = PartServer()
        with running(server):
            yield server

    def test_one_is_read_as_a_local_file_is(self, server: CannedServer) -> None:
        server.answers = [Canned(200, gzip.compress(b"text\none\ntwo\n"), {"ETag": '"a"'})]
        source = Source(f"{server.url}/x/a.csv.gz?signature=secret", rules=SourceRules(LOOPBACK))
        assert [document.text for document in source] == ["one", "two"]
        assert source.fingerprint()["modified"] == '"a"'
        assert server.requests[0][0] == "/x/a.csv.gz?signature=secret"
        assert source.name == "a.csv.gz"

    def test_a_size_that_no_file_has_is_not_believed(self, server: CannedServer) -> None:
        server.answers = [Canned(200, b"one\n", {"Content-Length": "9" * 5_000})]
        with WebFile(f"{server.url}/a.txt", LOOPBACK) as file:
            assert (file.size_bytes, file.read(4)) == (None, b"one\n")

    def test_a_redirect_into_a_private_network_is_refused(self, server: CannedServer) -> None:
        server.answers = [Canned(302, headers={"Location": f"http://localhost:{server.server_port}/b"})]
        with pytest.raises(AddressNotAllowed, match="leads into a private network"):
            list(Source(f"{server.url}/a.txt", rules=SourceRules((*LOOPBACK, "localhost"))))
        assert len(server.requests) == 1

    @pytest.mark.parametrize(
        ("root", "target", "is_allowed"),
        [
            ("/open/", "/open/b.txt", True),
            ("/open/", "/secret/b.txt", False),
            ("/open/", "/open/%2e%2e/secret/b.txt", False),
            ("/other/", "/secret/b.txt", True),  # the source itself is below no root: the caller has allowed it
        ],
    )
    def test_a_redirect_leads_from_below_a_root_to_no_other_place(
        self, server: CannedServer, root: str, target: str, is_allowed: bool
    ) -> None:
        server.answers = [Canned(302, headers={"Location": target}), Canned(200, b"one\n")]
        source = Source(f"{server.url}/open/a.txt", rules=SourceRules(LOOPBACK, [f"{server.url}{root}"]))
        if is_allowed:
            assert [document.text for document in source] == ["one"]
        else:
            with pytest.raises(PathNotAllowed, match=r"open/a.txt is redirected to .*/secret/b.txt.* SHOAL_ROOTS"):
                list(source)
            assert len(server.requests) == 1

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (Canned(404), "answers 404"),
            (Canned(302, headers={"Location": "/a.txt"}), "redirects"),
            (Canned(302, headers={"Location": "http://[x"}), r"redirects to .*, which is no URL"),
            (Canned(0), "does not answer"),
            (Canned(200, b"one\n", {"Content-Length": "9"}), "ended after 4 of 9 bytes"),
        ],
    )
    def test_one_that_cannot_be_read_is_refused_without_its_secret(
        self, server: CannedServer, answer: Canned, message: str
    ) -> None:
        server.answers = [answer]
        with pytest.raises(FileError, match=message) as caught:
            list(Source(f"{server.url}/a.txt?key=secret", rules=SourceRules(LOOPBACK)))
        assert "secret" not in caught.value.message

    def test_reading_goes_on_where_the_connection_broke_unless_the_file_has_changed(self, server: "PartServer") -> None:
        server.content = "".join(f"line {n}\n" for n in range(1_000)).encode()
        whole = {"Accept-Ranges": "bytes", "ETag": '"a"', "Content-Length": str(len(server.content))}
        server.first = [Canned(200, server.content[:3_000], whole)]
        documents = list(Source(f"{server.url}/a.txt", rules=SourceRules(LOOPBACK)))
        assert documents[999].text == "line 999"
        assert server.requests[1][1]["Range"] == "bytes=3000-"
        server.first = [Canned(200, server.content[:3_000], whole | {"ETag": '"former"'})]
        with pytest.raises(FileError, match="it has changed since it was opened"):
            list(Source(f"{server.url}/a.txt", rules=SourceRules(LOOPBACK)))

    def test_a_server_has_to_keep_a_pace(self) -> None:
        pace = Pace()
        assert not any(pace.is_too_slow(8_192, PACE_S / 8) for _ in range(80))
        assert not any(pace.is_too_slow(1, PACE_S / 8) for _ in range(7))
        assert pace.is_too_slow(1, PACE_S / 8)
        assert not pace.is_too_slow(2**20, 10 * PACE_S)
        assert not any(pace.is_too_slow(1, 0.0) for _ in range(1_000))

    def test_parquet_is_read_where_the_server_sends_parts(self, tmp_path: Path, server: "PartServer") -> None:
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
        server.content = (tmp_path / "a.parquet").read_bytes()
        source = Source(f"{server.url}/a.parquet", rules=SourceRules(LOOPBACK))
        assert [document.text for document in source] == ["one", "two"]
        server.answers = [Canned(200, server.content)]
        with pytest.raises(FileError, match="sent as a whole only"):
            list(source)
