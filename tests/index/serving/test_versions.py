"""The versions of an index are published, rolled back and deleted, and the given number of them is kept."""

import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_builder import MadeVectors

from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound, InvalidRequest, ShoalError
from shoal.index_folder import CURRENT
from shoal.records.source import Source
from shoal.settings import Settings
from shoal.task_progress import TaskProgress
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.scratch import SCRATCH
from shoal_workers.index.files.durable_file import locked
from shoal_workers.index.files.manifest import MANIFEST, Manifest
from shoal_workers.index.index import current_version
from shoal_workers.index.long_jobs import BuildIndex, ManageIndex, build_index, manage_index, name_of, where_is
from shoal_workers.index.versions import HISTORY, LOCK, ROLLBACK, changing, delete, list_versions, publish, rollback

Build = Callable[..., str]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder of the index."""
    return tmp_path / "news"


@pytest.fixture
def built(out: Path, tmp_path: Path) -> Build:
    """Return a function that builds a version and returns its name."""

    def build_one(digest: str = "a" * 64, **options: Any) -> str:
        (tmp_path / "source.txt").write_text("storm\nrain\n")
        return build(Source(tmp_path / "source.txt"), out, MadeVectors(digest), reuses=False, **options).version

    return build_one


def current(out: Path) -> str:
    """Return the name of the current version."""
    return current_version(out).name


class TestWhileABuildRuns:
    @pytest.mark.parametrize("change", [rollback, lambda out: publish(out, list_versions(out)[-1].name)])
    def test_the_version_that_was_chosen_meanwhile_stays(
        self, out: Path, tmp_path: Path, built: Build, change: Callable[[Path], object]
    ) -> None:
        first, second = built(), built()

        def report(progress: TaskProgress) -> None:
            if progress.step == "validating" and current(out) == second:
                change(out)

        result = build(Source(tmp_path / "source.txt"), out, MadeVectors("a" * 64), report, reuses=False)
        assert (current(out), result.is_published) == (first, False)
        publish(out, result.version)
        assert rollback(out) == first


class TestPublish:
    def test_an_unknown_version(self, out: Path, built: Build) -> None:
        there = built()
        shutil.copytree(out / there, out / "a copy")
        for name in ("nowhere", "../news", "", ".building", "a copy"):
            with pytest.raises(IndexNotFound, match=f"has no version .*; it has {there}"):
                publish(out, name)
        assert current(out) == there

    def test_of_another_model_than_the_pools(self, out: Path, built: Build) -> None:
        other, here = built("b" * 64), built("a" * 64)
        with pytest.raises(IndexMismatch, match=r"was built with made \(bbbb.*the pool serves another model \(aaaa"):
            publish(out, other, "a" * 64)
        with pytest.raises(IndexMismatch):
            rollback(out, "a" * 64)
        assert current(out) == here
        publish(out, other, "b" * 64)

    def test_that_is_damaged(self, out: Path, built: Build) -> None:
        unreadable, lacking, here = built(), built(), built()
        (out / unreadable / MANIFEST).write_text("{")
        (out / lacking / "documents.jsonl").unlink()
        for damaged, file in ((unreadable, MANIFEST), (lacking, "documents.jsonl")):
            with pytest.raises(IndexCorrupt, match=file):
                publish(out, damaged)
        assert current(out) == here
        assert {version.name for version in list_versions(out) if version.error} == {lacking, unreadable}


class TestRollback:
    def test_goes_back_version_by_version_until_there_is_none(self, out: Path, built: Build) -> None:
        names = [built() for _ in range(3)]
        assert [rollback(out), rollback(out)] == [names[1], names[0]]
        assert current(out) == names[0]
        with pytest.raises(InvalidRequest, match=f"no version before {names[0]} to go back to: publish one that"):
            rollback(out)
        (out / HISTORY).unlink()
        with pytest.raises(InvalidRequest, match="publish one that"):
            rollback(out)
        publish(out, names[1])
        assert current(out) == names[1]

    def test_goes_by_the_order_of_publishing_without_deleted_versions(self, out: Path, built: Build) -> None:
        first, second, third, deleted = (built(num_kept=9) for _ in range(4))
        publish(out, first)
        delete(out, deleted)
        assert [rollback(out), rollback(out)] == [third, second]

    def test_never_comes_to_a_version_that_was_rolled_back(self, out: Path, built: Build) -> None:
        first, bad = built(), built()
        rollback(out)
        third = built()
        assert current(out) == third
        assert rollback(out) == first
        assert {version.name for version in list_versions(out)} == {first, bad, third}

    def test_of_a_long_job_is_done_once(self, out: Path, built: Build) -> None:
        names = [built() for _ in range(4)]
        for key, name in (("one", names[2]), ("one", names[2]), ("two", names[1]), ("two", names[1])):
            assert manage_index(ManageIndex("news", "rollback"), out, None, key)["current"] == name
        publish(out, names[3])
        assert rollback(out, None, "two") == names[1]
        assert current(out) == names[3]

    def test_that_was_broken_off_is_done_by_the_next_try(self, out: Path, built: Build) -> None:
        first, second = built(), built()
        (out / ROLLBACK).write_text(f"one {second} {first}\n")  # as it is just before the current version changes
        assert rollback(out, None, "one") == first
        assert current(out) == first


class TestDelete:
    def test_a_version_and_a_link_to_one(self, out: Path, built: Build) -> None:
        first, second = built(), built()
        (out / "link").symlink_to(second)
        for name in (first, "link"):
            delete(out, name)
        assert [version.name for version in list_versions(out)] == [second]
        assert not (out / "link").exists()

    def test_of_the_published_version_or_of_no_version_is_refused(self, out: Path, built: Build) -> None:
        name = built()
        (out.parent / "other").mkdir()
        with pytest.raises(InvalidRequest, match=f"{name} is the published version of .*: publish another one first"):
            delete(out, name)
        for other in ("../other", CURRENT, SCRATCH):
            with pytest.raises(IndexNotFound):
                delete(out, other)
        assert (out / name / MANIFEST).exists()
        assert (out.parent / "other").exists()


@pytest.mark.parametrize("gone", [(), (MANIFEST,), (MANIFEST, "documents.jsonl")])
def test_a_list_leaves_out_versions_that_are_removed_meanwhile(
    out: Path, built: Build, monkeypatch: pytest.MonkeyPatch, gone: tuple[str, ...]
) -> None:
    removed, kept = built(), built()

    def read_and_remove(folder: Path) -> Manifest:
        manifest = read(folder)
        if folder.name == removed:
            for name in gone or [path.name for path in folder.iterdir()]:  # as if a removal had not ended yet
                (folder / name).unlink()
            if not gone:
                folder.rmdir()
        return manifest

    read = Manifest.read
    monkeypatch.setattr(Manifest, "read", read_and_remove)
    assert [version.name for version in list_versions(out)] == [kept]


class TestKeptVersions:
    def test_the_version_to_roll_back_to_outlives_one_that_was_rolled_back(self, out: Path, built: Build) -> None:
        first, bad = built(num_kept=2), built(num_kept=2)
        rollback(out)
        third = built(num_kept=2)
        assert {version.name for version in list_versions(out)} == {first, third} - {bad}

    def test_the_current_version_and_the_new_one_always_stay(self, out: Path, built: Build) -> None:
        first = built(num_kept=1)
        second = built(num_kept=1, publishes=False)
        assert {version.name for version in list_versions(out)} == {first, second}
        publish(out, second)
        third = built(num_kept=1)
        assert {version.name for version in list_versions(out)} == {third}


class TestLongTasks:
    def test_build_and_manage(self, out: Path, tmp_path: Path) -> None:
        (tmp_path / "source.txt").write_text("storm\nrain\n")
        request = BuildIndex("news", str(tmp_path / "source.txt"), full=True)
        reports: list[TaskProgress] = []
        first, second = (build_index(request, out, MadeVectors(), reports.append) for _ in range(2))
        done = manage_index(ManageIndex("news", "rollback"), out, None)
        assert (done["name"], done["current"]) == ("news", first.version)
        about = {name: done["versions"][1][name] for name in ("version", "is_current", "count", "model", "source")}
        expected = {"is_current": True, "count": 2, "model": "made", "source": "source.txt"}
        assert about == {"version": first.version} | expected
        manage_index(ManageIndex("news", "publish", second.version), out, "a" * 64)
        manage_index(ManageIndex("news", "delete", first.version), out, None)
        left = manage_index(ManageIndex("news", "list"), out, None)
        assert [version["version"] for version in left["versions"]] == [second.version]
        assert json.loads(json.dumps(left)) == left

    def test_wrong_arguments(self) -> None:
        wrong: list[tuple[Callable[..., object], dict[str, Any], str]] = [
            (BuildIndex, {"source": 5}, "source is 5"),
            (BuildIndex, {"language": "klingon"}, 'language is "klingon": it takes one of none, arabic'),
            (BuildIndex, {"full": "yes"}, 'full is "yes"'),
            (BuildIndex, {"drop_changes_before": True}, "drop_changes_before is true: it takes a"),
            (BuildIndex, {"drop_changes_before": math.nan}, "drop_changes_before is nan"),
            (BuildIndex, {"field_kinds": ["year=word"]}, 'field_kinds has "year=word": it takes'),
            (BuildIndex, {"field_kinds": ["=date"]}, 'field_kinds has "=date"'),
            (BuildIndex, {"field_kinds": ["id=number"]}, 'field_kinds has "id=number"'),
            (BuildIndex, {"field_kinds": "year"}, 'field_kinds is "year": it takes a list'),
            (BuildIndex, {"chunk_tokens": 0}, "chunk_tokens is 0"),
            (BuildIndex, {"chunk_tokens": "10"}, "chunk_tokens is .10.: it takes"),
            (BuildIndex, {"chunk_overlap": 3}, "chunk_overlap is 3, without chunk_tokens"),
            (BuildIndex, {"chunk_tokens": 10, "chunk_overlap": 6}, "it takes at most half of chunk_tokens"),
            (ManageIndex, {"action": "drop"}, 'action is "drop": it takes one of list, publish'),
            (ManageIndex, {"action": "publish"}, "publish and delete take one"),
            (ManageIndex, {"action": "rollback", "version": "v1"}, "publish and delete take one"),
        ]
        for kind, arguments, said in wrong:
            with pytest.raises(InvalidRequest, match=said):
                kind(**{"name": "news"} | ({"source": "a.csv"} if kind is BuildIndex else {}) | arguments)

    def test_without_an_index_are_refused(self, out: Path) -> None:
        for action in ("list", "rollback"):
            with pytest.raises(IndexNotFound):
                manage_index(ManageIndex("news", action), out, None)


@pytest.mark.parametrize("name", ["", LOCK])
def test_a_folder_that_is_missing_is_not_locked_and_not_made(out: Path, name: str) -> None:
    with pytest.raises(IndexNotFound, match="news holds no index"), locked(out, name):
        pass
    assert not out.exists()


def test_one_process_at_a_time_changes_versions(out: Path, built: Build) -> None:
    built()
    other = os.open(out / LOCK, os.O_RDONLY)
    with changing(out), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_the_folder_of_a_name(tmp_path: Path) -> None:
    settings = Settings(indexes=f"faq={tmp_path}/faq", index_home=str(tmp_path / "indexes"))
    assert where_is(settings, "faq") == tmp_path / "faq"
    assert where_is(settings, "news.v2") == tmp_path / "indexes" / "news.v2"
    for name in ("", "..", ".hidden", "a/b", "a\n", "x" * 101):
        with pytest.raises(ShoalError, match="the index is called"):
            where_is(settings, name)
    for name in ("faq", "news.v2"):
        assert name_of(settings, where_is(settings, name)) == name
    for place in ("news", "indexes", "indexes/faq", "indexes/.news"):
        assert name_of(settings, tmp_path / place) is None
