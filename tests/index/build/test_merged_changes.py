"""Builds fold in the changes of an index: documents that were added to it or deleted while it was served."""

import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog, as_written
from queues import Queue
from test_builder import MadeVectors, source_of

from shoal.broker.broker import Broker
from shoal.changes.change import Change
from shoal.changes.change_log import START
from shoal.contract.keys import Keys
from shoal.errors import BadDocument, InvalidRequest
from shoal.index_folder import CURRENT
from shoal.process.durable_file import replace_file
from shoal.records.document import Document
from shoal.records.source import Source
from shoal.task_progress import Report, TaskProgress
from shoal_workers.index.build.builder import BuildResult, build
from shoal_workers.index.build.merged_changes import IndexChanges
from shoal_workers.index.files.documents import read_lines
from shoal_workers.index.files.manifest import BAD_ROWS, CHANGES, DOCUMENTS, FILES, MANIFEST, Manifest
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import HISTORY, list_versions, publish, rollback

INDEX = "news"


class News:
    """An index of ten documents in `out`, and its changes in the tests' Redis."""

    def __init__(self, folder: Path, log: ChangeLog):
        self.changes = IndexChanges(log, INDEX)
        self.out = folder / "index"
        self.source = source_of(folder, ({"id": f"d{n}", "text": f"text {n}", "n": n} for n in range(10)))

    def build(self, report: Report = print, encoder: Any = None, **options: Any) -> BuildResult:
        """Build a version, with the changes unless the options leave them out."""
        options = {"changes": self.changes} | options
        return build(self.source, self.out, encoder or MadeVectors(), report, **options)

    def append(self, added: Mapping[str, str], deleted: Iterable[str] = (), made_at: float = 100.0) -> str:
        """Change the index: add documents, given as texts by their ids, and delete others; return the position."""
        documents = tuple(Document(one, text, {"by": "hand"}) for one, text in added.items())
        vectors = np.zeros((len(documents), 8), np.float32)
        change = Change(documents, vectors, tuple(deleted), "d" * 64, made_at)
        return as_written(self.changes.log).append(INDEX, change)

    def forget(self) -> None:
        """Let Redis forget the changes that all versions have."""
        self.changes.forget_folded(self.out)

    @property
    def version(self) -> Path:
        return current_version(self.out)

    @property
    def ids(self) -> list[str]:
        return [one for one, _ in documents_of(self.version)]


@pytest.fixture
def news(queue: Queue, tmp_path: Path) -> News:
    """Return an index that is not built yet."""
    return News(tmp_path, ChangeLog(queue.broker, queue.keys))


def documents_of(folder: Path) -> list[tuple[str, str]]:
    """Return the ids and texts of a version's documents, in their order."""
    return [(line["id"], line["text"]) for line in read_lines(folder / DOCUMENTS)]


def numbered(*without: int) -> list[tuple[str, str]]:
    """Return the documents of the source without some of them."""
    return [(f"d{n}", f"text {n}") for n in range(10) if n not in without]


# Changes


def test_a_change_is_in_the_next_version_and_is_replaced_by_a_later_one(news: News) -> None:
    news.build()
    news.append({"new": "storm", "d1": "changed"}, ["d5", "not there"])
    last = news.append({"newer": "rain", "new": "storm again"})
    result = news.build()
    index = Index.open(news.out)
    assert documents_of(news.version) == [*numbered(1, 5), ("d1", "changed"), ("newer", "rain"), ("new", "storm again")]
    assert index.documents.document(8) == {"id": "d1", "text": "changed", "by": "hand"}
    assert (result.num_changed, result.num_embedded, result.num_reused, result.count) == (5, 3, 8, 11)
    assert (index.manifest.num_changed, index.manifest.changes_through) == (5, last)
    assert index.search(index.vectors[-1:], 1)[0][0]["id"] == "new"
    news.append({"d5": "back"}, ["new", "newer"], made_at=200.0)
    news.build()
    assert documents_of(news.version) == [*numbered(1, 5), ("d1", "changed"), ("d5", "back")]
    assert list(read_lines(news.version / CHANGES)) == [
        {"id": "not there", "made_at": 100.0, "document": None},
        {"id": "d1", "made_at": 100.0, "document": {"text": "changed", "by": "hand"}},
        {"id": "new", "made_at": 200.0, "document": None},
        {"id": "newer", "made_at": 200.0, "document": None},
        {"id": "d5", "made_at": 200.0, "document": {"text": "back", "by": "hand"}},
    ]


