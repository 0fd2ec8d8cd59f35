"""The indexes of a worker: it serves published versions, forgets other versions, and keeps a version after an error."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from asking import error, hits
from conftest import PATIENCE_S, wait_until
from index_versions import add_version, maps_of, publish_version, served_in, write_version
from queues import Queue, drive

import shoal_workers.index.files.checksums
from shoal.contract.replies import Reply
from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound, UnknownIndex
from shoal.operations import Search
from shoal.records.document import Document
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.manifest import DOCUMENTS, MANIFEST, VECTORS
from shoal_workers.index.index import Index
from shoal_workers.index.serving.open_indexes import RETRY_AFTER_S, OpenIndexes, find_index, watched
from shoal_workers.index.versions import make_current
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about

WRONG = "is not what was built"


class Serving:
    """A folder of indexes that a worker serves."""

    def __init__(self, folder: Path, template: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder):
        self.folder, self.template, self.indexes = folder, template, indexes
        self.queue, self.encoder = queue, encoder
        self.v1 = folder / "news" / "v1"

    def publish(self, version: str = "v1", name: str = "news", **manifest: Any) -> Path:
        """Publish a version of an index; return its folder."""
        return publish_version(self.folder / name, self.template, version, **manifest)

    def from_settings(self, threads: int = 1, **settings: Any) -> OpenIndexes:
        """Return the indexes that a worker with these settings serves."""
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        return OpenIndexes.from_settings(
            Settings(home=str(self.folder.parent), **settings), self.encoder.model, threads
        )

    def worker(self) -> Worker:
        return Worker(self.queue.consumer(), self.encoder, self.indexes, Bucketing(4_096))

    def reply_after(self, happens: Callable[[], object]) -> Reply:
        """Return the reply to a search, with an event between its admission and the search in the index."""
        worker = self.worker()
        self.queue.put("interactive", [Search(["storm", "rain"], index="news", reply_to=f"me-{happens.__name__}")])
        worker.scheduler.add(worker.admission.take(worker.scheduler.room(), 0, []))
        happens()
        drive(worker)
        (reply,) = self.queue.inbox(f"me-{happens.__name__}").wait()
        return reply


@pytest.fixture
def serving(tmp_path: Path, index_folder: Path, encoder: Encoder, queue: Queue) -> Iterator[Serving]:
    (folder := tmp_path / "indexes").mkdir()
    with served_in(folder, encoder.model) as indexes:
        yield Serving(folder, index_folder, indexes, queue, encoder)


@pytest.fixture
def news(serving: Serving) -> Serving:
    """The same folder with the version v1 of the index `news`, which is listed."""
    serving.publish()
    serving.indexes.look(0)
    return serving


@pytest.fixture
def opened(news: Serving, monkeypatch: pytest.MonkeyPatch) -> Serving:
    """The same folder with the index opened. Every file counts as large, so that none of its files is checked yet."""
    monkeypatch.setattr(shoal_workers.index.files.checksums, "LARGE_BYTES", 1)
    assert news.indexes["news"].count
    return news


def versions(indexes: OpenIndexes) -> dict[str, str]:
    """Return the served version of each index, according to its documents."""
    return {name: index.documents.document(0)["version"] for name, index in indexes.items()}


def num_open(indexes: OpenIndexes) -> int:
    """Return the number of indexes that are open."""
    return sum(served.opened is not None for served in indexes._served.values())


# Published versions


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_memory_of_the_old_version_is_given_back(news: Serving) -> None:
    """The memory is not freed at once: otherwise a running search might have to free it before it answers."""
    indexes = news.indexes
    query = (first := indexes["news"]).vectors[:1]
    indexes.look(1)
    assert indexes["news"] is first
    v2 = news.publish("v2")
    indexes.look(2)
    assert versions(indexes) == {"news": "v2"}
    for index, version in ((first, "v1"), (indexes["news"], "v2")):
        assert [hit["version"] for hit in index.search(query, 3)[0]] == [version] * 3
    del first, query, index
    assert maps_of(os.getpid(), news.v1)
    indexes.look(3)
    assert not maps_of(os.getpid(), news.v1)
    assert maps_of(os.getpid(), v2)
    assert indexes.errors == {}


def test_indexes_come_and_go(serving: Serving) -> None:
    indexes, folder = serving.indexes, serving.folder
    indexes.look(0)
    assert not indexes
    with pytest.raises(UnknownIndex, match='no index "news": this worker serves none'):
        find_index(indexes, "news")
    (folder / "notes.txt").write_text("no index")
    add_version(folder / "half", serving.template, "v1")
    for name in ("news", "faq", ".hidden", "with space"):
        serving.publish(name.strip(".").replace(" ", "-"), name)
    indexes.look(1)
    assert versions(indexes) == {"news": "news", "faq": "faq"}
    assert indexes.errors == {}
    assert find_index(indexes, "news").result() is indexes["news"]
    with pytest.raises(UnknownIndex, match="this worker serves faq, news"):
        find_index(indexes, "x")
    shutil.rmtree(folder / "news")
    make_current(folder / "half", "v1")
    indexes.look(2)
    assert versions(indexes) == {"faq": "faq", "half": "v1"}
    shutil.rmtree(folder)
    indexes.look(3)
    assert not indexes


def test_a_version_published_while_it_watches_is_served(serving: Serving) -> None:
    with watched(serving.indexes):
        serving.publish("v1")
        wait_until(lambda: versions(serving.indexes) == {"news": "v1"})
        serving.publish("v2")
        wait_until(lambda: versions(serving.indexes) == {"news": "v2"})


def test_a_worker_starts_if_any_index_of_its_settings_can_be_served(serving: Serving, tmp_path: Path) -> None:
    for name, values in (("a", {"digest": "f" * 64}), ("b", {"count": 65}), ("good", {})):
        publish_version(tmp_path / name, serving.template, "v1", **values)
    for name, why in (("a", IndexMismatch), ("b", IndexCorrupt), ("c", IndexNotFound)):
        with pytest.raises(why, match=re.escape(str(tmp_path / name))):
            serving.from_settings(indexes=tmp_path / name)
    indexes = serving.from_settings(indexes=f"a={tmp_path / 'a'},good={tmp_path / 'good'}")
    assert (versions(indexes), set(indexes.errors)) == ({"good": "v1"}, {"a"})
    (tmp_path / "a").rename(serving.folder / "a")
    indexes = serving.from_settings(index_home=serving.folder)
    assert (dict(indexes), set(indexes.errors)) == ({}, {"a"})
    serving.publish("v2", "good")
    indexes = serving.from_settings(indexes=f"good={tmp_path / 'good'}", index_home=serving.folder)
    assert versions(indexes) == {"good": "v1"}  # a name in the settings has priority over a folder of that name


def test_searches_have_all_threads_that_the_worker_has(serving: Serving) -> None:
    indexes = serving.from_settings(2)
    for number in (2, 3):
        together = [Barrier(number, timeout=PATIENCE_S)] * number
        assert sorted(indexes._threads.map(Barrier.wait, together)) == [*range(number)]
        indexes.resize(3)


# Versions that cannot be served


def cut(version: Path) -> None:
    """Cut a file of the version short."""
    os.truncate(version / VECTORS, (version / VECTORS).stat().st_size // 2)


def of_another_model(version: Path) -> None:
    values = json.loads((version / MANIFEST).read_bytes()) | {"digest": "f" * 64}
    (version / MANIFEST).write_text(json.dumps(values))


def overwrite(path: Path) -> bytes:
    """Overwrite some bytes of a file in place; return the right contents."""
    right = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"?" * 9)
    return right


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, f"vectors.npy {WRONG}"),
        (of_another_model, "but this worker runs"),
        (shutil.rmtree, "manifest.json cannot be read"),
        (lambda version: (version / VECTORS).unlink(), "vectors.npy cannot be read (there is no such file)"),
    ],
)
def test_a_version_that_cannot_be_served_changes_nothing(
    news: Serving, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], why: str
) -> None:
    indexes, whole = news.indexes, news.folder / "news" / "whole"
    version = add_version(news.folder / "news", news.template, "v2")
    shutil.copytree(version, whole)
    damage(version)
    make_current(news.folder / "news", "v2")
    for now in (1, 4):
        indexes.look(now)
        assert versions(indexes) == {"news": "v1"}
        assert why in indexes.errors["news"]
    assert len([record for record in caplog.records if why in record.getMessage()]) == 1
    shutil.rmtree(version, ignore_errors=True)
    whole.rename(version)
    indexes.look(RETRY_AFTER_S)
    assert versions(indexes) == {"news": "v1"}
    indexes.look(1 + RETRY_AFTER_S)
    assert (versions(indexes), indexes.errors) == ({"news": "v2"}, {})


def test_a_version_is_withdrawn_until_its_files_are_right_again(
    opened: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients see the name of the index, and the log shows its folder."""
    caplog.set_level("INFO")
    indexes, path = opened.indexes, opened.v1 / DOCUMENTS
    opened.publish("v1", "other", digest="f" * 64)
    opened.publish("v1", "right")
    right = overwrite(path)
    indexes.check_files(0)
    fault = error(opened.reply_after(dict))
    assert fault.message.startswith(f"news/v1/documents.jsonl {WRONG}")
    assert indexes.errors["news"] == fault.message
    assert str(opened.folder) not in fault.message
    assert f"{path} {WRONG}" in caplog.text
    indexes.check_files(RETRY_AFTER_S)
    assert "opened version" not in caplog.text  # while the wrong file stays wrong, no other file is read again
    indexes.look(RETRY_AFTER_S)
    beat = about(opened.worker())
    assert {name: index["version"] for name, index in beat["indexes"].items()} == {"right": "v1"}
    assert beat["index_errors"].keys() == {"news", "other"}
    assert WRONG in beat["index_errors"]["news"]
    shutil.rmtree(opened.folder / "other")
    (opened.folder / "copy").write_bytes(right)
    (opened.folder / "copy").replace(path)
    indexes.check_files(2 * RETRY_AFTER_S - 1)
    assert WRONG in indexes.errors["news"]
    indexes.check_files(2 * RETRY_AFTER_S)
    indexes.look(2 * RETRY_AFTER_S)
    assert indexes.errors == {}
    indexes.check_files(2 * RETRY_AFTER_S)
    assert indexes["news"].files.is_done
    assert versions(indexes)["news"] == "v1"


