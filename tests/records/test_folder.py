"""Sources that are folders or single documents, and the texts of files that builds keep."""

import io
import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from pdf_files import pdf
from test_builder import MadeVectors

from shoal.errors import BadDocument, InvalidRequest, PathNotAllowed
from shoal.extraction.reader_client import ReaderClient
from shoal.records import document_files
from shoal.records.document import BadRow, Document
from shoal.records.document_files import SETTLES_S, ReadFiles, list_files, read_document
from shoal.records.source import NO_ROOTS, Source
from shoal.records.source_file import SourceFile, SourceRules
from shoal.settings import Settings
from shoal.task_progress import TaskProgress
from shoal_workers.index.build.builder import build
from shoal_workers.index.files.manifest import READ_FILES
from shoal_workers.index.index import Index

TIME = "2026-11-22T03:00:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a Markdown file, a text in a subfolder, and files that are no documents."""
    return filled(
        tmp_path / "docs",
        {
            "b.md": b"# Storms\nRain.",
            "a/note.txt": "Zürich\n\nis wet.".encode(),
            "picture.png": b"\x89PNG",
            ".hidden.md": b"no",
            ".git/a.md": b"no",
        },
    )


def filled(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files with a fixed time of change into a folder, and return the folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1_795_316_400, 1_795_316_400))
    return folder


def bad(source: Source) -> list[str]:
    """Return the reasons of the bad rows of a source."""
    return [row.reason for row in source.rows() if isinstance(row, BadRow)]


def test_a_file_may_be_of_any_time() -> None:
    for year, time_s in (("9999", 10**12), ("1900", -(10**12))):  # some file systems keep such times
        file = SourceFile(io.BufferedReader(io.BytesIO(b"storm")), 5, time_s * 10**9)
        with ReaderClient() as reader:
            record = read_document(file, "a.txt", "a.txt", "text", reader, lambda: None)
        assert isinstance(record, dict)
        assert record["modified"][:4] == year


def test_each_file_is_a_document_with_its_path_as_id(folder: Path) -> None:
    pytest.importorskip("selectolax")
    pytest.importorskip("pypdf")
    filled(folder, {"c.HTM": b"<title>News</title><p>Storm", "d.pdf": pdf(["Wet."], "A book")})
    assert list(Source(folder)) == [
        Document("a/note.txt", "Zürich\n\nis wet.", {"modified": TIME}),
        Document("b.md", "Storms\nRain.", {"title": "Storms", "modified": TIME}),
        Document("c.HTM", "Storm", {"title": "News", "modified": TIME}),
        Document("d.pdf", "Wet.", {"title": "A book", "modified": TIME}),
    ]
    source = Source(folder / "b.md")
    assert list(source) == [Document("b.md", "Storms\nRain.", {"title": "Storms", "modified": TIME})]
    assert source.where(1, "b.md") == str(folder / "b.md")


def test_a_bad_file_is_named_and_the_others_are_read(folder: Path, tmp_path: Path) -> None:
    filled(folder, {"c.md": b"\xff", "d.md": b" ", "e.md": b"text"})
    (folder / os.fsdecode(b"\xff.md")).write_text("text")
    os.symlink(folder / "gone.md", folder / "f.md")
    os.symlink(tmp_path, folder / "loop")
    os.mkfifo(folder / "pipe.md")
    (folder / "folder.md").mkdir()
    assert "a/note.txt: the text has 15 characters and may have 12" in bad(Source(folder, max_text_chars=12))[0]
    assert bad(Source(folder)) == [
        f"{folder}/c.md: byte 0xff at 0 is not utf-8, and it declares no other encoding: correct it, or convert it "
        "with iconv -f ENCODING -t UTF-8",
        f"{folder}/d.md: there is no text in it: leave it out",
        f"'{folder}/\\udcff.md': its name is not UTF-8: rename it",
    ]
    assert [row.id for row in Source(folder).rows() if isinstance(row, Document)] == ["a/note.txt", "b.md", "e.md"]
    with pytest.raises(BadDocument, match=r"docs/c.md: byte 0xff"):
        list(Source(folder))
    with pytest.raises(InvalidRequest, match="is not UTF-8: rename it"):
        Source(folder / os.fsdecode(b"\xff.md"))


