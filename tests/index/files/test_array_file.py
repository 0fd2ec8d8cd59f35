"""Arrays in .npy files: read without a copy, and refused unless they are exactly what was written."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import MAX_HEADER_BYTES, open_array, save_array

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def npy(header: str, data: bytes = ARRAY.tobytes(), version: bytes = b"\1\0") -> bytes:
    """Return a file with this text as its header."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + data


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


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.npy", tmp_path):
        with pytest.raises(IndexCorrupt, match="build the index again"):
            open_array(path, np.float32, (3, 4))
