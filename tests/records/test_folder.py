"""Folders and files that are documents, as sources."""

import os
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from pdf_files import pdf
from test_builder import MadeVectors

from shoal.errors import BadDocument, InvalidRequest, MissingExtra, PathNotAllowed
from shoal.long_task import TaskProgress
from shoal.records.document import BadRow, Document
from shoal.records.folder import list_files
from shoal.records.source import Source
from shoal.records.source_file import SourceRules
from shoal.settings import Settings
from shoal_workers.index.build.builder import build
from shoal_workers.index.index import Index

TIME = "2026-11-22T03:00:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a Markdown file and a text in a folder of it, and files that are no documents."""
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
    """Write files with a fixed time into a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1_795_316_400, 1_795_316_400))
    return folder


def bad(source: Source) -> list[str]:
    """Return what is wrong with rows of a source."""
    return [row.reason for row in source.rows() if isinstance(row, BadRow)]


def test_each_file_is_a_document_with_its_path_as_id(folder: Path) -> None:
    assert list(Source(folder)) == [
        Document("a/note.txt", "Zürich\n\nis wet.", {"modified": TIME}),
        Document("b.md", "Storms\nRain.", {"title": "Storms", "modified": TIME}),
    ]


@pytest.mark.skipif(not find_spec("selectolax") or not find_spec("pypdf"), reason="the extra documents is not there")
def test_web_pages_and_pdf_files_are_documents(tmp_path: Path) -> None:
    files = {"a.html": b"<title>News</title><p>Storm", "b.HTM": b"<p>Rain", "c.pdf": pdf(["Wet."], "A book")}
    folder = filled(tmp_path / "docs", files)
    assert [(row.id, row.text, row.fields.get("title")) for row in Source(folder)] == [
        *(("a.html", "Storm", "News"), ("b.HTM", "Rain", None), ("c.pdf", "Wet.", "A book"))
    ]
    assert [row.text for row in Source(folder / "c.pdf")] == ["Wet."]


def test_a_file_alone_is_a_source_of_one_document(folder: Path) -> None:
    source = Source(folder / "b.md")
    assert list(source) == [Document("b.md", "Storms\nRain.", {"title": "Storms", "modified": TIME})]
    assert source.where(next(iter(source))) == str(folder / "b.md")


def test_a_bad_file_is_named_and_the_others_are_read(folder: Path, tmp_path: Path) -> None:
    filled(folder, {"c.md": b"\xff", "d.md": b" ", "e.md": b"text"})
    os.symlink(folder / "gone.md", folder / "f.md")
    os.symlink(tmp_path, folder / "loop")
    os.mkfifo(folder / "pipe.md")
    (folder / "folder.md").mkdir()
    assert "a/note.txt: the text has 15 characters and may have 12" in bad(Source(folder, max_text_chars=12))[0]
    assert bad(Source(folder)) == [
        f"{folder}/c.md: byte 0xff at 0 is not utf-8, and it declares no other encoding: correct it, or convert it "
        "with iconv -f ENCODING -t UTF-8",
        f"{folder}/d.md: there is no text in it: leave it out",
    ]
    assert [row.id for row in Source(folder).rows() if isinstance(row, Document)] == ["a/note.txt", "b.md", "e.md"]
    with pytest.raises(BadDocument, match=r"docs/c.md: byte 0xff"):
        list(Source(folder))


def test_a_name_that_is_not_utf_8_is_a_bad_row(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.md")).write_text("text")
    found = bad(Source(folder))
    assert len(found) == 1
    assert found[0].isascii()
    assert "its name is not UTF-8: rename it" in found[0]


def test_links_out_of_the_roots_are_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    os.symlink(tmp_path / "secret.md", folder / "link.md")
    rules = SourceRules(root_folders=[folder])
    assert len(bad(Source(folder, rules=rules))) == 1
    with pytest.raises(BadDocument, match="is a link to a file that is below none of the folders"):
        list(Source(folder, rules=rules))
    with pytest.raises(PathNotAllowed):
        list(Source(folder / "link.md", rules=rules))


def test_the_uploads_of_clients_are_no_part_of_a_folder(tmp_path: Path) -> None:
    """Their names, which only the client knows that sent them, protect them."""
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
    for change in (
        lambda: None,
        lambda: (folder / "b.md").write_text("# Storms\nWind."),
        lambda: (folder / "c.md").write_text("new"),
        lambda: (folder / "c.md").unlink(),
        lambda: (folder / "b.md").rename(folder / "d.md"),
    ):
        change()
        found.append(tuple(source.fingerprint().values()))
    assert all(one != other for one, other in pairwise(found))
    assert tuple(source.fingerprint().values()) == found[-1]


def test_a_folder_without_documents_and_one_of_too_many_are_refused(tmp_path: Path) -> None:
    assert list(Source(tmp_path)) == []
    with pytest.raises(BadDocument, match="there are no documents in it"):
        build(Source(tmp_path), tmp_path / "index", MadeVectors())
    filled(tmp_path, {"a.md": b"a", "b.md": b"b"})
    with pytest.raises(InvalidRequest, match="has over 1 files"):
        list_files(tmp_path, SourceRules(), 1)


@pytest.mark.parametrize(("ending", "package"), [("html", "selectolax"), ("pdf", "pypdf")])
def test_a_missing_package_is_named(tmp_path: Path, ending: str, package: str) -> None:
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(MissingExtra, match=f"reading {ending} needs {package}"):
        list(Source(filled(tmp_path, {f"a.{ending}": b"a"})))


def test_a_build_reads_a_folder_and_tells_how_far_it_is(folder: Path, tmp_path: Path) -> None:
    filled(folder, {"c.md": b"\xff"})
    reports: list[TaskProgress] = []
    result = build(Source(folder), tmp_path / "index", MadeVectors(), reports.append, skips_bad=True)
    assert (result.count, result.num_bad) == (2, 1)
    reading = [(report.rows, report.fraction) for report in reports if report.step == "reading"]
    assert [report for report in reading if report in ((1, 1 / 3), (2, 2 / 3), (3, 1.0))] == [
        *((1, 1 / 3), (2, 2 / 3), (3, 1.0))
    ]
    assert Index.open(tmp_path / "index").document(1)["id"] == "b.md"