def test_links_out_of_the_roots_are_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    os.symlink(tmp_path / "secret.md", folder / "link.md")
    rules = SourceRules(root_folders=[folder])
    assert len(bad(Source(folder, rules=rules))) == 1
    with pytest.raises(BadDocument, match="is a link to a file that is below none of the folders"):
        list(Source(folder, rules=rules))


def test_a_folder_as_a_source_has_no_uploads_of_clients(tmp_path: Path) -> None:
    """An upload is protected by its name, which only its client knows."""
    settings = Settings(home=str(tmp_path))
    files = {"a.txt": b"rain", "docs/jobs/b.txt": b"storm", "jobs/1/2f6d-05/secret.txt": b"secret"}
    folder, rules = filled(settings.files_folder, files), SourceRules.from_settings(settings)
    assert [row.id for row in Source(folder, rules=rules)] == ["a.txt", "docs/jobs/b.txt"]
    for closed in ("jobs", "jobs/1", "jobs/1/2f6d-05", "docs/../jobs"):
        with pytest.raises(PathNotAllowed, match="is a folder of files that clients have sent: name one file"):
            list(Source(folder / closed, rules=rules))
        with pytest.raises(PathNotAllowed):
            Source(folder / closed, rules=rules).fingerprint()
    assert [row.text for row in Source(folder / "jobs/1/2f6d-05/secret.txt", rules=rules)] == ["secret"]


def test_a_change_of_any_file_changes_the_fingerprint(folder: Path) -> None:
    source, found = Source(folder), []
    for alter in (
        lambda: None,
        lambda: (folder / "b.md").write_text("# Storms\nWind."),
        lambda: (folder / "c.md").write_text("new"),
        lambda: (folder / "c.md").unlink(),
        lambda: (folder / "b.md").rename(folder / "d.md"),
    ):
        alter()
        found.append(source.fingerprint())
        assert source.fingerprint() == found[-1]
    assert all(one != other for one, other in pairwise(found))


def test_a_folder_with_no_documents_or_too_many_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, {"train-00000-of-00001.parquet": b"", "2": b"From: a"})
    with pytest.raises(BadDocument, match=r"there are no documents in it \(\.html, .*\.txt\); name a file of records"):
        list(Source(tmp_path))
    filled(tmp_path, {"a.md": b"a", "b.md": b"b"})
    with pytest.raises(InvalidRequest, match="has over 1 files"):
        list_files(tmp_path, SourceRules(), 1)


def test_a_build_reads_a_folder_and_reports_its_progress(folder: Path, tmp_path: Path) -> None:
    filled(folder, {"c.md": b"\xff"})
    reports: list[TaskProgress] = []
    result = build(Source(folder), tmp_path / "index", MadeVectors(), reports.append, skips_bad=True)
    assert (result.count, result.num_bad) == (2, 1)
    reading = {(report.rows, report.fraction) for report in reports if report.step == "reading"}
    assert reading >= {(1, 1 / 3), (2, 2 / 3), (3, 1.0)}
    assert Index.open(tmp_path / "index").documents.document(1)["id"] == "b.md"


