"""All pages of a search come from one version of an index, even if another version is published in between."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blocking import ChangeLog
from index_versions import maps_of, publish_version, served_in
from queues import Queue, drive

from shoal.changes.change import Change
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.index.search.paging import Cursor
from shoal_workers.index.serving.open_indexes import MAX_PINNED, PINNED_S, OpenIndexes, find_index
from shoal_workers.loop.worker import Worker


@pytest.fixture
def news(tmp_path: Path, index_folder: Path) -> Path:
    """Return an index with the version v1."""
    publish_version(folder := tmp_path / "indexes" / "news", index_folder, "v1")
    return folder


@pytest.fixture
def indexes(news: Path, encoder: Encoder) -> Iterator[OpenIndexes]:
    """Return the served indexes."""
    with served_in(news.parent, encoder.model) as indexes:
        indexes.look(0)
        yield indexes


def cursor_of(version: str) -> str:
    """Return a cursor of a version."""
    return Cursor("d", version, 1, 0.5, 1, "", "news").pack()


def replies(queue: Queue) -> dict[str, Reply]:
    """Return the replies so far, by the ids of their jobs."""
    return {reply.id: reply for reply in queue.inbox("me").wait()}


def find_version(indexes: OpenIndexes, version: str) -> Index:
    """Return the version that a cursor names, once it is open."""
    return find_index(indexes, "news", cursor_of(version)).result()


def refusal(indexes: OpenIndexes, version: str) -> str:
    """Return the message with which a version is refused."""
    try:
        find_version(indexes, version)
    except InvalidRequest as error:
        return error.message
    return ""


def test_the_next_page_is_of_the_version_of_the_page_before(
    news: Path, indexes: OpenIndexes, index_folder: Path, encoder: Encoder, queue: Queue
) -> None:
    worker = Worker(queue.consumer(), encoder, indexes, Bucketing(256))
    job = Search(["storm"], k=2, index="news", reply_to="me", search=SearchOptions(cursor=""))
    queue.put("interactive", [job])
    drive(worker)
    first = replies(queue)[job.id]
    publish_version(news, index_folder, "v2")
    indexes.look(1)
    assert first.cursors is not None
    later = replace(job, id="later", search=SearchOptions(cursor=first.cursors[0]))
    whole = replace(job, id="whole", k=4, search=SearchOptions())
    queue.put("interactive", [later, whole])
    drive(worker)
    found = replies(queue)
    assert (first.index_version, found["later"].index_version, found["whole"].index_version) == ("v1", "v1", "v2")
    first_page, later_page, all_hits = ((reply.hits or [[]])[0] for reply in (first, found["later"], found["whole"]))
    assert [hit["id"] for hit in (*first_page, *later_page)] == [hit["id"] for hit in all_hits]
    assert {hit["version"] for hit in later_page} == {"v1"}


def test_a_version_is_closed_once_no_page_of_it_was_asked_for_for_a_while(
    news: Path, indexes: OpenIndexes, index_folder: Path
) -> None:
    for name in ("v2", "v3"):
        publish_version(news, index_folder, name)
        indexes.look(1)
    indexes.look(1)
    assert not maps_of(os.getpid(), news / "v1")
    now = time.monotonic()
    assert find_version(indexes, "v1").manifest.version == "v1"
    assert find_version(indexes, "v1") is find_version(indexes, "v1")
    indexes.look(now + PINNED_S - 5)
    assert maps_of(os.getpid(), news / "v1")
    indexes.look(now + 2 * PINNED_S)
    assert not maps_of(os.getpid(), news / "v1")


def test_few_versions_are_open_at_a_time_and_none_again_and_again(
    news: Path, indexes: OpenIndexes, index_folder: Path
) -> None:
    names = [f"v{n}" for n in range(2, MAX_PINNED + 4)]
    for name in names:
        publish_version(news, index_folder, name)
    indexes.look(1)
    first = names[:MAX_PINNED]
    opened = [find_version(indexes, name) for name in first]
    assert "begin with an empty cursor, or try again in a minute" in refusal(indexes, names[MAX_PINNED])
    again = [find_version(indexes, name) for name in first]
    assert [one is two for one, two in zip(opened, again, strict=True)] == [True] * MAX_PINNED
    del opened, again
    indexes.look(time.monotonic() + PINNED_S)
    assert find_version(indexes, names[MAX_PINNED]).manifest.version == names[MAX_PINNED]


def test_a_cursor_of_another_index_is_refused(indexes: OpenIndexes) -> None:
    cursor = Cursor("d", "v1", 10, 0.5, 7, "", "faq").pack()
    with pytest.raises(InvalidRequest, match='cursor is of the index "faq", and index is "news": name that index'):
        find_index(indexes, "news", cursor)


def test_versions_that_are_not_there_are_refused_and_take_no_place(news: Path, indexes: OpenIndexes) -> None:
    (news / "half-removed").mkdir()
    gone = [f"gone{n}" for n in range(2 * MAX_PINNED)]
    for version in ("half-removed", "../news/v1", ".building", "", "x" * 200, *gone):
        assert "no longer kept" in refusal(indexes, version), version


def test_a_version_that_cannot_be_opened_fails_its_own_search_alone(
    indexes: OpenIndexes, encoder: Encoder, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_version(name: str, folder: Path) -> Index:
        raise MemoryError(f"{name} {folder}")

    monkeypatch.setattr(indexes._opener, "open_pinned", open_version)
    worker = Worker(queue.consumer(), encoder, indexes, Bucketing(256))
    search = SearchOptions(cursor=cursor_of("v0"))
    jobs = [Search(["storm"], index="news", reply_to="me", search=one) for one in (search, SearchOptions())]
    queue.put("interactive", jobs)
    drive(worker)
    found = replies(queue)
    assert len((found[jobs[1].id].hits or [[]])[0]) == 5
    failed = found[jobs[0].id].error
    assert failed is not None
    assert failed.code == "internal"


def test_changes_are_found_in_the_version_of_a_cursor(
    news: Path, index_folder: Path, encoder: Encoder, queue: Queue
) -> None:
    log = ChangeLog(queue.broker, queue.keys)
    with served_in(news.parent, encoder.model, change_log=log) as indexes:
        indexes.look(0)
        publish_version(news, index_folder, "v2")
        indexes.look(1)
        vector = np.array(indexes["news"].vectors[:1])
        for position in ("before", "after"):
            document = Document(position, "new", {})
            log.append("news", Change((document,), vector, (), encoder.model.digest, 0.0))
            indexes.follow()
            assert position in find_version(indexes, "v1").live.ids