def test_a_change_that_is_dropped_is_forgotten_for_good(news: News) -> None:
    news.build()
    news.append({"old": "storm"}, ["d5"], made_at=100.0)
    news.append({"new": "rain"}, ["d6"], made_at=200.0)
    for before in (200.0, None):
        news.build(drop_changes_before=before)
        assert news.ids == [*(f"d{n}" for n in range(10) if n != 6), "new"]
    news.build(drop_changes_before=201.0, publishes=False)
    assert news.build(reuses=False).num_changed == 2  # the version without them is not published
    assert news.build(drop_changes_before=201.0).num_changed == 0
    assert len(news.ids) == 10


def test_a_change_that_was_made_while_a_build_runs_is_neither_lost_nor_doubled(news: News) -> None:
    news.build()
    before = news.append({"before": "storm"})
    steps: list[str] = []

    def change(progress: TaskProgress) -> None:
        if progress.step not in steps:
            steps.append(progress.step)
            news.append({progress.step: "rain"}, [f"d{len(steps)}"])

    news.build(change)
    assert len(steps) > 3
    assert news.ids == [*(f"d{n}" for n in range(10)), "before"]
    assert Manifest.read(news.version).changes_through == before
    assert [lines[1]["id"] for _, lines in news.changes.since(before) if lines] == steps
    news.build()
    assert news.ids == ["d0", *(f"d{n}" for n in range(len(steps) + 1, 10)), "before", *steps]


