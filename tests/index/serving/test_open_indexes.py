"""The indexes of a worker: it serves what is published, forgets other versions, and keeps one after an error."""

import json
import math
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from conftest import PATIENCE_S, wait_until
from index_versions import add_version, maps_of, publish_version, served_in, write_version
from queues import Queue, drive

import shoal_workers.index.files.checksums
from shoal.contract.replies import Reply
from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound, ShoalError, UnknownIndex
from shoal.operations import Search
from shoal.records.document import Document
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.manifest import DOCUMENTS, MANIFEST, VECTORS
from shoal_workers.index.index import Index
from shoal_workers.index.serving.open_indexes import RETRY_AFTER_S, OpenIndexes, find_index, watched
from shoal_workers.index.serving.served_version import Failure, ServedVersion
from shoal_workers.index.versions import make_current
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about


@pytest.fixture
def index_home(tmp_path: Path) -> Path:
    """Return a folder in which indexes appear."""
    (home := tmp_path / "indexes").mkdir()
    return home


@pytest.fixture
def news(index_home: Path, index_folder: Path) -> Path:
    """Return an index in that folder, with the version v1."""
    publish_version(index_home / "news", index_folder, "v1")
    return index_home / "news"


@pytest.fixture
def indexes(index_home: Path, encoder: Encoder) -> Iterator[OpenIndexes]:
    """Return the indexes in that folder."""
    with served_in(index_home, encoder.model) as indexes:
        yield indexes


def versions(indexes: OpenIndexes) -> dict[str, str]:
    """Return the served version of each index, according to its documents."""
    return {name: index.documents.document(0)["version"] for name, index in indexes.items()}


def test_a_new_version_takes_the_place_of_the_old_one(
    news: Path, indexes: OpenIndexes, index_folder: Path, encoder: Encoder
) -> None:
    indexes.look(0)
    assert versions(indexes) == {"news": "v1"}
    first = indexes["news"]
    indexes.look(1)
    assert indexes["news"] is first
    publish_version(news, index_folder, "v2")
    indexes.look(2)
    assert versions(indexes) == {"news": "v2"}
    query = first.vectors[:1]
    assert [hit["version"] for hit in first.search(query, 3)[0]] == ["v1"] * 3
    assert [hit["version"] for hit in indexes["news"].search(query, 3)[0]] == ["v2"] * 3
    assert indexes.errors == {}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_memory_of_the_old_version_is_given_back(news: Path, indexes: OpenIndexes, index_folder: Path) -> None:
    indexes.look(0)
    indexes["news"].search(indexes["news"].vectors[:1], 3)
    assert maps_of(os.getpid(), news / "v1")
    publish_version(news, index_folder, "v2")
    indexes.look(1)
    indexes.look(2)
    assert not maps_of(os.getpid(), news / "v1")
    assert maps_of(os.getpid(), news / "v2")


def test_indexes_come_and_go(index_home: Path, indexes: OpenIndexes, index_folder: Path) -> None:
    indexes.look(0)
    assert not indexes
    (index_home / "notes.txt").write_text("no index")
    add_version(index_home / "half", index_folder, "v1")
    for name in ("news", "faq", ".hidden", "with space"):
        publish_version(index_home / name, index_folder, name.strip(".").replace(" ", "-"))
    indexes.look(1)
    assert versions(indexes) == {"news": "news", "faq": "faq"}
    assert indexes.errors == {}
    shutil.rmtree(index_home / "news")
    make_current(index_home / "half", "v1")
    indexes.look(2)
    assert versions(indexes) == {"faq": "faq", "half": "v1"}
    shutil.rmtree(index_home)
    indexes.look(3)
    assert not indexes


def test_a_name_in_the_settings_goes_before_the_folder_of_that_name(
    news: Path, index_home: Path, index_folder: Path, tmp_path: Path, encoder: Encoder
) -> None:
    publish_version(tmp_path / "other", index_folder, "other")
    settings = Settings(indexes=f"news={tmp_path / 'other'}", index_home=str(index_home), home=str(tmp_path))
    indexes = OpenIndexes.from_settings(settings, encoder.model, 1)
    assert versions(indexes) == {"news": "other"}


def test_searches_have_all_threads_that_the_worker_has(tmp_path: Path, encoder: Encoder) -> None:
    indexes = OpenIndexes.from_settings(Settings(home=str(tmp_path)), encoder.model, 2)
    for number in (2, 3):
        together = [Barrier(number, timeout=PATIENCE_S)] * number
        assert sorted(indexes._threads.map(Barrier.wait, together)) == [*range(number)]
        indexes.resize(3)