def test_a_file_that_cannot_be_read_withdraws_nothing(opened: Serving) -> None:
    indexes, path = opened.indexes, opened.v1 / DOCUMENTS
    path.rename(away := opened.folder / "away")
    indexes.check_files(0)
    assert indexes.errors == {}
    assert indexes["news"].search(indexes["news"].vectors[:1], 1)
    away.rename(path)
    indexes.check_files(RETRY_AFTER_S - 1)
    files = indexes["news"].files
    files.check_rest(lambda: False)  # the check is no longer wanted
    assert not files.is_done
    indexes.check_files(RETRY_AFTER_S)
    assert files.is_done


@pytest.mark.usefixtures("opened")
def test_a_large_file_of_another_size_is_noticed_at_once(index_folder: Path, tmp_path: Path) -> None:
    version = publish_version(tmp_path, index_folder, "v1")
    os.truncate(version / DOCUMENTS, (version / DOCUMENTS).stat().st_size - 1)
    with pytest.raises(IndexCorrupt):
        Index.open_version(version)
    (version / DOCUMENTS).unlink()
    with pytest.raises(IndexCorrupt, match="cannot be read"):
        Index.open_version(version)


def test_a_job_whose_index_goes_meanwhile_gets_an_error(opened: Serving) -> None:
    def remove() -> None:
        shutil.rmtree(opened.folder / "news")
        opened.indexes.look(1)

    def withdraw() -> None:
        overwrite(opened.v1 / DOCUMENTS)
        opened.indexes.check_files(0)

    right = (opened.v1 / DOCUMENTS).read_bytes()
    assert error(opened.reply_after(withdraw)).code == "index_corrupt"
    assert not opened.queue.redis.exists(opened.queue.keys.dead)
    (opened.v1 / DOCUMENTS).write_bytes(right)
    opened.indexes.check_files(RETRY_AFTER_S)
    assert opened.indexes.errors == {}
    assert error(opened.reply_after(remove)).code == "unknown_index"