def test_a_change_that_cannot_be_read_is_left_out(news: News, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    news.append({"new": "storm"})
    queue.broker.execute("XADD", queue.keys.changes(INDEX), "*", "change", b"\xc1")
    last = news.append({}, ["other"])
    result = news.build()
    assert (result.num_changed, result.num_lost) == (2, 1)
    assert Manifest.read(news.version).changes_through == last
    assert f"index {INDEX}: changes are left out, for good: entry " in caplog.text


def test_a_change_of_a_position_is_refused_if_the_source_has_no_ids(news: News, tmp_path: Path) -> None:
    news.append({}, ["late-1", "1"])
    for name in ("source.txt", "source.csv"):
        (tmp_path / name).write_text("storm\nrain\n" if name == "source.txt" else "id,text\n1,storm\n2,rain\n")
    news.source = Source(tmp_path / "source.txt")
    with pytest.raises(InvalidRequest, match=r'no column of ids.* a change of id "1", .*--id-column'):
        news.build()
    news.source = Source(tmp_path / "source.csv")
    assert news.build().count == 1
    assert not Manifest.read(news.version).ids_are_positions


# Versions


def test_if_changes_are_damaged_the_version_before_is_folded_in(news: News, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("one", "two"):
        news.append({name: "storm"})
        news.build()
    (news.version / CHANGES).write_text("{}\n")
    news.append({"three": "storm"})
    before = news.build()
    assert news.ids[10:] == ["one", "two", "three"]
    assert "the changes of a former version are not folded in: " in caplog.text
    news.append({}, news.ids)
    with pytest.raises(BadDocument, match=r"all its documents are deleted from the index.*add one"):
        news.build()
    assert news.version.name == before.version


@pytest.mark.parametrize("killed_at", ["sync_folder", CURRENT, HISTORY])
def test_a_build_that_is_killed_while_it_publishes_is_published_by_the_next_try(
    news: News, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    def be_killed(path: Path, text: str = "") -> None:
        if path.name in (news.out.name, killed_at):
            raise KeyboardInterrupt
        replace_file(path, text)

    first = news.build().version
    news.append({"new": "storm"})
    with monkeypatch.context() as patched:
        name = "build.builder.sync_folder" if killed_at == "sync_folder" else "versions.replace_file"
        patched.setattr(f"shoal_workers.index.{name}", be_killed)
        with pytest.raises(KeyboardInterrupt):
            news.build()
    again = news.build()
    assert (again.is_published, news.version.name, news.ids[10:]) == (True, again.version, ["new"])
    assert {path.name for path in news.version.iterdir()} == {*FILES, MANIFEST, BAD_ROWS}
    assert rollback(news.out) == first


# Redis


def test_redis_keeps_all_changes_for_a_version_that_cannot_be_read_now(news: News) -> None:
    damaged = news.build(changes=None).version
    made = []
    for n in range(2):
        made.append(news.append({f"new {n}": "storm"}))
        news.build()
    (news.out / damaged / MANIFEST).write_text("{}")
    news.forget()
    assert [position for position, lines in news.changes.since(START) if lines] == made


def test_changes_that_redis_lacks_are_reported(news: News, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The index may be built on another machine, its folder may be restored, or it may be new."""
    news.build()
    shutil.copytree(news.out, tmp_path / "other")
    for n in range(2):
        news.append({f"new {n}": "storm"}, [f"d{n}"])
        news.build(num_kept=1)
        news.forget()
    news.append({"last": "storm"})
    assert caplog.text == ""
    for other in ("other", "new"):
        result = build(news.source, tmp_path / other, MadeVectors(), changes=news.changes)
        assert (result.num_changed, result.num_lost) == (1, 1)
        assert Index.open(tmp_path / other).manifest.num_lost == 1
        said = "there is no version, and Redis has changes of an index of this name, which are folded in"
        assert (said in caplog.text) == (other == "new")
        assert "changes are left out, for good: Redis does not have the changes after" in caplog.text
        caplog.clear()


def test_changes_that_a_rollback_took_back_count_again(
    news: News, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Changes that no served version has are limited in number, and the newest version may not be served."""
    news.build()
    news.append({"new": "storm"}, ["d5"])
    news.build()
    for num_folded in (b"2", b"0"):
        news.forget()
        assert queue.broker.execute("HGET", queue.keys.changed, INDEX).split()[1:4:2] == [b"2", num_folded]
        if num_folded == b"2":
            rollback(news.out)
    with closing(Broker.connect("redis://127.0.0.1:1/0")) as away:
        IndexChanges(ChangeLog(away, Keys()), INDEX).forget_folded(news.out)
    assert "Redis keeps changes that its versions have until the next build" in caplog.text


def test_every_version_shows_all_changes(news: News) -> None:
    """A version, with the later changes in Redis, has the documents that all changes so far leave."""
    drawn = random.Random(0)
    wanted = {f"d{n}": f"text {n}" for n in range(10)}
    news.build()

    def change() -> None:
        ids = drawn.sample([f"d{n}" for n in range(14)], 4)
        added = {one: f"text {drawn.randrange(99)}" for one in ids[:2]}
        news.append(added, ids[2:])
        for one in ids:
            wanted.pop(one, None)
        wanted.update(added)

    def build_again() -> None:
        given = news.changes if drawn.random() < 0.7 else None
        news.build(changes=given, publishes=drawn.random() < 0.7)
        news.forget()

    def switch() -> None:
        publish(news.out, drawn.choice(list_versions(news.out)).name)
        news.forget()

    steps: list[Callable[[], None]] = [change, change, build_again, switch]
    for _ in range(40):
        drawn.choice(steps)()
        for version in list_versions(news.out):
            found = dict(documents_of(version.folder))
            for _, lines in news.changes.since(Manifest.read(version.folder).changes_through):
                for line in lines or ():
                    found.pop(line["id"], None)
                    if line["document"]:
                        found[line["id"]] = line["document"]["text"]
            assert found == wanted