def test_a_worker_starts_if_any_of_its_indexes_can_be_served(
    index_folder: Path, index_home: Path, tmp_path: Path, encoder: Encoder
) -> None:
    for name, values, error in (("a", {"digest": "f" * 64}, IndexMismatch), ("b", {"count": 65}, IndexCorrupt)):
        publish_version(tmp_path / name, index_folder, "v1", **values)
        with pytest.raises(error, match=re.escape(str(tmp_path / name))):
            OpenIndexes.from_settings(Settings(indexes=str(tmp_path / name), home=str(tmp_path)), encoder.model, 1)
    with pytest.raises(IndexNotFound, match=re.escape(str(tmp_path / "c"))):
        OpenIndexes.from_settings(Settings(indexes=str(tmp_path / "c"), home=str(tmp_path)), encoder.model, 1)
    publish_version(tmp_path / "good", index_folder, "v1")
    named = f"a={tmp_path / 'a'},good={tmp_path / 'good'}"
    indexes = OpenIndexes.from_settings(Settings(indexes=named, home=str(tmp_path)), encoder.model, 1)
    assert (versions(indexes), set(indexes.errors)) == ({"good": "v1"}, {"a"})
    (tmp_path / "a").rename(index_home / "a")
    indexes = OpenIndexes.from_settings(Settings(index_home=str(index_home), home=str(tmp_path)), encoder.model, 1)
    assert not indexes
    assert set(indexes.errors) == {"a"}


