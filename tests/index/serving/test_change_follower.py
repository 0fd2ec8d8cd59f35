"""Served indexes follow their changes in Redis: over a switch of versions, while Redis is away, past bad entries."""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import msgpack
import numpy as np
import pytest
from blocking import ChangeLog
from conftest import wait_until
from index_versions import publish_version, served_in
from queues import Queue, drive, step_while

from shoal.changes.change import Change
from shoal.changes.change_log import START, Tail
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.operations import Search
from shoal.records.document import Document
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.index.serving import version_opener
from shoal_workers.index.serving.open_indexes import OpenIndexes, _follow, watched
from shoal_workers.loop.worker import Worker


class Log(ChangeLog):
    """The logs of a pool whose Redis can be away. The object counts the commands to Redis."""

    is_away = False
    fault: type[ShoalError] = Unavailable
    num_commands = 0

    def positions(self) -> dict[str, str]:
        """Return the position of the last change of each index."""
        self._count()
        return super().positions()

    def since(self, index: str, position: str) -> Tail:
        """Return the changes after a position."""
        self._count()
        return super().since(index, position)

    def _count(self) -> None:
        self.num_commands += 1
        if self.is_away:
            raise self.fault("Redis does not answer")


@pytest.fixture
def log(queue: Queue) -> Log:
    """Return the logs of the test's own pool."""
    return Log(queue.broker, queue.keys)


@pytest.fixture
def index_home(tmp_path: Path, index_folder: Path) -> Path:
    """Return a folder with the index news and its published version v1."""
    publish_version(tmp_path / "indexes" / "news", index_folder, "v1")
    return tmp_path / "indexes"


@pytest.fixture
def indexes(index_home: Path, encoder: Encoder, log: Log) -> Iterator[OpenIndexes]:
    """Return the indexes in that folder, opened."""
    with served_in(index_home, encoder.model, change_log=log) as indexes:
        indexes.look(0)
        assert indexes["news"].count
        yield indexes


def change(index: Index, added: str = "", deleted: str = "", **others: Any) -> Change:
    """Return a change that adds documents, with the vectors of the index's first documents, and deletes others."""
    documents = tuple(Document(one, f"text {one}", {}) for one in added.split())
    vectors = np.array(index.vectors[: len(documents)])
    return replace(Change(documents, vectors, tuple(deleted.split()), index.manifest.digest, 0.0), **others)


def ids(index: Index) -> set[str]:
    """Return the ids of all documents that can be found."""
    before = index.count
    (hits,) = index.search(np.array(index.vectors[:1]), 1_000)
    assert len(hits) in (before, index.count)  # a thread may add documents meanwhile
    return {str(hit["id"]) for hit in hits}


def test_added_documents_are_found_and_deleted_ones_are_not(indexes: OpenIndexes, log: Log) -> None:
    before = ids(index := indexes["news"])
    log.append("news", change(index, "a b", "0 1"))
    position = log.append("news", change(index, "c 2", "a"))
    log.append("other", change(index, "d"))
    assert ids(index) == before
    indexes.follow()
    assert indexes["news"] is index
    assert ids(index) == before - {"0", "1"} | {"b", "c"}
    assert (index.count, index.live.position, indexes.errors) == (len(before), position, {})
    (hits,) = index.search(np.array(index.vectors[:1]), 3)
    assert {hit["id"]: hit["text"] for hit in hits}["c"] == "text c"


def test_without_changes_one_command_is_enough_for_all_indexes(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path
) -> None:
    for n in range(9):
        publish_version(index_home / f"other{n}", index_folder, "v1")
    log.append("news", change(indexes["news"], "a"))
    indexes.look(1)
    assert len([index.count for index in indexes.values()]) == indexes.num_open == 10
    for expected in (2, 1, 1):  # the first time, the change is read as well
        log.num_commands = 0
        indexes.follow()
        assert log.num_commands == expected
    indexes.look(2)
    assert log.num_commands == 1


def test_an_index_that_is_not_open_is_opened_for_its_changes(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path
) -> None:
    for name in ("faq", "quiet"):
        publish_version(index_home / name, index_folder, "v1")
    indexes.look(1)
    indexes.follow()
    assert indexes.num_open == 1
    position = log.append("faq", change(indexes["news"], "a b", "0"))
    indexes.follow()
    wait_until(lambda: indexes.describe()["faq"]["changes_through"] == position)
    assert (indexes.num_open, indexes.describe()["faq"]["num_changes"]) == (2, 3)
    assert indexes.describe()["faq"]["count"] == indexes["news"].count + 1
    indexes.follow()
    assert {"a", "b", "0"} & ids(indexes["faq"]) == {"a", "b"}


