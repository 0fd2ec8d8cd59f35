"""Sources that are folders or single documents."""

import io
import os
from itertools import pairwise
from pathlib import Path

import pytest
from pdf_files import pdf
from test_builder import MadeVectors

from shoal.errors import BadDocument, InvalidRequest, PathNotAllowed
from shoal.extraction.reader_client import ReaderClient
from shoal.records.document import BadRow, Document
from shoal.records.document_files import list_files, read_document
from shoal.records.source import Source
from shoal.records.source_file import SourceFile, SourceRules
from shoal.settings import Settings
from shoal.task_progress import TaskProgress
from shoal_workers.index.build.builder import build
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
        Document("b.md", "# Storms\nRain.", {"title": "Storms", "modified": TIME}),
        Document("c.HTM", "Storm", {"title": "News", "modified": TIME}),
        Document("d.pdf", "Wet.", {"title": "A book", "modified": TIME}),
    ]
    source = Source(folder / "b.md")
    assert list(source) == [Document("b.md", "# Storms\nRain.", {"title": "Storms", "modified": TIME})]
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