def cut(version: Path) -> None:
    """Cut a file of the version short."""
    data = (version / VECTORS).read_bytes()
    (version / VECTORS).write_bytes(data[: len(data) // 2])


def of_another_model(version: Path) -> None:
    """Give the manifest the digest of another model."""
    values = json.loads((version / MANIFEST).read_bytes()) | {"digest": "f" * 64}
    (version / MANIFEST).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "vectors.npy is not what was built"),
        (of_another_model, "but this worker runs"),
        (shutil.rmtree, "manifest.json cannot be read"),
    ],
)
def test_a_version_that_cannot_be_served_changes_nothing(
    news: Path,
    indexes: OpenIndexes,
    index_folder: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    why: str,
) -> None:
    indexes.look(0)
    version = add_version(news, index_folder, "v2")
    shutil.copytree(version, news / "whole")
    damage(version)
    make_current(news, "v2")
    for now in (1, 4):
        indexes.look(now)
        assert versions(indexes) == {"news": "v1"}
        assert why in indexes.errors["news"]
    assert len([record for record in caplog.records if why in record.getMessage()]) == 1
    shutil.rmtree(version, ignore_errors=True)
    (news / "whole").rename(version)
    indexes.look(RETRY_AFTER_S)
    assert versions(indexes) == {"news": "v1"}
    indexes.look(1 + RETRY_AFTER_S)
    assert (versions(indexes), indexes.errors) == ({"news": "v2"}, {})


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every file of an index count as large."""
    monkeypatch.setattr(shoal_workers.index.files.checksums, "LARGE_BYTES", 1)


def overwrite(path: Path) -> None:
    """Overwrite some bytes of a file in place."""
    with path.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"?" * 9)


def replace_by_pipe(path: Path) -> tuple[Path, Path]:
    """Put a pipe in place of a file; return the pipe, whose readers wait until it is written, and the file."""
    path.rename(whole := path.with_suffix(".away"))
    os.mkfifo(path)
    return path, whole


@pytest.mark.usefixtures("all_large")
def test_clients_see_the_name_of_an_index_and_the_log_its_folder(
    news: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    overwrite(news / "v1" / DOCUMENTS)
    indexes.look(0)
    assert indexes["news"].count
    indexes.check_files(0)
    fault = reply_after(queue, encoder, indexes, dict).error
    assert fault is not None
    assert fault.message.startswith("news/v1/documents.jsonl is not what was built")
    assert indexes.errors["news"] == fault.message
    assert str(news.parent) not in fault.message
    assert f"{news}/v1/documents.jsonl is not what was built" in caplog.text


@pytest.mark.usefixtures("all_large")
def test_a_version_that_was_withdrawn_is_served_when_its_files_are_right_again(
    news: Path, indexes: OpenIndexes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    right = (news / "v1" / DOCUMENTS).read_bytes()
    overwrite(news / "v1" / DOCUMENTS)
    indexes.look(0)
    assert indexes["news"].count
    indexes.check_files(0)
    indexes.check_files(RETRY_AFTER_S)
    assert caplog.text.count("opened version") == 1  # while the wrong file stays wrong, no other file is read again
    indexes.look(RETRY_AFTER_S)
    assert "is not what was built" in indexes.errors["news"]
    (news / "copy").write_bytes(right)
    (news / "copy").replace(news / "v1" / DOCUMENTS)
    indexes.check_files(2 * RETRY_AFTER_S - 1)
    assert "is not what was built" in indexes.errors["news"]
    indexes.check_files(2 * RETRY_AFTER_S)
    indexes.look(2 * RETRY_AFTER_S)
    assert indexes.errors == {}
    indexes.check_files(2 * RETRY_AFTER_S)
    assert indexes["news"].files.is_done
    assert versions(indexes) == {"news": "v1"}


@pytest.mark.usefixtures("news")
def test_a_failure_that_ends_meanwhile_harms_no_search(indexes: OpenIndexes, monkeypatch: pytest.MonkeyPatch) -> None:
    indexes.look(0)
    failures: list[Failure | None] = []
    removed = property(lambda _: failures.pop() if failures else None)  # as if the thread of checks removed it
    monkeypatch.setattr(ServedVersion, "failure", removed, raising=False)
    for find in (lambda: indexes.find("news"), lambda: indexes.errors["news"]):
        failures.append(Failure(IndexCorrupt("wrong"), None, 0))
        with suppress(IndexCorrupt):
            assert find() == "wrong"


def test_a_worker_with_too_few_files_does_not_take_a_copy_for_damaged(news: Path, encoder: Encoder) -> None:
    with served_in(news.parent, encoder.model, are_copies=True) as indexes:
        indexes.look(0)
        limits, lowest_free = resource.getrlimit(resource.RLIMIT_NOFILE), os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 3, limits[1]))
        try:
            with pytest.raises(IndexCorrupt, match="Too many open files"):
                indexes.find("news").result()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (news / "v1" / MANIFEST).exists()
        overwrite(news / "v1" / DOCUMENTS)
        indexes.check_files(math.inf)
        assert not (news / "v1" / MANIFEST).exists()


@pytest.mark.usefixtures("all_large")
def test_a_file_that_cannot_be_read_withdraws_nothing(news: Path, indexes: OpenIndexes) -> None:
    indexes.look(0)
    assert indexes["news"].count
    (news / "v1" / DOCUMENTS).rename(news / "away")
    indexes.check_files(0)
    assert indexes.errors == {}
    assert indexes["news"].search(indexes["news"].vectors[:1], 1)
    (news / "away").rename(news / "v1" / DOCUMENTS)
    indexes.check_files(RETRY_AFTER_S - 1)
    assert not indexes["news"].files.is_done
    indexes.check_files(RETRY_AFTER_S)
    assert indexes["news"].files.is_done


@pytest.mark.usefixtures("all_large")
def test_a_large_file_of_another_size_is_noticed_at_once(index_folder: Path, tmp_path: Path) -> None:
    version = publish_version(tmp_path, index_folder, "v1")
    (version / DOCUMENTS).write_bytes((version / DOCUMENTS).read_bytes()[:-1])
    with pytest.raises(IndexCorrupt):
        Index.open_version(version)
    (version / DOCUMENTS).unlink()
    with pytest.raises(IndexCorrupt, match="cannot be read"):
        Index.open_version(version)


def test_a_version_published_while_it_watches_is_served(
    index_home: Path, indexes: OpenIndexes, index_folder: Path
) -> None:
    with watched(indexes):
        publish_version(index_home / "news", index_folder, "v1")
        wait_until(lambda: versions(indexes) == {"news": "v1"})
        publish_version(index_home / "news", index_folder, "v2")
        wait_until(lambda: versions(indexes) == {"news": "v2"})


def test_an_unknown_name_is_refused_with_a_list_of_the_known_names(news: Path, indexes: OpenIndexes) -> None:
    with pytest.raises(UnknownIndex, match='no index "news": this worker serves none'):
        find_index(indexes, "news")
    indexes.look(0)
    assert find_index(indexes, "news").result() is indexes["news"]
    with pytest.raises(UnknownIndex, match="this worker serves news"):
        find_index(indexes, "x")


def reply_after(queue: Queue, encoder: Encoder, indexes: OpenIndexes, happens: Callable[[], object]) -> Reply:
    """Return the reply to a search, with an event between its admission and the search in the index."""
    worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096))
    job = Search(["storm", "rain"], index="news", reply_to=f"me-{happens.__name__}")
    queue.put("interactive", [job])
    worker.scheduler.add(worker.admission.take(worker.scheduler.room(), 0, []))
    happens()
    drive(worker)
    (reply,) = queue.inbox(f"me-{happens.__name__}").wait()
    return reply


def code_of(error: ShoalError | None) -> str:
    """Return the code of the error."""
    assert error
    return error.code


@pytest.mark.usefixtures("all_large")
def test_a_job_whose_index_goes_meanwhile_gets_an_error(
    news: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder
) -> None:
    def remove() -> None:
        shutil.rmtree(news)
        indexes.look(1)

    def withdraw() -> None:
        overwrite(news / "v1" / DOCUMENTS)
        indexes.check_files(0)

    right = (news / "v1" / DOCUMENTS).read_bytes()
    indexes.look(0)
    assert indexes["news"].count
    with_fault = reply_after(queue, encoder, indexes, withdraw).error
    assert code_of(with_fault) == "index_corrupt"
    assert not queue.redis.exists(queue.keys.dead)
    (news / "v1" / DOCUMENTS).write_bytes(right)
    indexes.check_files(RETRY_AFTER_S)
    assert indexes.errors == {}
    assert code_of(reply_after(queue, encoder, indexes, remove).error) == "unknown_index"


@pytest.mark.usefixtures("all_large")
def test_the_heartbeat_says_what_is_served_and_what_is_not(
    news: Path, index_home: Path, index_folder: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder
) -> None:
    publish_version(index_home / "other", index_folder, "v1", digest="f" * 64)
    publish_version(index_home / "spoilt", index_folder, "v1")
    indexes.look(0)
    assert indexes["spoilt"].count
    overwrite(index_home / "spoilt" / "v1" / DOCUMENTS)
    indexes.check_files(0)
    beat = about(Worker(queue.consumer(), encoder, indexes, Bucketing(4_096)))
    assert {name: index["version"] for name, index in beat["indexes"].items()} == {"news": "v1"}
    assert beat["index_errors"].keys() == {"other", "spoilt"}
    assert "is not what was built" in beat["index_errors"]["spoilt"]


def test_the_kinds_of_fields_are_described(index_home: Path, encoder: Encoder, indexes: OpenIndexes) -> None:
    fields = {"year": 2001, "tags": ["a"], "published": "2001-05-03", "is_new": True, "more": {"a": 1}}
    vectors = np.eye(1, encoder.model.dimension, dtype=np.float32)
    for name, values in (("news", fields), ("many", {f"field{n:03}": n for n in range(200)})):
        digest = encoder.model.digest
        write_version(index_home / name / "v1", [Document("1", "storm", values)], vectors, digest=digest)
        make_current(index_home / name, "v1")
    indexes.look(0)
    described = indexes.describe()
    kinds = {"year": "number", "tags": "keyword", "published": "date", "is_new": "boolean", "more": "stored"}
    assert described["news"]["fields"] == kinds
    assert list(described["many"]["fields"]) == [f"field{n:03}" for n in range(100)]
    assert (indexes["news"].columns.kinds, indexes.describe()) == (kinds, described)


class TestOpening:
    """An index is opened when it is searched, and closed after a while without a search."""

    @pytest.fixture
    def indexes(self, index_home: Path, encoder: Encoder) -> Iterator[OpenIndexes]:
        """Return the indexes in the folder, which are closed after a minute."""
        with served_in(index_home, encoder.model, idle_s=60) as indexes:
            yield indexes

    def test_a_hundred_are_listed_and_none_is_open(
        self, news: Path, index_home: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder
    ) -> None:
        for number in range(99):
            (index_home / f"n{number}").symlink_to(news)
        indexes.look(0)
        assert (len(indexes), indexes.num_open, maps_of(os.getpid(), news / "v1")) == (100, 0, [])
        worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096))
        beat = about(worker)
        assert {index["count"] for index in beat["indexes"].values()} == {64}
        jobs = [Search(["storm"], index=name, reply_to="me") for name in ("news", "n7", "n7")]
        queue.put("interactive", jobs)
        drive(worker)
        replies = queue.inbox("me").wait()
        assert [len(hits) for reply in replies for hits in reply.hits or ()] == [5, 5, 5]
        assert (indexes.num_open, about(worker)["indexes"]) == (2, beat["indexes"])

    def test_an_index_that_was_not_searched_for_a_while_is_closed_until_it_is(
        self, news: Path, indexes: OpenIndexes
    ) -> None:
        indexes.look(0)
        described, now_s = indexes.describe(), time.monotonic()
        indexes["news"].search(indexes["news"].vectors[:1], 3)
        indexes.look(now_s + 59)
        assert indexes.num_open == 1
        indexes.look(time.monotonic() + 60)
        assert (indexes.num_open, indexes.describe(), indexes.errors) == (0, described, {})
        assert maps_of(os.getpid(), news / "v1") == []
        assert versions(indexes) == {"news": "v1"}

    def test_an_index_that_the_settings_name_stays_open_when_its_folder_is_gone(
        self, index_folder: Path, tmp_path: Path, encoder: Encoder
    ) -> None:
        publish_version(tmp_path / "own", index_folder, "v1")
        settings = Settings(indexes=str(tmp_path / "own"), home=str(tmp_path), index_idle_minutes=1)
        indexes = OpenIndexes.from_settings(settings, encoder.model, 1)
        shutil.rmtree(tmp_path / "own")
        indexes.look(time.monotonic() + 61)
        assert versions(indexes) == {"default": "v1"}
        assert "holds no index" in indexes.errors["default"]

    def test_an_index_that_cannot_be_opened_is_reported_and_tried_again(
        self, news: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder
    ) -> None:
        right = (news / "v1" / VECTORS).read_bytes()
        cut(news / "v1")
        indexes.look(0)
        assert (list(indexes.describe()), indexes.errors) == (["news"], {})
        error = reply_after(queue, encoder, indexes, dict).error
        assert code_of(error) == "index_corrupt"
        assert str(error).startswith("news/v1/vectors.npy is not what was built")
        assert (indexes.describe(), list(indexes.errors)) == ({}, ["news"])
        with pytest.raises(IndexCorrupt):
            find_index(indexes, "news")
        (news / "v1" / VECTORS).write_bytes(right)
        indexes.check_files(time.monotonic() + RETRY_AFTER_S)
        assert (versions(indexes), indexes.errors) == ({"news": "v1"}, {})

    def test_a_missing_file_is_reported_at_once(self, news: Path, indexes: OpenIndexes) -> None:
        (news / "v1" / VECTORS).unlink()
        indexes.look(0)
        assert not indexes
        assert "vectors.npy cannot be read (there is no such file)" in indexes.errors["news"]

    def test_other_jobs_do_not_wait_while_an_index_is_opened(
        self, news: Path, index_home: Path, index_folder: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder
    ) -> None:
        version = publish_version(index_home / "slow", index_folder, "v1")
        indexes.look(0)
        path, whole = replace_by_pipe(version / DOCUMENTS)
        worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096))
        jobs = [Search(["storm"], id=name, index=name, reply_to=name) for name in ("slow", "news")]
        queue.put("interactive", jobs)
        wait_until(lambda: worker.step(block_s=0))
        assert [reply.id for reply in queue.inbox("news").wait()] == ["news"]
        assert [work.job.id for work in worker.scheduler.works] == ["slow"]
        with path.open("wb") as pipe:
            data = whole.read_bytes()
            whole.replace(path)
            pipe.write(data)
        drive(worker)
        (reply,) = queue.inbox("slow").wait()
        assert [len(hits) for hits in reply.hits or ()] == [5]

    def test_a_job_that_expires_while_its_index_is_opened_gets_an_error(
        self, news: Path, indexes: OpenIndexes, queue: Queue, encoder: Encoder
    ) -> None:
        indexes.look(0)
        path, whole = replace_by_pipe(news / "v1" / DOCUMENTS)
        opening = find_index(indexes, "news")
        worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096))
        worker.clock.measure()  # otherwise the job has expired before it is admitted
        job = Search(["storm"], index="news", reply_to="me", deadline=worker.clock.now() + 0.5)
        queue.put("interactive", [job])
        drive(worker)
        (reply,) = queue.inbox("me").wait()
        assert code_of(reply.error) == "expired"
        with path.open("wb"):
            whole.replace(path)
        with pytest.raises(IndexCorrupt):
            opening.result()


@pytest.mark.usefixtures("all_large")
def test_a_check_ends_when_it_is_not_wanted_any_more(news: Path, indexes: OpenIndexes) -> None:
    indexes.look(0)
    index = indexes["news"]
    index.files.check_rest(lambda: False)
    assert not index.files.is_done
    shutil.rmtree(news / "v1")
    with pytest.raises(FileNotFoundError):
        index.files.check_rest()
