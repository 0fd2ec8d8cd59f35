"""The texts of files that a build has read: the next one reads only files that have changed."""

import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from test_builder import MadeVectors

from shoal.records.folder import SETTLES_S, FoundFile, ReadFiles, list_files
from shoal.records.source import NO_ROOTS, Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.files.manifest import READ_FILES
from shoal_workers.index.index import Index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two files."""
    (tmp_path / "docs").mkdir()
    for name, text in (("a.md", "# Storm"), ("b.txt", "rain")):
        (tmp_path / "docs" / name).write_text(text)
    return tmp_path / "docs"


def later() -> float:
    """Return a time at which files that were just written have settled."""
    return time.time() + 2 * SETTLES_S


def found(folder: Path) -> dict[str, FoundFile]:
    """Return the files of a folder by their paths."""
    return {file.path: file for file in list_files(folder, NO_ROOTS)}


def texts(folder: Path, read_files: ReadFiles) -> dict[str, str]:
    """Return the texts of the documents of a folder."""
    rows = list(Source(folder).rows(read_files=read_files))
    return {row.id: row.text for row in rows if not hasattr(row, "reason")}


def put_other_texts(folder: Path, store: Path) -> None:
    """Note other texts for the files as they are now: a file with that text was not read."""
    with ReadFiles(store, later) as read_files:
        for file in found(folder).values():
            read_files.keep(file, {"id": file.path, "text": f"noted of {file.path}"})


def change(path: Path) -> None:
    path.write_text("wind")


def change_without_its_time(path: Path) -> None:
    about = path.stat()
    path.write_text("x" * about.st_size)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def replace(path: Path) -> None:
    about = path.stat()
    (other := path.with_name("other")).write_text("y" * about.st_size)
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("alter", [change, change_without_its_time, replace])
def test_only_a_file_that_has_changed_is_read_again(
    alter: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    put_other_texts(folder, tmp_path / "store")
    alter(folder / "b.txt")
    with ReadFiles(tmp_path / "store", later) as read_files:
        assert texts(folder, read_files) == {"a.md": "noted of a.md", "b.txt": (folder / "b.txt").read_text()}


def test_a_file_that_was_just_written_is_read_again(folder: Path, tmp_path: Path) -> None:
    with ReadFiles(tmp_path / "store") as read_files:
        texts(folder, read_files)
        assert [read_files.find(file) for file in found(folder).values()] == [None, None]


def test_files_that_are_gone_are_forgotten(folder: Path, tmp_path: Path) -> None:
    gone = found(folder)["b.txt"]
    for _ in range(2):
        with ReadFiles(tmp_path / "store", later) as read_files:
            assert texts(folder, read_files)["a.md"] == "Storm"
            assert (read_files.find(gone) is not None) == (folder / "b.txt").exists()
        (folder / "b.txt").unlink(missing_ok=True)


@pytest.mark.parametrize("content", [b"no database", b"", b"SQLite format 3\0" + b"\xff" * 200])
def test_a_damaged_store_is_made_anew(content: bytes, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(content)
    for _ in range(2):
        with ReadFiles(tmp_path / "store", later) as read_files:
            assert texts(folder, read_files) == {"a.md": "Storm", "b.txt": "rain"}


@pytest.mark.parametrize(
    "damage",
    [
        *("record = x'00'", "record = NULL", "record = 'text'", "record = 5", "mark = zeroblob(16) || build || mark"),
        *("build = 'text'", f"build = {2**63 - 1}", f"record = x'{zlib.compress(b'5').hex()}'"),
        f"""record = x'{zlib.compress(b'{"id": "a.md", "text": null}').hex()}'""",
        f"""record = x'{zlib.compress(b'{"id": "z.md", "text": "of another file"}').hex()}'""",
    ],
)
def test_values_that_no_build_wrote_are_not_taken(damage: str, folder: Path, tmp_path: Path) -> None:
    put_other_texts(folder, tmp_path / "store")
    connection = sqlite3.connect(tmp_path / "store")
    connection.execute(f"UPDATE texts SET {damage}")
    connection.commit()
    connection.close()
    with ReadFiles(tmp_path / "store", later) as read_files:
        assert texts(folder, read_files) == {"a.md": "Storm", "b.txt": "rain"}


def test_a_store_that_cannot_be_written_is_none(folder: Path, tmp_path: Path) -> None:
    with ReadFiles(tmp_path / "nowhere" / "store", later) as read_files:
        assert texts(folder, read_files) == {"a.md": "Storm", "b.txt": "rain"}


def test_a_build_takes_texts_from_the_one_before_unless_all_is_to_be_read(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"

    def built(reuses: bool) -> list[str]:
        build(Source(folder), out, MadeVectors(), reuses=reuses)
        index = Index.open(out)
        return [index.document(row)["text"] for row in range(index.manifest.count)]

    assert built(reuses=True) == ["Storm", "rain"]
    put_other_texts(folder, out / READ_FILES)
    (folder / "b.txt").write_text("wind")
    assert built(reuses=True) == ["noted of a.md", "wind"]
    assert built(reuses=False) == ["Storm", "wind"]
