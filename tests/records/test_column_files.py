"""Sources in .parquet and Arrow files."""

import datetime
import decimal
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_text_files import Write, counts_memory, peak_mb, refusal, rows, write, zstd

from shoal.errors import BadDocument
from shoal.records.document import MAX_ROW_BYTES, Document
from shoal.records.source import Source

pyarrow = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")

__all__ = ["write"]

Save = Callable[[dict[str, Any]], Path]


@pytest.fixture(params=[".parquet", ".arrow", "stream.arrow"])
def save(tmp_path: Path, request: pytest.FixtureRequest) -> Save:
    """Return a function that writes a file of one kind."""

    def write_table(columns: dict[str, Any]) -> Path:
        path, table = tmp_path / f"a{request.param}", pyarrow.table(columns)
        if request.param == ".parquet":
            parquet.write_table(table, path)
        else:
            new = ipc.new_stream if "stream" in request.param else ipc.new_file
            with path.open("wb") as file, new(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=2_000)
        return path

    return write_table


def arrow(path: Path, columns: dict[str, Any], compression: str | None = None) -> Path:
    """Write an Arrow file and return its path."""
    table = pyarrow.table(columns)
    options = ipc.IpcWriteOptions(compression=compression)
    with path.open("wb") as file, ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


def invalid(*values: bytes) -> Any:
    """Return an array of strings that may have any bytes."""
    array = pyarrow.array(values)
    return pyarrow.Array.from_buffers(pyarrow.string(), len(values), array.buffers())


def test_rows_are_documents(save: Save) -> None:
    numbers = range(5_000)
    path = save({"id": [*numbers], "text": [f"text {n % 7}" for n in numbers], "tags": [["a", None]] * 5_000})
    source = Source(path)
    found = list(source)
    assert (len(found), found[4_999]) == (5_000, Document("4999", "text 1", {"tags": ["a", None]}))
    assert source.fraction == 1.0
    assert rows(save({"text": pyarrow.array([], pyarrow.string())})) == []


def test_maps_are_lists_of_pairs(save: Save) -> None:
    sizes = pyarrow.array([[("w", 1), ("h", 2)], [("w", 3)], None], pyarrow.map_(pyarrow.string(), pyarrow.int32()))
    path = save({"text": ["one", "two", "three"], "size": sizes})
    assert [row.fields["size"] for row in Source(path)] == [[["w", 1], ["h", 2]], [["w", 3]], None]
    large = pyarrow.array([[("w", "x" * (MAX_ROW_BYTES + 1))], [("w", "x")]], pyarrow.map_("string", "string"))
    assert rows(save({"text": ["one", "two"], "size": large})) == [1, "two"]


def test_bad_rows_are_left_out(save: Save) -> None:
    assert rows(save({"text": ["one", None, " ", "two"]})) == ["one", 2, 3, "two"]
    assert rows(save({"text": ["one"] * 3_000 + [None]}))[-1] == 3_001
    assert rows(save({"id": ["a", None], "text": ["one", "two"]})) == ["one", 2]
    assert rows(save({"text": invalid(b"one", b"\xff", b"two")})) == ["one", 2, "two"]
    assert rows(save({"text": [1, 2]})) == [1, 2]
    large = "x" * (MAX_ROW_BYTES + 1)
    assert rows(save({"text": ["one", "two", "three"], "page": ["", large, ""]})) == ["one", 2, "three"]
    path = save({"text": ["one"], "score": [1.0]})
    assert refusal(path).startswith(f'{path}, row 1: a hit has its own "score"')


def test_a_row_with_an_offset_outside_of_the_file_is_left_out(tmp_path: Path) -> None:
    texts = ["one", "two", "three"]
    path = arrow(tmp_path / "a.arrow", {"text": texts, "kind": pyarrow.array(texts).dictionary_encode()})
    data, places = path.read_bytes(), struct.pack("<3i", 0, 1, 2)
    assert data.count(places) == 1
    path.write_bytes(data.replace(places, struct.pack("<3i", 0, 10**6, 2)))
    assert rows(path) == ["one", 2, "three"]


def test_values_become_values_of_json(save: Save) -> None:
    path = save(
        {
            "id": [10, 11],
            "text": ["one", "two"],
            "at": [datetime.datetime(2024, 2, 29, 12, 30), None],
            "price": [decimal.Decimal("1.50"), None],
            "raw": [b"ab", None],
            "x": [float("nan"), 0.5],
            "tags": [[datetime.date(2024, 2, 29)], [None]],
            "size": [{"w": 1.5, "h": float("inf")}, None],
        }
    )
    first, second = Source(path)
    assert (first.id, first.text, second.id, second.text) == ("10", "one", "11", "two")
    assert first.fields == {
        **{"at": "2024-02-29 12:30:00", "price": "1.50", "raw": "b'ab'", "x": None, "tags": ["2024-02-29"]},
        "size": {"w": 1.5, "h": None},
    }
    assert second.fields == {**dict.fromkeys(first.fields), "x": 0.5, "tags": [None]}


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert '"text"' in refusal(tmp_path / "a.parquet")