def test_the_kinds_of_fields_are_described(serving: Serving) -> None:
    fields = {"year": 2001, "tags": ["a"], "published": "2001-05-03", "is_new": True, "more": {"a": 1}}
    model, indexes = serving.encoder.model, serving.indexes
    for name, values in (("news", fields), ("many", {f"field{n:03}": n for n in range(200)})):
        vectors = np.eye(1, model.dimension, dtype=np.float32)
        write_version(serving.folder / name / "v1", [Document("1", "storm", values)], vectors, digest=model.digest)
        make_current(serving.folder / name, "v1")
    indexes.look(0)
    described = indexes.describe()
    kinds = {"year": "number", "tags": "keyword", "published": "date", "is_new": "boolean", "more": "stored"}
    assert described["news"]["fields"] == kinds
    assert list(described["many"]["fields"]) == [f"field{n:03}" for n in range(100)]
    assert (indexes["news"].columns.kinds, indexes.describe()) == (kinds, described)


class TestOpening:
    """An index is opened when it is searched."""

    def test_a_hundred_are_listed_and_none_is_open(self, news: Serving) -> None:
        indexes = news.indexes
        for number in range(99):
            (news.folder / f"n{number}").symlink_to(news.folder / "news")
        indexes.look(0)
        assert (len(indexes), num_open(indexes), maps_of(os.getpid(), news.v1)) == (100, 0, [])
        beat = about(worker := news.worker())
        assert {index["count"] for index in beat["indexes"].values()} == {64}
        jobs = [Search(["storm"], index=name, reply_to="me") for name in ("news", "n7", "n7")]
        news.queue.put("interactive", jobs)
        drive(worker)
        assert [len(found) for reply in news.queue.inbox("me").wait() for found in hits(reply)] == [5, 5, 5]
        assert (num_open(indexes), about(worker)["indexes"]) == (2, beat["indexes"])

    def test_an_index_that_the_settings_name_stays_open_when_its_folder_is_gone(self, news: Serving) -> None:
        indexes = news.from_settings(indexes=news.folder / "news")
        shutil.rmtree(news.folder / "news")
        indexes.look(time.monotonic())
        assert versions(indexes) == {"default": "v1"}
        assert "holds no index" in indexes.errors["default"]

    def test_an_index_that_cannot_be_opened_is_reported_and_tried_again(self, news: Serving) -> None:
        indexes, right = news.indexes, (news.v1 / VECTORS).read_bytes()
        cut(news.v1)
        assert (list(indexes.describe()), indexes.errors) == (["news"], {})
        fault = error(news.reply_after(dict))
        assert fault.code == "index_corrupt"
        assert fault.message.startswith(f"news/v1/vectors.npy {WRONG}")
        assert (indexes.describe(), list(indexes.errors)) == ({}, ["news"])
        with pytest.raises(IndexCorrupt):
            find_index(indexes, "news")
        (news.v1 / VECTORS).write_bytes(right)
        indexes.check_files(time.monotonic() + RETRY_AFTER_S)
        assert (versions(indexes), indexes.errors) == ({"news": "v1"}, {})

    def test_other_jobs_do_not_wait_and_a_job_may_expire_while_an_index_is_opened(self, news: Serving) -> None:
        path, queue, worker = news.publish("v1", "slow") / DOCUMENTS, news.queue, news.worker()
        news.indexes.look(0)
        path.rename(whole := path.with_suffix(".away"))
        os.mkfifo(path)  # opening waits until this pipe is written
        worker.clock.measure()  # otherwise the job would expire before it is admitted
        expiring = Search(["storm"], id="late", index="slow", reply_to="late", deadline=worker.clock.now() + 0.5)
        jobs = [Search(["storm"], id=name, index=name, reply_to=name) for name in ("slow", "news")]
        queue.put("interactive", [expiring, *jobs])
        wait_until(lambda: worker.step(block_s=0))
        wait_until(lambda: worker.step(block_s=0) or len(worker.scheduler.works) == 1)
        replies = [reply for name in ("news", "late") for reply in queue.inbox(name).wait()]
        assert [(reply.id, reply.status) for reply in replies] == [("news", "done"), ("late", "expired")]
        assert [work.job.id for work in worker.scheduler.works] == ["slow"]
        with path.open("wb") as pipe:
            data = whole.read_bytes()
            whole.replace(path)
            pipe.write(data)
        drive(worker)
        (reply,) = queue.inbox("slow").wait()
        assert [len(found) for found in hits(reply)] == [5]