def test_an_index_that_was_closed_has_its_changes_when_it_is_opened_again(
    index_home: Path, encoder: Encoder, log: Log
) -> None:
    with served_in(index_home, encoder.model, change_log=log, idle_s=60) as indexes:
        indexes.look(0)
        log.append("news", change(indexes["news"], "a", "0"))
        indexes.follow()
        described = indexes.describe()
        for close_after_s in (61, 122):
            indexes.look(time.monotonic() + close_after_s)
            indexes.follow()  # there is no new change to open it for
            assert (indexes.num_open, indexes.describe()) == (0, described)
            assert {"a", "0"} & ids(indexes["news"]) == {"a"}
        later = change(indexes["news"], "b")
        indexes.look(time.monotonic() + 183)
        log.append("news", later)
        assert "b" in ids(indexes["news"])


def test_a_new_version_has_all_changes_before_it_is_served(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path
) -> None:
    old = indexes["news"]
    folded = log.append("news", change(old, "a", "0"))
    log.append("news", change(old, "b", "1"))
    indexes.follow()
    log.append("news", change(old, "c", "2"))
    publish_version(index_home / "news", index_folder, "v2", changes_through=folded)
    indexes.look(1)
    new = indexes["news"]
    assert new is not old
    assert ids(new) == (ids(old) - {"2", "a"}) | {"0", "c"}
    log.append("news", change(old, "d"))
    indexes.follow()
    assert "d" in ids(new) - ids(old)


def test_while_redis_is_away_the_former_version_stays(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = indexes["news"]
    log.append("news", change(old, "a"))
    indexes.follow()
    log.is_away = True
    publish_version(index_home / "news", index_folder, "v2")
    publish_version(index_home / "faq", index_folder, "v1")
    for now in (1, 2):
        indexes.look(now)
        indexes.follow()
    assert (sorted(indexes), indexes["news"]) == (["faq", "news"], old)
    assert indexes.errors == {"news": "Redis does not answer"}
    with pytest.raises(Unavailable):
        indexes["faq"]
    assert len(caplog.messages) <= 4  # one warning for each index, and one of following; later ones are not repeated
    log.is_away = False
    indexes.look(3)
    assert (indexes["news"].folder.name, indexes.errors) == ("v2", {})
    assert "a" in ids(indexes["news"])
    assert "a" not in ids(indexes["faq"])


def test_a_search_waits_for_an_index_that_cannot_be_opened_while_redis_is_away(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path, queue: Queue, encoder: Encoder
) -> None:
    publish_version(index_home / "faq", index_folder, "v1")
    indexes.look(1)
    worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096))
    queue.put("interactive", [Search(["storm"], index="faq", reply_to="me")])
    log.is_away, log.num_commands = True, 0
    assert step_while(worker, lambda: log.num_commands < 3) == 0  # the changes are read again and again
    log.is_away = False
    drive(worker)
    (reply,) = queue.inbox("me").wait()
    assert [len(hits) for hits in reply.hits or ()] == [5]


@pytest.mark.parametrize("fault", [Unavailable, Overloaded])
def test_a_worker_waits_for_redis_before_it_serves(
    index_folder: Path, encoder: Encoder, log: Log, tmp_path: Path, fault: type[ShoalError]
) -> None:
    class Returning(Event):
        """An event; while a caller waits for it, Redis comes back."""

        num_waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.num_waits += 1
            log.is_away = self.num_waits < 3
            return False

    log.fault, log.is_away, waiting = fault, True, Returning()
    settings = Settings(indexes=str(index_folder), home=str(tmp_path))
    indexes = OpenIndexes.from_settings(settings, encoder.model, 1, log, waiting)
    assert (list(indexes), waiting.num_waits) == (["default"], 3)
    log.is_away = True
    (stopped := Event()).set()
    assert not OpenIndexes.from_settings(settings, encoder.model, 1, log, stopped)


@pytest.mark.parametrize("wrong", [{"digest": "0" * 64}, {"vectors": np.full((1, 32), np.nan, np.float32)}])
def test_a_change_that_does_not_fit_is_reported_and_harms_nothing(
    indexes: OpenIndexes, log: Log, queue: Queue, wrong: dict[str, Any]
) -> None:
    index = indexes["news"]
    one = change(index, "odd", **wrong)
    fields = {"documents": [{"id": "odd", "text": "x"}], "vectors": one.vectors.tobytes(), "deleted": ["0"]}
    packed = msgpack.packb(fields | {"digest": one.digest, "made_at": 0.0})
    log.append("news", change(index, "b"))
    queue.redis.xadd(queue.keys.changes("news"), {"change": packed, "num": 10**9, "size": 1})
    log.append("news", change(index, "a"))
    indexes.follow()
    assert {"a", "odd", "0"} & ids(index) == {"a", "0"}
    assert "changes of news are not searched" in indexes.errors["news"]
    indexes.look(1)
    assert "build the index" in indexes.errors["news"]


