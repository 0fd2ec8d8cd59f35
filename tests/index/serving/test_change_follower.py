"""Served indexes follow their changes in Redis: over a switch of versions, while Redis is away, past bad entries."""

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
from test_open_indexes import num_open

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
        self._count()
        return super().positions()

    def since(self, index: str, position: str) -> Tail:
        self._count()
        return super().since(index, position)

    def _count(self) -> None:
        self.num_commands += 1
        if self.is_away:
            raise self.fault("Redis does not answer")


class Following:
    """The indexes in a folder, which follow their changes. The index `news` is open, in its version v1."""

    def __init__(self, home: Path, template: Path, queue: Queue, log: Log, indexes: OpenIndexes):
        self.home, self.template, self.queue, self.log, self.indexes = home, template, queue, log, indexes

    @property
    def news(self) -> Index:
        return self.indexes["news"]

    def publish(self, version: str, name: str = "news", **manifest: Any) -> None:
        publish_version(self.home / name, self.template, version, **manifest)

    def change(self, added: str = "", deleted: str = "", **others: Any) -> Change:
        """Return a change that adds documents, with the vectors of the index's first documents, and deletes others."""
        documents = tuple(Document(one, f"text {one}", {}) for one in added.split())
        vectors = np.array(self.news.vectors[: len(documents)])
        return replace(Change(documents, vectors, tuple(deleted.split()), self.news.manifest.digest, 0.0), **others)

    def append(self, added: str = "", deleted: str = "", name: str = "news", **others: Any) -> str:
        """Append a change to the log of an index; return its position."""
        return self.log.append(name, self.change(added, deleted, **others))

    def lose_log(self) -> None:
        self.queue.redis.delete(self.queue.keys.changes("news"), self.queue.keys.changed)


@pytest.fixture
def log(queue: Queue) -> Log:
    return Log(queue.broker, queue.keys)


@pytest.fixture
def following(tmp_path: Path, index_folder: Path, encoder: Encoder, queue: Queue, log: Log) -> Iterator[Following]:
    publish_version((home := tmp_path / "indexes") / "news", index_folder, "v1")
    with served_in(home, encoder.model, change_log=log) as indexes:
        indexes.look(0)
        assert indexes["news"].count
        yield Following(home, index_folder, queue, log, indexes)


def ids(index: Index) -> set[str]:
    """Return the ids of all documents that can be found."""
    before = index.count
    (hits,) = index.search(np.array(index.vectors[:1]), 1_000)
    assert len(hits) in (before, index.count)  # a thread may add documents meanwhile
    return {str(hit["id"]) for hit in hits}


def test_added_documents_are_found_and_deleted_ones_are_not(following: Following) -> None:
    before = ids(index := following.news)
    following.append("a b", "0 1")
    position = following.append("c 2", "a")
    following.append("d", name="other")
    assert ids(index) == before
    following.indexes.follow()
    assert following.news is index
    assert ids(index) == before - {"0", "1"} | {"b", "c"}
    assert (index.count, index.live.position, following.indexes.errors) == (len(before), position, {})
    (hits,) = index.search(np.array(index.vectors[:1]), 3)
    assert {hit["id"]: hit["text"] for hit in hits}["c"] == "text c"


def test_without_changes_one_command_is_enough_for_all_indexes(following: Following) -> None:
    indexes = following.indexes
    for n in range(9):
        following.publish("v1", f"other{n}")
    following.append("a")
    indexes.look(1)
    assert len([index.count for index in indexes.values()]) == num_open(indexes) == 10
    for expected in (2, 1, 1):  # the first time, the change is read as well
        following.log.num_commands = 0
        indexes.follow()
        assert following.log.num_commands == expected
    indexes.look(2)
    assert following.log.num_commands == 1


def test_an_index_that_is_not_open_is_opened_for_its_changes(following: Following) -> None:
    indexes = following.indexes
    for name in ("faq", "quiet"):
        following.publish("v1", name)
    indexes.look(1)
    indexes.follow()
    assert num_open(indexes) == 1
    position = following.append("a b", "0", "faq")
    indexes.follow()
    wait_until(lambda: indexes.describe()["faq"]["changes_through"] == position)
    assert (num_open(indexes), indexes.describe()["faq"]["num_changes"]) == (2, 3)
    assert indexes.describe()["faq"]["count"] == following.news.count + 1
    indexes.follow()
    assert {"a", "b", "0"} & ids(indexes["faq"]) == {"a", "b"}


def test_a_new_version_has_all_changes_before_it_is_served(following: Following) -> None:
    old, indexes = following.news, following.indexes
    folded = following.append("a", "0")
    following.append("b", "1")
    indexes.follow()
    following.append("c", "2")
    following.publish("v2", changes_through=folded)
    indexes.look(1)
    assert following.news is not old
    assert ids(following.news) == (ids(old) - {"2", "a"}) | {"0", "c"}
    following.append("d")
    indexes.follow()
    assert "d" in ids(following.news) - ids(old)


