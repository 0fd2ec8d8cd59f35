"""Builds fold in the documents that were added to an index, and deleted from it, while it was served."""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocking import ChangeLog, as_written
from queues import Queue
from test_builder import MadeVectors, contents, names

from shoal.broker.broker import Broker
from shoal.changes.change import MAX_CHANGE_IDS, MAX_CHANGES, Change
from shoal.changes.change_log import START
from shoal.contract.keys import Keys
from shoal.errors import BadDocument, Paused, TooManyChanges
from shoal.long_task import TaskProgress
from shoal.records.document import Document
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.folding import IndexChanges
from shoal_workers.index.build.scratch import SCRATCH
from shoal_workers.index.files.documents import read_lines
from shoal_workers.index.files.manifest import CHANGES, DOCUMENTS, FILES, MANIFEST, Manifest
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.versions import list_versions, publish, rollback

INDEX = "news"


@pytest.fixture
def changes(queue: Queue) -> IndexChanges:
    """Return the changes of an index in the tests' Redis."""
    return IndexChanges(ChangeLog(queue.broker, queue.keys), INDEX)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder for the index."""
    return tmp_path / "index"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Return a source of ten documents."""
    return source_of(tmp_path, range(10))


def source_of(folder: Path, numbers: Iterable[int]) -> Source:
    """Return a source of numbered documents."""
    path = folder / "source.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": f"text {n}", "n": n}) + "\n" for n in numbers))
    return Source(path)


def append(changes: IndexChanges, added: Mapping[str, str], deleted: Iterable[str] = (), made_at: float = 100.0) -> str:
    """Change the index: add documents, by id their texts, and delete others; return the position."""
    documents = tuple(Document(one, text, {"by": "hand"}) for one, text in added.items())
    vectors = np.zeros((len(documents), 8), np.float32)
    return as_written(changes.log).append(INDEX, Change(documents, vectors, tuple(deleted), "d" * 64, made_at))


def documents_of(folder: Path) -> list[tuple[str, str]]:
    """Return the ids and texts of a version's documents, in their order."""
    return [(line["id"], line["text"]) for line in read_lines(folder / DOCUMENTS)]


def positions(changes: IndexChanges, after: str = START) -> list[str]:
    """Return the positions of the changes that Redis has after one."""
    return [entry.position for entry in changes.log.since(INDEX, after).entries]