class TestReadFiles:
    """The texts of files that a build has read. The next build reads only files that have changed."""

    @pytest.fixture
    def docs(self, tmp_path: Path) -> Path:
        """A folder with two files that were just written."""
        (folder := tmp_path / "two").mkdir()
        (folder / "a.md").write_text("# Storm")
        (folder / "b.txt").write_text("rain")
        return folder

    @pytest.fixture
    def store(self, tmp_path: Path, docs: Path) -> Path:
        """A store with a false text for each file. A document that has the false text was not read again."""
        with ReadFiles(tmp_path / "store", later) as read_files:
            for file in list_files(docs, NO_ROOTS):
                read_files.keep(file, {"id": file.path, "text": f"noted of {file.path}"})
        return tmp_path / "store"

    @pytest.mark.parametrize("how", ["text", "text and not its time", "file"])
    def test_only_a_file_that_has_changed_is_read_again(self, how: str, docs: Path, store: Path) -> None:
        path, about = docs / "b.txt", (docs / "b.txt").stat()
        written = path if how != "file" else path.with_name("other")
        written.write_text("x" * about.st_size)
        if how != "text":
            os.utime(written, ns=(about.st_atime_ns, about.st_mtime_ns))
        written.replace(path)
        assert texts(docs, store) == {"a.md": "noted of a.md", "b.txt": "xxxx"}

    def test_only_settled_files_that_are_still_there_are_kept(
        self, docs: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept, gone = list_files(docs, NO_ROOTS)
        texts(docs, tmp_path / "young", time.time)
        with ReadFiles(tmp_path / "young") as read_files:
            assert [read_files.find(file) for file in (kept, gone)] == [None, None]
        (docs / "b.txt").unlink()
        assert texts(docs, store) == {"a.md": "noted of a.md"}
        with ReadFiles(store, later) as read_files:
            assert read_files.find(gone) is None
            assert read_files.find(kept)
            monkeypatch.setattr(document_files, "__version__", "0")  # another release may read it otherwise
            assert read_files.find(kept) is None

    def test_a_store_that_is_damaged_or_cannot_be_written_is_not_used(self, docs: Path, tmp_path: Path) -> None:
        for content in (b"no database", b"", b"SQLite format 3\0" + b"\xff" * 200, None):
            path = tmp_path / "store" if content is not None else tmp_path / "nowhere" / "store"
            if content is not None:
                path.write_bytes(content)
            for _ in range(2):
                assert texts(docs, path) == {"a.md": "Storm", "b.txt": "rain"}

    @pytest.mark.parametrize(
        "damage",
        [
            *("record = x'00'", "record = NULL", "record = 5", "mark = zeroblob(16) || build || mark"),
            *("build = 'text'", f"build = {2**63 - 1}", f"record = x'{zlib.compress(b'5').hex()}'"),
            f"""record = x'{zlib.compress(b'{"id": "a.md", "text": null}').hex()}'""",
            f"""record = x'{zlib.compress(b'{"id": "z.md", "text": "of another file"}').hex()}'""",
        ],
    )
    def test_values_that_no_build_wrote_are_ignored(self, damage: str, docs: Path, store: Path) -> None:
        with closing(sqlite3.connect(store)) as connection, connection:
            connection.execute(f"UPDATE texts SET {damage}")
        assert texts(docs, store) == {"a.md": "Storm", "b.txt": "rain"}

    def test_a_build_reuses_the_texts_of_the_last_one_if_it_may(self, docs: Path, store: Path, tmp_path: Path) -> None:
        def built(reuses: bool) -> list[str]:
            build(Source(docs), tmp_path / "index", MadeVectors(), reuses=reuses)
            index = Index.open(tmp_path / "index")
            return [index.documents.document(row)["text"] for row in range(index.manifest.count)]

        assert built(reuses=True) == ["Storm", "rain"]
        store.replace(tmp_path / "index" / READ_FILES)
        (docs / "b.txt").write_text("wind")
        assert built(reuses=True) == ["noted of a.md", "wind"]
        assert built(reuses=False) == ["Storm", "wind"]


def later() -> float:
    """Return a time at which a change of a new file shows in its times."""
    return time.time() + 2 * SETTLES_S


def texts(folder: Path, store: Path, now_s: Callable[[], float] = later) -> dict[str, str]:
    """Return the texts of the documents in a folder by their ids. `store` may have some of them."""
    with ReadFiles(store, now_s) as read_files:
        return {row.id: row.text for row in Source(folder).rows(read_files=read_files) if isinstance(row, Document)}