def test_an_entry_with_the_last_possible_id_harms_no_search(indexes: OpenIndexes, log: Log, queue: Queue) -> None:
    log.append("news", change(indexes["news"], "a"))
    packed = change(indexes["news"], "b").pack()
    queue.redis.xadd(queue.keys.changes("news"), {"change": packed}, id=f"{2**64 - 1}-{2**64 - 1}")
    indexes.follow()
    assert {"a", "b"} <= ids(indexes["news"])
    with pytest.raises(Unavailable, match="another program wrote a key of Shoal's"):
        log.append("news", change(indexes["news"], "c"))
    indexes.follow()
    assert indexes.errors == {}


def test_changes_that_redis_has_lost_are_found_no_more(indexes: OpenIndexes, log: Log, queue: Queue) -> None:
    before = ids(index := indexes["news"])
    log.append("news", change(index, "a", "0"))
    indexes.follow()
    queue.redis.delete(queue.keys.changes("news"), queue.keys.changed)
    indexes.follow()
    assert (ids(index), index.live.position) == (before, START)
    queue.redis.xadd(queue.keys.changes("news"), {"change": change(index, "b").pack()}, id="1-1")
    queue.redis.hset(queue.keys.changed, "news", "1-1 1 1 0 0")
    indexes.follow()
    assert ids(index) == before | {"b"}


def test_changes_that_redis_has_no_more_are_reported(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path
) -> None:
    """A worker may serve an old copy of an index, or a folder that was restored."""
    index = indexes["news"]
    positions = [log.append("news", change(index, one)) for one in "abc"]
    log.fold("news", positions[1], [positions[1]])
    publish_version(index_home / "news", index_folder, "v2", changes_through=positions[0])
    indexes.look(1)
    assert ids(indexes["news"]) & {*"abc"} == {"c"}
    assert f"does not have the changes after {START} up to {positions[1]}" in indexes.errors["news"]
    publish_version(index_home / "news", index_folder, "v3", changes_through=positions[1])
    indexes.look(2)
    assert indexes.errors == {}


def test_a_fault_that_has_gone_is_no_longer_reported(indexes: OpenIndexes, log: Log, queue: Queue) -> None:
    queue.redis.set(queue.keys.changes("news"), "x")
    queue.redis.hset(queue.keys.changed, "news", "1-1 1 1 0 0")
    indexes.follow()
    assert "holds something else" in indexes.errors["news"]
    queue.redis.delete(queue.keys.changes("news"), queue.keys.changed)
    log.append("news", change(indexes["news"], "a"))
    indexes.follow()
    assert "a" in ids(indexes["news"])
    assert indexes.errors == {}
    log.num_commands = 0
    indexes.follow()
    assert log.num_commands == 1  # nothing is read again


def test_an_index_whose_changes_fail_stops_no_other_one(
    indexes: OpenIndexes, log: Log, index_home: Path, index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(index_home / "faq", index_folder, "v1")
    indexes.look(1)
    for name in ("news", "faq"):
        log.append(name, change(indexes[name], "a"))
    first, second = indexes
    said = list[Any]()

    def fail(ids: Collection[str]) -> Any:
        raise MemoryError

    monkeypatch.setattr(indexes[first].documents, "rows_of", fail)
    monkeypatch.setattr(version_opener.log, "exception", lambda *words: said.append(words))
    indexes.follow()
    assert len(said) == 1
    assert "a" in ids(indexes[second])
    assert list(indexes.errors) == [first]
    monkeypatch.undo()
    log.append(first, change(indexes[first], "b"))
    indexes.follow()
    assert {"a", "b"} <= ids(indexes[first])
    assert indexes.errors == {}


def test_the_threads_of_a_worker_follow(indexes: OpenIndexes, log: Log) -> None:
    with watched(indexes):
        log.append("news", change(indexes["news"], "a"))
        wait_until(lambda: "a" in ids(indexes["news"]))


def test_workers_that_are_started_together_read_at_different_moments(
    indexes: OpenIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Noting(Event):
        """An event that is set when a caller waits for it the third time."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 3

    monkeypatch.setattr("random.uniform", lambda least, most: 0.25 * most)
    monkeypatch.setattr(indexes, "stopping", Noting())
    _follow(indexes)
    assert waits == [0.25, 1.0, 1.0]