def test_while_redis_is_away_the_former_version_stays_and_searches_of_new_indexes_wait(
    following: Following, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    old, indexes, queue, log = following.news, following.indexes, following.queue, following.log
    following.append("a")
    indexes.follow()
    log.is_away = True
    following.publish("v2")
    following.publish("v1", "faq")
    for now in (1, 2):
        indexes.look(now)
        indexes.follow()
    assert (sorted(indexes), following.news) == (["faq", "news"], old)
    assert indexes.errors == {"news": "Redis does not answer"}
    with pytest.raises(Unavailable):
        indexes["faq"]
    assert len(caplog.messages) == 2  # one warning about the index and one about following; neither is repeated
    worker = Worker(queue.consumer(), encoder, indexes, Bucketing(4_096))
    queue.put("interactive", [Search(["storm"], index="faq", reply_to="me")])
    log.num_commands = 0
    assert step_while(worker, lambda: log.num_commands < 3) == 0  # the changes are read again and again
    log.is_away = False
    drive(worker)
    (reply,) = queue.inbox("me").wait()
    assert [len(hits) for hits in reply.hits or ()] == [5]
    indexes.look(3)
    assert (following.news.folder.name, indexes.errors) == ("v2", {})
    assert "a" in ids(following.news)
    assert "a" not in ids(indexes["faq"])


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
def test_a_change_that_does_not_fit_is_reported_and_harms_nothing(following: Following, wrong: dict[str, Any]) -> None:
    queue, one = following.queue, following.change("odd", **wrong)
    fields = {"documents": [{"id": "odd", "text": "x"}], "vectors": one.vectors.tobytes(), "deleted": ["0"]}
    packed = msgpack.packb(fields | {"digest": one.digest, "made_at": 0.0})
    following.append("b")
    queue.redis.xadd(queue.keys.changes("news"), {"change": packed, "num": 10**9, "size": 1})
    following.append("a")
    following.indexes.follow()
    assert {"a", "odd", "0"} & ids(following.news) == {"a", "0"}
    assert "changes of news are not searched" in following.indexes.errors["news"]
    following.indexes.look(1)
    assert "build the index" in following.indexes.errors["news"]


def test_an_entry_with_the_last_possible_id_harms_no_search(following: Following) -> None:
    following.append("a")
    key, last = following.queue.keys.changes("news"), f"{2**64 - 1}-{2**64 - 1}"
    following.queue.redis.xadd(key, {"change": following.change("b").pack()}, id=last)
    following.indexes.follow()
    assert {"a", "b"} <= ids(following.news)
    with pytest.raises(Unavailable, match="another program wrote a key of Shoal's"):
        following.append("c")
    following.indexes.follow()
    assert following.indexes.errors == {}


def test_changes_that_redis_has_lost_are_no_longer_found(following: Following) -> None:
    before, redis, keys = ids(index := following.news), following.queue.redis, following.queue.keys
    following.append("a", "0")
    following.indexes.follow()
    following.lose_log()
    following.indexes.follow()
    assert (ids(index), index.live.position) == (before, START)
    redis.xadd(keys.changes("news"), {"change": following.change("b").pack()}, id="1-1")
    redis.hset(keys.changed, "news", "1-1 1 1 0 0")
    following.indexes.follow()
    assert ids(index) == before | {"b"}


def test_changes_that_redis_lacks_are_reported(following: Following) -> None:
    """A worker may serve an old copy of an index, or a folder that was restored."""
    positions = [following.append(one) for one in "abc"]
    following.log.fold("news", positions[1], [positions[1]])
    following.publish("v2", changes_through=positions[0])
    following.indexes.look(1)
    assert ids(following.news) & {*"abc"} == {"c"}
    said = f"does not have the changes after {START} up to {positions[1]}"
    assert said in following.indexes.errors["news"]
    following.publish("v3", changes_through=positions[1])
    following.indexes.look(2)
    assert following.indexes.errors == {}


def test_a_fault_that_has_gone_is_no_longer_reported(following: Following) -> None:
    following.queue.redis.set(following.queue.keys.changes("news"), "x")
    following.queue.redis.hset(following.queue.keys.changed, "news", "1-1 1 1 0 0")
    following.indexes.follow()
    assert "holds something else" in following.indexes.errors["news"]
    following.lose_log()
    following.append("a")
    following.indexes.follow()
    assert "a" in ids(following.news)
    assert following.indexes.errors == {}
    following.log.num_commands = 0
    following.indexes.follow()
    assert following.log.num_commands == 1  # no change is read again


def test_an_index_whose_changes_fail_stops_no_other_one(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = following.indexes
    following.publish("v1", "faq")
    indexes.look(1)
    first, second = indexes
    for name in (first, second):
        following.append("a", name=name)
        assert indexes[name].count
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
    following.append("b", name=first)
    indexes.follow()
    assert {"a", "b"} <= ids(indexes[first])
    assert indexes.errors == {}


def test_the_threads_of_workers_follow_at_different_moments(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(following.indexes):
        following.append("a")
        wait_until(lambda: "a" in ids(following.news))
    waits: list[float | None] = []

    class Noting(Event):
        """An event that is set when a caller waits for it the third time."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 3

    monkeypatch.setattr("random.uniform", lambda least, most: 0.25 * most)
    monkeypatch.setattr(following.indexes, "stopping", Noting())
    _follow(following.indexes)
    assert waits == [0.25, 1.0, 1.0]
