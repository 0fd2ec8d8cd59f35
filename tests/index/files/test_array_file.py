"""Arrays in .npy files: read without a copy, and refused unless they are exactly what was written."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import MAX_HEADER_BYTES, open_array, save_array, write_header

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def npy(header: str, data: bytes = ARRAY.tobytes(), version: bytes = b"\1\0") -> bytes:
    """Make a file with this text as its header."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + data


def header(descr: str = "'<f4'", fortran_order: str = "False", shape: str = "(3, 4)") -> str:
    """Make the header's text of these values."""
    return f"{{'descr': {descr}, 'fortran_order': {fortran_order}, 'shape': {shape}, }}\n"


def whole(save_as: np.ndarray) -> bytes:
    """Return what numpy itself writes for an array."""
    file = io.BytesIO()
    np.save(file, save_as)
    return file.getvalue()


def test_it_writes_what_numpy_writes(tmp_path: Path) -> None:
    save_array(tmp_path / "a.npy", ARRAY)
    assert (tmp_path / "a.npy").read_bytes() == whole(ARRAY)
    with (tmp_path / "b.npy").open("wb") as file:
        write_header(file, np.float32, (3, 4))
        for row in ARRAY:
            file.write(row.tobytes())
    assert (tmp_path / "b.npy").read_bytes() == whole(ARRAY)


def test_it_maps_the_file_read_only(tmp_path: Path) -> None:
    save_array(tmp_path / "a.npy", ARRAY)
    array = open_array(tmp_path / "a.npy", np.float32, (3, 4))
    assert (array == ARRAY).all()
    assert isinstance(array.base, np.memmap)
    assert array.ctypes.data % 64 == 0
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "magic string", id="empty"),
        pytest.param(whole(ARRAY)[:9], "header", id="cut in the header's length"),
        pytest.param(whole(ARRAY)[:60], "header", id="cut in the header"),
        pytest.param(whole(ARRAY)[:-1], "file size", id="one byte short"),
        pytest.param(whole(ARRAY) + b"\0", "1 bytes after", id="one byte too long"),
        pytest.param(whole(ARRAY.T.copy()), r"\[4, 3\]", id="another shape"),
        pytest.param(whole(ARRAY.reshape(-1)), r"\[12\]", id="another number of dimensions"),
        pytest.param(whole(ARRAY.astype(np.float64)), "float64", id="another type"),
        pytest.param(whole(ARRAY.astype(">f4")), ">f4", id="another byte order"),
        pytest.param(whole(np.asfortranarray(ARRAY)), "in Fortran order", id="Fortran order"),
        pytest.param(whole(ARRAY.astype(object)), "object", id="pickled objects"),
        pytest.param(npy(header("'|O'"), b"cos\nsystem\n(S'false'\ntR."), "object", id="a pickle"),
        pytest.param(npy(header(shape="(-3, -4)")), r"\[-3, -4\]", id="negative shape"),
        pytest.param(npy(header(shape=f"({2**63}, 4)")), str(2**63), id="huge shape"),
        pytest.param(npy(header("[('a', '<f4'), ('b', 'O')]")), "holds", id="a structure"),
        pytest.param(npy(header() + " " * MAX_HEADER_BYTES), "large", id="huge header"),
        pytest.param(npy("{'descr': '<f4'}"), "keys", id="missing keys"),
        pytest.param(npy("[" * 900), "parse|EOF|nested", id="deep nesting"),
        pytest.param(npy("-" * 900 + "1"), "", id="many signs"),
        pytest.param(npy("__import__('os').abort()"), "malformed node", id="a call"),
        pytest.param(npy(header(), version=b"\2\0"), "version", id="version 2"),
    ],
)
def test_any_other_file_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(data)
    with pytest.raises(IndexCorrupt, match=rf"a\.npy cannot be read \((?s:.*)({reason})(?s:.*): build") as caught:
        open_array(path, np.float32, (3, 4))
    assert len(caught.value.message) < 400 + len(str(path))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.npy", tmp_path):
        with pytest.raises(IndexCorrupt, match="build the index again"):
            open_array(path, np.float32, (3, 4))
