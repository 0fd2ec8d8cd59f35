"""The versions of an index are published, rolled back and deleted, and the given number of them is kept."""

import fcntl
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_builder import MadeVectors

from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound, InvalidRequest, ShoalError
from shoal.index_folder import CURRENT
from shoal.process.durable_file import locked
from shoal.records.source import Source
from shoal.settings import Settings
from shoal.task_progress import TaskProgress
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.scratch import SCRATCH
from shoal_workers.index.files.manifest import MANIFEST, Manifest
from shoal_workers.index.index import current_version
from shoal_workers.index.long_jobs import BuildIndex, ManageIndex, manage_index, name_of, where_is
from shoal_workers.index.versions import HISTORY, LOCK, ROLLBACK, changing, delete, list_versions, publish, rollback

Build = Callable[..., str]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "news"


@pytest.fixture
def built(out: Path, tmp_path: Path) -> Build:
    """Return a function that builds a version and returns its name."""

    def build_one(digest: str = "a" * 64, **options: Any) -> str:
        (tmp_path / "source.txt").write_text("storm\nrain\n")
        return build(Source(tmp_path / "source.txt"), out, MadeVectors(digest), reuses=False, **options).version

    return build_one


def current(out: Path) -> str:
    return current_version(out).name


def names(out: Path) -> set[str]:
    return {version.name for version in list_versions(out)}


@pytest.mark.parametrize("change", [rollback, lambda out: publish(out, list_versions(out)[-1].name)])
def test_the_version_that_was_chosen_while_a_build_ran_stays(
    out: Path, tmp_path: Path, built: Build, change: Callable[[Path], object]
) -> None:
    first, second = built(), built()

    def report(progress: TaskProgress) -> None:
        if progress.step == "validating" and current(out) == second:
            change(out)

    result = build(Source(tmp_path / "source.txt"), out, MadeVectors("a" * 64), report, reuses=False)
    assert (current(out), result.is_published) == (first, False)
    publish(out, result.version)
    assert rollback(out) == first


def test_an_unknown_a_damaged_and_another_models_version_are_not_published(out: Path, built: Build) -> None:
    unreadable, lacking, other, here = (built(digest * 64, num_kept=9) for digest in "aaba")
    shutil.copytree(out / here, out / "a copy")
    (out / unreadable / MANIFEST).write_text("{")
    (out / lacking / "documents.jsonl").unlink()
    refused: list[tuple[str, type[ShoalError], str]] = [
        *(
            (name, IndexNotFound, f"has no version .*; it has .*{here}")
            for name in ("nowhere", "../news", "", "a copy")
        ),
        (other, IndexMismatch, r"was built with made \(bbbb.*the pool serves another model \(aaaa"),
        (unreadable, IndexCorrupt, MANIFEST),
        (lacking, IndexCorrupt, "documents.jsonl"),
    ]
    for name, error, said in refused:
        with pytest.raises(error, match=said):
            publish(out, name, "a" * 64)
    with pytest.raises(IndexMismatch):
        rollback(out, "a" * 64)
    assert current(out) == here
    assert {version.name for version in list_versions(out) if version.error} == {lacking, unreadable}
    publish(out, other, "b" * 64)


# Rollbacks


def test_a_rollback_goes_back_version_by_version_until_there_is_none(
    out: Path, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, deleted = (built(num_kept=9) for _ in range(4))
    publish(out, first)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if the process were killed before
        delete(out, deleted)
    assert deleted not in {version.name for version in list_versions(out)}
    assert [rollback(out), rollback(out)] == [third, second]  # in the order of publishing
    with pytest.raises(InvalidRequest, match=f"no version before {second} to go back to: publish one that"):
        rollback(out)
    (out / HISTORY).unlink()
    with pytest.raises(InvalidRequest, match="publish one that"):
        rollback(out)
    publish(out, third)
    assert current(out) == third


@pytest.mark.parametrize("num_synced", range(7))
def test_a_publication_that_is_killed_leaves_the_way_back_and_no_file(
    out: Path, built: Build, monkeypatch: pytest.MonkeyPatch, num_synced: int
) -> None:
    first, second, _bad = (built(num_kept=9) for _ in range(3))
    rollback(out)
    files, syncs = {*out.iterdir()}, iter(range(num_synced))

    def sync(_: int) -> None:
        if next(syncs, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(os, "fsync", sync)
        patched.setattr(os, "getpid", lambda: 1)
        publish(out, first)
    is_published = num_synced >= 3
    assert current(out) == (first if is_published else second)
    assert rollback(out) == (second if is_published else first)
    with pytest.raises(InvalidRequest, match="there is no version before"):
        rollback(out)
    publish(out, second)
    assert {*out.iterdir()} == files


def test_a_rollback_never_comes_to_a_version_that_was_rolled_back(out: Path, built: Build) -> None:
    first, bad = built(), built()
    lines = (out / HISTORY).read_text().splitlines()
    (out / HISTORY).write_text("".join(f"{name} 2026-11-22T03:00:00Z\n" for name in lines))  # an earlier release's
    rollback(out)
    third = built()
    assert current(out) == third
    assert rollback(out) == first
    assert names(out) == {first, bad, third}


def test_a_rollback_of_a_long_job_is_done_once_and_goes_on_where_it_was_broken_off(out: Path, built: Build) -> None:
    first, second, third, last = (built(num_kept=9) for _ in range(4))
    for key, name in (("one", third), ("one", third), ("two", second), ("two", second)):
        assert manage_index(ManageIndex("news", "rollback"), out, None, key)["current"] == name
    publish(out, last)
    assert rollback(out, None, "two") == second
    assert current(out) == last
    (out / ROLLBACK).write_text(f"three {last} {first}\n")  # the state just before the current version changes
    assert rollback(out, None, "three") == current(out) == second


# Deleted and kept versions


def test_a_version_and_a_link_to_one_are_deleted_and_nothing_else(out: Path, built: Build) -> None:
    first, second = built(), built()
    (out / "link").symlink_to(second)
    (out.parent / "other").mkdir()
    with pytest.raises(InvalidRequest, match=f"{second} is the published version of .*: publish another one first"):
        delete(out, second)
    for other in ("../other", CURRENT, SCRATCH):
        with pytest.raises(IndexNotFound):
            delete(out, other)
    for name in (first, "link"):
        delete(out, name)
    assert names(out) == {second}
    assert not (out / "link").exists()
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
    assert names(out) == {kept}


def test_the_current_the_new_and_the_version_to_roll_back_to_are_kept(out: Path, built: Build) -> None:
    first, _ = built(num_kept=2), built(num_kept=2)
    rollback(out)
    third = built(num_kept=2)
    assert names(out) == {first, third}
    fourth = built(num_kept=1, publishes=False)
    assert names(out) == {third, fourth}
    publish(out, fourth)
    assert {built(num_kept=1)} == names(out)


# Long jobs


def test_wrong_arguments_of_long_jobs_are_named() -> None:
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
