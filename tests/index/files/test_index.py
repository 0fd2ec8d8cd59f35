"""An index as a worker opens and searches it: exact, checked, and refused if a file is not as it was built."""

import io
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import IndexCorrupt, IndexNotFound
from shoal.index_folder import CURRENT
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.array_file import MAX_HEADER_BYTES, open_array, save_array
from shoal_workers.index.files.manifest import CHANGES, FILES, MANIFEST
from shoal_workers.index.index import Index, check_model, current_version

#: The files of an index without changes, except the file of changes, which is empty.
NOT_EMPTY = [name for name in FILES if name != CHANGES]

Damage = Callable[[bytes], bytes]


@pytest.fixture
def copy(index_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(index_folder, tmp_path / "index"))


def test_an_opened_index_has_what_its_build_wrote(index: Index, encoder: Encoder) -> None:
    manifest = index.manifest
    assert (manifest.count, manifest.dimension, manifest.pooling) == (64, 32, "mean")
    assert (manifest.model, manifest.digest) == (encoder.model.name, encoder.model.digest)
    assert set(manifest.checksums) == set(FILES)
    assert manifest.quantised_width == 64
    assert manifest.source == "pairs.csv"
    check_model(index.folder, manifest, encoder.model)
    assert index.documents.document(63) == {"id": "63", "text": "rises rises"}
    assert np.linalg.norm(index.vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert not index.vectors.flags.writeable
    assert index.search(np.empty((0, 32), np.float32), 5) == []


@pytest.mark.parametrize("how", [lambda data: data[:-2], lambda data: data[:-9] + b"?" * 9], ids=["short", "changed"])
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
    wrong: list[tuple[dict[str, object], str]] = [
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
    for content in (b"", b"nowhere\n", b"\xff\xfe"):
        (copy / CURRENT).write_bytes(content)
        with pytest.raises(IndexCorrupt):
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