class TestAChange:
    def test_is_in_the_next_version(self, changes: IndexChanges, source: Source, out: Path) -> None:
        build(source, out, MadeVectors(), changes=changes)
        append(changes, {"new": "storm", "d3": "changed"}, ["d5", "not there"])
        last = append(changes, {"newer": "rain", "new": "storm again"})
        result = build(source, out, MadeVectors(), changes=changes)
        index = Index.open(out)
        kept = [(f"d{n}", f"text {n}") for n in range(10) if n not in (3, 5)]
        assert documents_of(index.folder) == [*kept, ("d3", "changed"), ("newer", "rain"), ("new", "storm again")]
        assert index.document(8) == {"id": "d3", "text": "changed", "by": "hand"}
        assert (result.num_changed, result.num_embedded, result.num_reused, result.count) == (5, 3, 8, 11)
        assert (index.manifest.num_changed, index.manifest.changes_through) == (5, last)
        assert index.search(index.vectors[-1:], 1)[0][0]["id"] == "new"

    def test_is_replaced_by_a_later_one(self, changes: IndexChanges, source: Source, out: Path) -> None:
        build(source, out, MadeVectors(), changes=changes)
        append(changes, {"new": "storm", "d1": "changed"}, ["d5"])
        build(source, out, MadeVectors(), changes=changes)
        append(changes, {"d5": "back"}, ["new"], made_at=200.0)
        build(source, out, MadeVectors(), changes=changes)
        kept = [(f"d{n}", f"text {n}") for n in range(10) if n not in (1, 5)]
        folder = current_version(out)
        assert documents_of(folder) == [*kept, ("d1", "changed"), ("d5", "back")]
        assert list(read_lines(folder / CHANGES)) == [
            {"id": "d1", "made_at": 100.0, "document": {"text": "changed", "by": "hand"}},
            {"id": "new", "made_at": 200.0, "document": None},
            {"id": "d5", "made_at": 200.0, "document": {"text": "back", "by": "hand"}},
        ]

    def test_that_is_dropped_is_forgotten_for_good(self, changes: IndexChanges, source: Source, out: Path) -> None:
        build(source, out, MadeVectors(), changes=changes)
        append(changes, {"old": "storm"}, ["d5"], made_at=100.0)
        append(changes, {"new": "rain"}, ["d6"], made_at=200.0)
        build(source, out, MadeVectors(), changes=changes)
        for before in (200.0, None):
            build(source, out, MadeVectors(), changes=changes, drop_changes_before=before)
            found = [one for one, _ in documents_of(current_version(out))]
            assert found == [*(f"d{n}" for n in range(10) if n != 6), "new"]
        assert build(source, out, MadeVectors(), changes=changes, drop_changes_before=201.0).num_changed == 0
        assert len(documents_of(current_version(out))) == 10

    def test_that_was_made_while_a_build_runs_is_neither_lost_nor_doubled(
        self, changes: IndexChanges, source: Source, out: Path
    ) -> None:
        build(source, out, MadeVectors(), changes=changes)
        before = append(changes, {"before": "storm"})
        steps: list[str] = []

        def change(progress: TaskProgress) -> None:
            if progress.step not in steps:
                steps.append(progress.step)
                append(changes, {progress.step: "rain"}, [f"d{len(steps)}"])

        build(source, out, MadeVectors(), change, changes=changes)
        folder = current_version(out)
        assert len(steps) > 3
        assert documents_of(folder)[-1] == ("before", "storm")
        assert Manifest.read(folder).changes_through == before
        assert [lines[1]["id"] for _, lines in changes.since(before) if lines] == steps
        build(source, out, MadeVectors(), changes=changes)
        found = [one for one, _ in documents_of(current_version(out))]
        assert found == ["d0", *(f"d{n}" for n in range(len(steps) + 1, 10)), "before", *steps]

    def test_that_cannot_be_read_is_left_out(
        self, changes: IndexChanges, source: Source, out: Path, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        append(changes, {"new": "storm"})
        queue.broker.execute("XADD", queue.keys.changes(INDEX), "*", "change", b"\xc1")
        last = append(changes, {}, ["other"])
        result = build(source, out, MadeVectors(), changes=changes)
        assert (result.num_changed, result.num_lost) == (2, 1)
        assert Manifest.read(current_version(out)).changes_through == last
        assert f"index {INDEX}: changes are left out, for good: entry " in caplog.text


class TestAVersion:
    def test_of_layout_3_gives_its_vectors(self, changes: IndexChanges, source: Source, out: Path) -> None:
        build(source, out, MadeVectors())
        folder = current_version(out)
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text()) | {"layout": 3}
        del manifest["num_changed"], manifest["changes_through"]
        for name in FILES[7:]:
            del manifest["checksums"][name]
            (folder / name).unlink()
        (folder / MANIFEST).write_text(json.dumps(manifest))
        assert Index.open(out).manifest.changes_through == START
        append(changes, {"new": "storm"}, ["d5"])
        result = build(source, out, MadeVectors(), changes=changes)
        assert (result.num_embedded, result.num_reused, result.num_changed) == (1, 9, 2)

    def test_without_a_document_is_not_built(self, changes: IndexChanges, source: Source, out: Path) -> None:
        before = build(source, out, MadeVectors(), changes=changes)
        append(changes, {}, [f"d{n}" for n in range(10)])
        with pytest.raises(BadDocument, match=r"all its documents are deleted from the index.*add one"):
            build(source, out, MadeVectors(), changes=changes)
        assert current_version(out).name == before.version

    def test_whose_changes_are_damaged_is_replaced_by_the_one_before(
        self, changes: IndexChanges, source: Source, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("one", "two"):
            append(changes, {name: "storm"})
            build(source, out, MadeVectors(), changes=changes)
        (current_version(out) / CHANGES).write_text("{}\n")
        append(changes, {"three": "storm"})
        build(source, out, MadeVectors(), changes=changes)
        assert [one for one, _ in documents_of(current_version(out))][10:] == ["one", "two", "three"]
        assert "the changes of a former version are not folded in: " in caplog.text

    def test_with_the_same_key_is_the_one_that_was_built(
        self, changes: IndexChanges, source: Source, out: Path
    ) -> None:
        """As when the process of a job is killed between the end of its build and its own."""
        first = build(source, out, MadeVectors(), key="other", changes=changes)
        left = build(source, out, MadeVectors(), key="job", publishes=False, changes=changes, reuses=False)
        encoder = MadeVectors()
        again = build(source, out, encoder, key="job", changes=changes)
        assert (again, encoder.num_texts) == (replace(left, is_published=True), 0)
        assert current_version(out).name == left.version
        publish(out, first.version)
        rollback(out)
        assert build(source, out, MadeVectors(), key="job", changes=changes) == again
        assert {version.name for version in list_versions(out)} == {first.version, left.version}


class TestRedis:
    def test_keeps_what_a_kept_version_needs(self, changes: IndexChanges, source: Source, out: Path) -> None:
        made = []
        for n in range(5):
            made.append(append(changes, {f"new {n}": "storm"}))
            build(source, out, MadeVectors(), changes=changes, num_kept=2)
            assert made[n] in positions(changes, made[n - 1] if n else START)  # until it is told that they are folded
            changes.forget_folded(out)
        assert positions(changes, made[3]) == made[4:]
        made.append(append(changes, {"last": "storm"}))
        rollback(out)
        changes.forget_folded(out)
        assert positions(changes, made[3]) == made[4:]
        needed = changes.since(Manifest.read(current_version(out)).changes_through)
        assert [position for position, _ in needed] == made[4:]

    def test_keeps_all_for_a_version_that_cannot_be_read_now(
        self, changes: IndexChanges, source: Source, out: Path
    ) -> None:
        damaged = build(source, out, MadeVectors()).version
        made = []
        for n in range(2):
            made.append(append(changes, {f"new {n}": "storm"}))
            build(source, out, MadeVectors(), changes=changes)
        (out / damaged / MANIFEST).write_text("{}")
        changes.forget_folded(out)
        kept = [position for position, lines in changes.since(START) if lines is not None]
        assert kept == made

    def test_that_does_not_have_all_changes_any_more(
        self, changes: IndexChanges, source: Source, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As for an index that is built on another machine, whose folder was restored, or that is new."""
        build(source, out, MadeVectors(), changes=changes)
        shutil.copytree(out, tmp_path / "other")
        for n in range(2):
            append(changes, {f"new {n}": "storm"}, [f"d{n}"])
            build(source, out, MadeVectors(), changes=changes, num_kept=1)
            changes.forget_folded(out)
        append(changes, {"last": "storm"})
        assert caplog.text == ""
        for other in ("other", "new"):
            result = build(source, tmp_path / other, MadeVectors(), changes=changes)
            assert (result.num_changed, result.num_lost) == (1, 1)
            assert Index.open(tmp_path / other).manifest.num_lost == 1
            said = "there is no version, and changes that Redis has of an index of that name are folded in"
            assert (said in caplog.text) == (other == "new")
            assert "changes are left out, for good: Redis does not have the changes after" in caplog.text
            caplog.clear()

    def test_that_has_its_limit_of_changes_takes_more_after_a_build(
        self, changes: IndexChanges, source: Source, out: Path
    ) -> None:
        build(source, out, MadeVectors(), changes=changes)
        for n in range(MAX_CHANGES // MAX_CHANGE_IDS):
            append(changes, {}, [f"gone {n} {k}" for k in range(MAX_CHANGE_IDS)])
        with pytest.raises(TooManyChanges):
            append(changes, {"new": "storm"})
        assert build(source, out, MadeVectors(), changes=changes).num_changed == MAX_CHANGES
        changes.forget_folded(out)
        append(changes, {"new": "storm"})

    def test_keeps_all_if_nothing_is_folded_in(self, changes: IndexChanges, source: Source, out: Path) -> None:
        build(source, out, MadeVectors(), changes=changes)
        made = append(changes, {"new": "storm"})
        build(source, out, MadeVectors())
        changes.forget_folded(out)
        changes.forget_folded(out / "nowhere")
        assert positions(changes) == [made]

    def test_that_does_not_answer_fails_nothing_that_was_done(
        self, source: Source, out: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        build(source, out, MadeVectors())
        with closing(Broker.connect("redis://127.0.0.1:1/0")) as broker:
            IndexChanges(ChangeLog(broker, Keys()), INDEX).forget_folded(out)
        assert "Redis keeps changes that its versions have until the next build" in caplog.text


@pytest.mark.parametrize("step", ["reading", "publishing"])
def test_an_interrupted_build_goes_on_with_the_changes_that_it_began_with(
    changes: IndexChanges, tmp_path: Path, out: Path, step: str
) -> None:
    source = source_of(tmp_path, range(4_200))
    append(changes, {"new": "storm", "d7": "changed"}, ["d5"])
    build(source, tmp_path / "undisturbed", MadeVectors(), changes=changes)

    def stop(progress: TaskProgress) -> None:
        if progress.step == step:
            raise Paused("stop")

    with pytest.raises(Paused):
        build(source, out, MadeVectors(), stop, changes=changes)
    append(changes, {"later": "rain"}, ["d6"])
    build(source, out, MadeVectors(), changes=changes)
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert SCRATCH not in names(out)


@pytest.mark.parametrize("seed", range(3))
def test_every_version_shows_all_changes(changes: IndexChanges, source: Source, out: Path, seed: int) -> None:
    """With the changes that Redis has since, each version has the documents that the changes so far leave."""
    drawn = random.Random(seed)
    wanted = {f"d{n}": f"text {n}" for n in range(10)}
    build(source, out, MadeVectors(), changes=changes)

    def change() -> None:
        ids = drawn.sample([f"d{n}" for n in range(14)], 4)
        added = {one: f"text {drawn.randrange(99)}" for one in ids[:2]}
        append(changes, added, ids[2:])
        for one in ids:
            wanted.pop(one, None)
        wanted.update(added)

    def build_again() -> None:
        given = changes if drawn.random() < 0.7 else None
        build(source, out, MadeVectors(), changes=given, publishes=drawn.random() < 0.7)
        changes.forget_folded(out)

    def switch() -> None:
        publish(out, drawn.choice(list_versions(out)).name)
        changes.forget_folded(out)

    steps: list[Callable[[], None]] = [change, change, build_again, switch]
    for _ in range(40):
        drawn.choice(steps)()
        for version in list_versions(out):
            found = dict(documents_of(version.folder))
            for _, lines in changes.since(Manifest.read(version.folder).changes_through):
                for line in lines or ():
                    found.pop(line["id"], None)
                    if line["document"]:
                        found[line["id"]] = line["document"]["text"]
            assert found == wanted
