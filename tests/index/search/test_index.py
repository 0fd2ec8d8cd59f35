"""An index as a worker opens and searches it: exact, checked, and refused if a file is not as it was built."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound
from shoal.index_folder import CURRENT
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.manifest import CHANGES, FILES, MANIFEST
from shoal_workers.index.index import Index, check_model, current_version

#: The files of an index without changes, except the file of changes, which is empty.
NOT_EMPTY = [name for name in FILES if name != CHANGES]

Damage = Callable[[bytes], bytes]


@pytest.fixture
def copy(index_folder: Path, tmp_path: Path) -> Path:
    """A copy of the index that a test may damage."""
    return Path(shutil.copytree(index_folder, tmp_path / "index"))


def damage(folder: Path, name: str, how: Damage) -> None:
    """Change a file of the current version."""
    path = current_version(folder) / name
    path.write_bytes(how(path.read_bytes()))


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


@pytest.mark.parametrize(("layout", "named"), [(None, "null"), (4, "4"), (99, "99"), ("x" * 999, '"xxx')])
def test_an_index_of_another_layout_is_to_be_built_again(copy: Path, layout: object, named: str) -> None:
    def change(data: bytes) -> bytes:
        manifest = json.loads(data) | {"layout": layout}
        return json.dumps({name: value for name, value in manifest.items() if value is not None}).encode()

    damage(copy, MANIFEST, change)
    with pytest.raises(IndexCorrupt, match=f"the index has layout {named}.*, this version of Shoal reads .*build"):
        Index.open(copy)


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


@pytest.mark.parametrize(
    "changed",
    [
        {"count": 65},
        {"count": 2**63},
        {"num_bad": -1},
        {"built_at": "\ud800"},
        {"dimension": 32.0},
        {"checksums": []},
        {"digest": 5},
        {"quantised_width": 128},
        {"quantised_width": 0},
        {"layout": 5.0},
        {"new": 1},
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(copy: Path, changed: dict[str, object]) -> None:
    damage(copy, MANIFEST, lambda data: json.dumps(json.loads(data) | changed).encode())
    said = 'another version of Shoal built it, with "new"' if "new" in changed else "build the index again"
    with pytest.raises(IndexCorrupt, match=said):
        Index.open(copy)


@settings(max_examples=40)
@given(position=st.floats(0, 0.999), bit=st.integers(0, 7), name=st.sampled_from([*NOT_EMPTY, MANIFEST]))
def test_a_flipped_bit_never_passes_for_another_index(
    index_folder: Path, index: Index, encoder: Encoder, tmp_path: Path, position: float, bit: int, name: str
) -> None:
    folder = tmp_path / "flipped"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(index_folder, folder)

    def flip(data: bytes) -> bytes:
        at = int(position * len(data))
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    damage(folder, name, flip)
    try:
        opened = Index.open(folder)
        check_model(folder, opened.manifest, encoder.model)
    except (IndexCorrupt, IndexMismatch):
        return
    assert name == MANIFEST  # in a value that only people read
    assert (opened.vectors == index.vectors).all()


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(IndexNotFound, match="shoal index build"):
            Index.open(folder)


@pytest.mark.parametrize("content", [b"", b"nowhere\n", b"\xff\xfe"])
def test_a_pointer_to_nothing_is_corrupt(copy: Path, content: bytes) -> None:
    (copy / CURRENT).write_bytes(content)
    with pytest.raises(IndexCorrupt):
        Index.open(copy)
