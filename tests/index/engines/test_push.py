"""Pushing an index into an engine, and searching it there, with real processes."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from blocking import ChangeLog, as_written
from changes import change, unit_vectors
from conftest import free_port
from index_versions import write_version
from queues import Queue
from vector_engines import Engine, PostgreSQL

from shoal.errors import IndexBusy, IndexCorrupt, IndexNotFound, InvalidRequest, Unavailable
from shoal.operations import Search
from shoal.records.document import Document
from shoal_workers.index.build.folding import IndexChanges
from shoal_workers.index.build.push import ROWS_AT_ONCE, push, remove_tables
from shoal_workers.index.engine_index import EngineIndex, open_version
from shoal_workers.index.engines.engine import open_table
from shoal_workers.index.files.manifest import Manifest
from shoal_workers.index.versions import find_versions, make_current, remove_old

pytest_plugins = ["vector_engine_fixtures"]

COUNT = 2 * ROWS_AT_ONCE + 1


def publish(folder: Path, name: str, count: int = COUNT, **manifest: Any) -> None:
    """Publish a version of files."""
    documents = [Document(str(n), f"text {n}", {"n": n}) for n in range(count)]
    write_version(folder / name, documents, unit_vectors(count, seed=1), **manifest)
    make_current(folder, name)


def table(folder: Path, version: str) -> Any:
    """Return the table of a version in an engine."""
    return open_table(Manifest.read(folder / version).engine, "")


def test_a_push_that_was_interrupted_goes_on_and_old_tables_are_removed(engine: Engine, tmp_path: Path) -> None:
    url, folder = engine.url, tmp_path / f"interrupted-{engine.name}"
    publish(folder, "v1")

    def interrupt(num: int, _: int) -> None:
        if num == ROWS_AT_ONCE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(folder, url, "", interrupt)
    reports: list[tuple[int, int]] = []
    version = push(folder, url, "", lambda *report: reports.append(report))
    assert reports == [(2 * ROWS_AT_ONCE, COUNT), (COUNT, COUNT)]
    make_current(folder, version)
    assert push(folder, url, "", lambda *_: None) == version  # the version of files again

    publish(folder, "v2", 3)
    newer = push(folder, url, "", lambda *_: None)
    make_current(folder, newer)
    remove_old(folder, newer, 1)
    assert [one.name for one in find_versions(folder)] == [newer]
    assert remove_tables(folder, "") == []
    assert table(folder, newer).count() == 3
    assert open_table(f"{url}#{folder.name}-v1", "").count() == 0
    assert (folder / ".tables").read_text().split() == [f"{url}#{folder.name}-v2"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://localhost", "is no address of an engine: it begins with postgresql://"),
        ("postgresql://:secret@localhost", "has a password: set SHOAL_ENGINE_PASSWORD"),
        ("postgresql://localhost:99999999", "is no address of an engine: Port out of range"),
        ("postgresql:folder", "it names no host"),
        ("postgresql://:secret@localhost:port", "has a password"),
        ("postgresql://localhost/db?password=secret", "has a password"),
        ("postgresql://localhost/my db", "has white space"),
        ("postgresql://localhost/db#news", "after the # are"),
        ("postgresql://localhost/db?secrets=1", "cannot hold the index: invalid URI query parameter"),
    ],
)
def test_a_bad_address_is_refused_with_a_sentence(url: str, reason: str, tmp_path: Path) -> None:
    publish(tmp_path / "news", "v1", 1)
    with pytest.raises(InvalidRequest, match=re.escape(reason)) as raised:
        push(tmp_path / "news", url, "", lambda *_: None)
    assert "secret@" not in raised.value.message
    assert "=secret" not in raised.value.message


def test_changes_since_the_build_are_not_left_behind(tmp_path: Path, queue: Queue) -> None:
    publish(tmp_path / "news", "v1", 1)
    change_log = ChangeLog(queue.broker, queue.keys)
    as_written(change_log).append("news", change([], ["0"]))
    with pytest.raises(InvalidRequest, match="v1 lacks later changes of documents"):
        push(tmp_path / "news", "postgresql://localhost", "", lambda *_: None, IndexChanges(change_log, "news"))


def test_a_second_push_at_the_same_time_is_refused(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / f"twice-{engine.name}"
    publish(folder, "v1", 1)

    def push_again(*_: int) -> None:
        for again in (lambda: push(folder, engine.url, "", lambda *_: None), lambda: remove_tables(folder, "")):
            with pytest.raises(IndexBusy, match="has a push already"):
                again()

    assert open_version(folder / push(folder, engine.url, "", push_again)).count == 1


def test_a_server_that_hangs_is_left_after_a_while(postgresql: PostgreSQL) -> None:
    table = open_table(f"{postgresql.url}#hangs", "", timeout_s=1)
    assert table.count() == 0
    assert table._connection
    process = table._connection.info.backend_pid
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(table.outages, match="no answer after 2 s"):
            table.count()
    finally:
        os.kill(process, signal.SIGCONT)
    assert table.count() == 0


def test_an_index_of_chunks_and_a_folder_without_an_index_are_not_pushed(tmp_path: Path) -> None:
    publish(tmp_path / "news", "v1", 1, chunk_tokens=8)
    for folder, said in ((tmp_path / "news", "v1 has chunks, which no engine groups"), (tmp_path, "holds no index")):
        with pytest.raises((InvalidRequest, IndexNotFound), match=said):
            push(folder, "postgresql://localhost", "", lambda *_: None)


def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    publish(tmp_path / "news", "v1", 1)
    url = f"postgresql://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"{url}#news-v1 does not answer"):
        push(tmp_path / "news", url, "", lambda *_: None)
    assert [one.name for one in find_versions(tmp_path / "news")] == ["v1"]


def test_rows_that_an_engine_has_lost_are_noticed(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / f"lost-{engine.name}"
    publish(folder, "v1", 3)
    pushed = open_version(folder / push(folder, engine.url, "", lambda *_: None))
    assert isinstance(pushed, EngineIndex)
    table(folder, pushed.manifest.version).drop()
    (search,) = pushed.ask([Search(["storm"])], [unit_vectors(1)])
    with pytest.raises(IndexCorrupt, match=r"has 0 of 3 rows of the index: push it again"):
        search.answer()