def test_a_damaged_file_or_one_of_another_format_is_refused(save: Save) -> None:
    path = save({"text": [f"text {n}" for n in range(5_000)]})
    for content in (b"", b"text\none\n", b"PAR1" + b"\0" * 64 + b"PAR1", path.read_bytes()[:-1_000]):
        path.write_bytes(content)
        with pytest.raises(BadDocument, match=rf"{path}, row \d+: (not readable as|reading on takes)"):
            rows(path)


def test_without_pyarrow_the_extra_is_named(write: Write, tmp_path: Path) -> None:
    write("a.parquet", b"PAR1")
    write("pyarrow.py", "raise ImportError('not installed')")
    code = "from shoal.records.source import Source; list(Source('a.parquet'))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    child = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "MissingExtra: reading parquet needs pyarrow" in child.stderr
    assert "[parquet]'" in child.stderr


def test_the_fraction_of_read_rows_is_known(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["one"] * 3_000}), tmp_path / "a.parquet")
    source = Source(tmp_path / "a.parquet")
    assert {source.fraction for _ in source} == {0.0, 1_024 / 3_000, 2_048 / 3_000}


class TestMemory:
    @counts_memory
    def test_repeated_values_do_not_fill_it(self, save: Save) -> None:
        values = pyarrow.array(["x" * 500_000]).take(pyarrow.array([0] * 400))
        path = save({"text": ["one"] * 400, "page": values.dictionary_encode()})
        del values
        assert peak_mb(path) < 180

    @pytest.mark.wide
    def test_a_row_that_nearly_fills_it_gives_a_message(self, tmp_path: Path) -> None:
        """It runs in a separate process, because pyarrow loads some of its parts at their first use."""
        numbers = pyarrow.ListArray.from_arrays(pyarrow.array([0, 50_000_000], "int32"), pyarrow.repeat(0, 50_000_000))
        parquet.write_table(pyarrow.table({"text": ["one"], "page": numbers}), tmp_path / "a.parquet")
        code = "import sys; from shoal.records.source import Source as S; print(list(S(sys.argv[1]).rows()))"
        command = [sys.executable, "-c", code, str(tmp_path / "a.parquet")]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert "it has over 8,388,608 bytes" in ended.stdout or "BadDocument" in ended.stderr, ended.stderr[-500:]

    @pytest.mark.parametrize("last", [b"valid", b"\xff"])
    def test_a_small_file_with_a_terabyte_of_rows_is_refused(self, tmp_path: Path, last: bytes) -> None:
        numbers = pyarrow.repeat(pyarrow.scalar(0, "int32"), 10**6)
        texts = pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array(["x" * 10**6]))
        words = invalid(*[b""] * (10**6 - 1), last)
        path = arrow(tmp_path / "a.arrow", {"text": texts, "word": words}, compression="zstd")
        assert path.stat().st_size < 100_000
        with pytest.raises(BadDocument, match="times as many: if they are right, unpack the file"):
            sum(1 for _ in Source(path).rows())

    @pytest.mark.parametrize("kind", ["dictionary", "view", "nulls"])
    def test_a_row_that_is_small_only_in_the_file_is_too_long(self, tmp_path: Path, kind: str) -> None:
        large = pyarrow.array(["x" * 2**19])
        views = pyarrow.py_buffer(struct.pack("<i4sii", 2**19, b"xxxx", 0, 0) * 32)
        values = {
            "dictionary": lambda: pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 32, pyarrow.int8()), large),
            "view": lambda: pyarrow.Array.from_buffers(pyarrow.string_view(), 32, [None, views, large.buffers()[2]]),
            "nulls": lambda: pyarrow.nulls(2**21),
        }[kind]()
        places = pyarrow.array([0, 0, len(values), len(values)], pyarrow.int32())
        lists = pyarrow.ListArray.from_arrays(places, values)
        path = arrow(tmp_path / "a.arrow", {"text": ["one", "two", "three"], "values": lists})
        assert rows(path) == ["one", 2, "three"]

    @pytest.mark.parametrize("kind", ["run_end_encoded", "dense_union", "list_view"])
    def test_types_that_may_repeat_values_are_refused(self, tmp_path: Path, kind: str) -> None:
        numbers = pyarrow.array([1, 2], pyarrow.int32())
        values = {
            "run_end_encoded": lambda: pyarrow.RunEndEncodedArray.from_arrays(numbers, numbers),
            "dense_union": lambda: pyarrow.UnionArray.from_dense(numbers.cast("int8"), numbers, [numbers] * 3),
            "list_view": lambda: pyarrow.ListViewArray.from_arrays([0, 0], [2, 2], numbers),
        }[kind]()
        path = arrow(tmp_path / "a.arrow", {"text": ["one", "two"], "values": values})
        with pytest.raises(BadDocument, match=rf'row 1: the column "values" is of the type "{kind}<.*convert it'):
            rows(path)

    @counts_memory
    def test_a_record_batch_that_unpacks_to_gigabytes_is_refused(self, tmp_path: Path) -> None:
        path, noise = tmp_path / "a.arrow", random.Random(5).randbytes(2**17)
        arrow(path, {"text": ["one"], "page": pyarrow.array([noise])}, compression="zstd")
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
