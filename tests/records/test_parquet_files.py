"""Sources in .parquet files."""

import datetime
import decimal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_text_files import Write, counts_memory, peak_mb, refusal, rows, write

from shoal.errors import BadDocument, MissingExtra
from shoal.records.document import MAX_ROW_BYTES, Document
from shoal.records.source import Source

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

__all__ = ["write"]

Save = Callable[[dict[str, Any]], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that writes a file."""

    def write_table(columns: dict[str, Any]) -> Path:
        parquet.write_table(pyarrow.table(columns), path := tmp_path / "a.parquet")
        return path

    return write_table


def test_rows_are_documents(save: Save, tmp_path: Path) -> None:
    numbers = range(5_000)
    path = save({"id": [*numbers], "text": [f"text {n % 7}" for n in numbers], "tags": [["a", None]] * 5_000})
    source = Source(path)
    found, fractions = zip(*((document, source.fraction) for document in source), strict=True)
    assert (len(found), found[4_999]) == (5_000, Document("4999", "text 1", {"tags": ["a", None]}))
    assert {*fractions} == {n * 1_024 / 5_000 for n in range(5)}
    assert source.fraction == 1.0
    assert rows(save({"text": pyarrow.array([], pyarrow.string())})) == []
    for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):  # files of DuckDB and Spark have them
        parquet.write_table(pyarrow.table({"text": ["a", "b"]}), path, use_dictionary=False, column_encoding=encoding)
        assert rows(path) == ["a", "b"]
    parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    assert '"text"' in refusal(path)
    sizes = pyarrow.array([[("w", 1), ("h", 2)], [("w", 3)], None], pyarrow.map_(pyarrow.string(), pyarrow.int32()))
    path = save({"text": ["one", "two", "three"], "size": sizes})
    assert [row.fields["size"] for row in Source(path)] == [[["w", 1], ["h", 2]], [["w", 3]], None]
    large = pyarrow.array([[("w", "x" * (MAX_ROW_BYTES + 1))], [("w", "x")]], pyarrow.map_("string", "string"))
    assert rows(save({"text": ["one", "two"], "size": large})) == [1, "two"]


def test_bad_rows_are_left_out(save: Save) -> None:
    def invalid(*values: bytes) -> Any:
        """Return an array of strings that may have any bytes."""
        return pyarrow.Array.from_buffers(pyarrow.string(), len(values), pyarrow.array(values).buffers())

    large = "x" * (MAX_ROW_BYTES + 1)
    for columns, found in (
        ({"text": ["one", None, " ", "two"]}, ["one", 2, 3, "two"]),
        ({"text": ["one"] * 3_000 + [None]}, ["one"] * 3_000 + [3_001]),
        ({"id": ["a", None], "text": ["one", "two"]}, ["one", 2]),
        ({"text": invalid(b"one", b"\xff", b"two")}, ["one", 2, "two"]),
        ({"text": [1, 2]}, [1, 2]),
        ({"text": ["one", "two", "three"], "page": ["", large, ""]}, ["one", 2, "three"]),
    ):
        assert rows(save(columns)) == found
    path = save({"text": invalid(*[b"one"] * 3_000, b"\xff")})
    assert refusal(path).startswith(f"{path}, row 3001: a value cannot be read")
    path = save({"text": ["one"], "score": [1.0]})
    assert refusal(path).startswith(f'{path}, row 1: a hit has its own "score"')


def test_values_become_values_of_json(save: Save) -> None:
    path = save(
        {
            "id": [10, 11],
            "text": ["one", "two"],
            "at": [datetime.datetime(2024, 2, 29, 12, 30), None],
            "clock": pyarrow.array([1_700_000_000_123_456_789, None], pyarrow.timestamp("ns", "UTC")),
            "price": [decimal.Decimal("1.50"), None],
            "raw": [b"ab \xff", None],
            "x": [float("nan"), 0.5],
            "tags": [[datetime.date(2024, 2, 29)], [None]],
            "size": [{"w": 1.5, "h": float("inf")}, None],
        }
    )
    first, second = Source(path)
    assert (first.id, first.text, second.id, second.text) == ("10", "one", "11", "two")
    assert first.fields == {
        **{"at": "2024-02-29 12:30:00", "clock": "2023-11-14 22:13:20.123456+00:00", "price": "1.50"},
        **{"raw": "ab \\xff", "x": None, "tags": ["2024-02-29"]},
        "size": {"w": 1.5, "h": None},
    }
    assert second.fields == {**dict.fromkeys(first.fields), "x": 0.5, "tags": [None]}
    last = pyarrow.table({"text": ["one"], "until": [datetime.datetime(9999, 12, 31)]})
    parquet.write_table(last, path, use_deprecated_int96_timestamps=True)  # Spark writes such times
    assert [row.fields for row in Source(path)] == [{"until": "9999-12-31 00:00:00"}]
    table = {"text": ["one"], "at": [datetime.datetime(1969, 12, 31, 23, 59, 59)]}
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(pyarrow.table(table), path, use_deprecated_int96_timestamps=True, **plain)
    writer = f"parquet-cpp-arrow version {pyarrow.__version__[:2]}".encode()
    # The nanoseconds of a day, and the day. Before version 23 of pyarrow, the nanoseconds could be below 0.
    now, old = struct.pack("<qi", 86_399 * 10**9, 2_440_587), struct.pack("<qi", -(10**9), 2_440_588)
    data = path.read_bytes()
    path.write_bytes(data.replace(now, old).replace(writer, writer[:-2] + b"22"))
    assert path.read_bytes().find(old) > 0
    assert [row.fields for row in Source(path)] == [{"at": "1969-12-31 23:59:59"}]


def test_a_damaged_file_or_one_of_another_format_is_refused(save: Save) -> None:
    path = save({"text": [f"text {n}" for n in range(5_000)]})
    for content in (b"", b"text\none\n", b"PAR1" + b"\0" * 64 + b"PAR1", path.read_bytes()[:-1_000]):
        path.write_bytes(content)
        with pytest.raises(BadDocument, match=rf"{path}, row \d+: (not readable as|reading on takes)"):
            rows(path)


def test_without_pyarrow_the_extra_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"reading parquet needs pyarrow; run: .*\[parquet\]'"):
        list(Source(write("a.parquet", b"PAR1")))


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

    def test_a_small_file_with_a_terabyte_of_rows_is_refused(self, save: Save) -> None:
        texts = pyarrow.DictionaryArray.from_arrays(pyarrow.repeat(pyarrow.scalar(0, "int32"), 10**6), ["x" * 10**6])
        path = save({"text": texts})
        assert path.stat().st_size < 100_000
        with pytest.raises(BadDocument, match="times as many: if they are right, unpack the file"):
            sum(1 for _ in Source(path).rows())
