"""Pages of a search: together they are the whole list of hits, even if documents are added or deleted in between."""

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from made_documents import DIMENSION, apply
from test_search_modes import Scene, forty, refusal

from shoal.changes.change import Change
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index.search.paging import Cursor

#: More pages than any list of a test has.
MAX_PAGES = 1_000

QUERY = unit_vectors(1, DIMENSION, 1)[0]


def change(scene: Scene, added: list[Document], deleted: list[str], position: str = "1-1", seed: int = 2) -> None:
    """Change the index, with random vectors for the added documents."""
    vectors = unit_vectors(len(added), DIMENSION, seed)
    apply(scene.index, [Change(tuple(added), vectors, tuple(deleted), "d", 0.0)], position)


def pages(scene: Scene, cursor: str | None, k: int, **options: Any) -> Iterator[list[str]]:
    """Yield the ids of the hits of each page after a cursor."""
    for _ in range(MAX_PAGES):
        if cursor is None:
            return
        page = scene.answer(QUERY, k, cursor=cursor, **options)
        (cursor,) = page.cursors or [None]
        yield [hit["id"] for hit in page.hits[0]]
    pytest.fail("the pages have no end")


def first_page(scene: Scene, k: int = 10, **options: Any) -> tuple[list[str], str]:
    """Return the ids of the hits of a first page, and its cursor."""
    page = scene.answer(QUERY, k, cursor="", **options)
    (cursor,) = page.cursors or [""]
    return [hit["id"] for hit in page.hits[0]], cursor or ""


def test_a_document_that_is_added_or_deleted_between_two_pages_shifts_no_other(tmp_path: Path) -> None:
    scene = forty(tmp_path / "v1")
    whole = [hit["id"] for hit in scene.answer(QUERY, 40).hits[0]]
    _, cursor = first_page(scene)
    rest = scene.answer(np.nextafter(QUERY, np.float32(2)), 10, cursor=cursor).hits[0]
    assert [hit["id"] for hit in rest] == whole[10:20]  # although the last digits of scores have changed
    deleted = (whole[2], whole[9], whole[20])
    new = tuple(Document(one, "storm", {}) for one in ("new", "other"))
    apply(scene.index, [Change(new, np.stack([QUERY, QUERY]), deleted, "d", 0.0)])
    assert [*pages(scene, cursor, 40)] == [[one for one in whole[10:] if one not in deleted]]


def test_a_page_begins_where_the_one_before_ended_although_its_last_document_was_replaced(tmp_path: Path) -> None:
    scene = forty(tmp_path / "v1")
    apply(scene.index, [Change((Document("new", "storm", {}),), QUERY[None], (), "d", 0.0)])
    ids, cursor = first_page(scene, 1)
    assert ids == ["new"]
    apply(scene.index, [Change((Document("new", "rain", {}),), -QUERY[None], (), "d", 0.0)], "1-2")
    assert [*pages(scene, cursor, 50)] == [[hit["id"] for hit in scene.answer(QUERY, 50).hits[0]]]


@pytest.mark.parametrize("is_added", [False, True])
def test_a_page_in_the_order_of_a_field_begins_after_a_document_that_was_deleted_since(
    is_added: bool, tmp_path: Path
) -> None:
    scene = forty(tmp_path / "v1")
    if is_added:
        change(scene, [Document("9", "storm", {"n": 9})], [])
    ordered: dict[str, Any] = {"sort": [{"field": "n"}]}
    first, cursor = first_page(scene, 5, **ordered)
    page = scene.answer(QUERY, 5, cursor=cursor, **ordered)
    assert [*first, *(hit["id"] for hit in page.hits[0])] == [str(n) for n in range(10)]
    deleted = ["9"] if is_added else ["9", "3", "20"]
    change(scene, [], deleted, "1-2")
    (cursors,) = page.cursors or [None]
    assert [*pages(scene, cursors, 40, **ordered)] == [[str(n) for n in range(10, 40) if str(n) not in deleted]]


@pytest.mark.parametrize("added", ["w31 w31 w31 w31", "w59"])
def test_later_pages_keep_the_order_of_the_first_even_if_words_count(added: str, tmp_path: Path) -> None:
    texts = [f"w{n % 40} w{n % 7} w{n % 3}" for n in range(300)]
    documents = [Document(str(n), text, {}) for n, text in enumerate(texts)]
    scene = Scene.of(tmp_path / "v1", documents, unit_vectors(300, DIMENSION, 3), 290)
    hybrid: dict[str, Any] = {"mode": "hybrid", "text": "w31 w5 w2"}
    whole = [hit["id"] for hit in scene.answer(QUERY, 400, **hybrid).hits[0]]
    first, cursor = first_page(scene, **hybrid)
    deleted = [hit["id"] for hit in scene.answer(QUERY, 3, text="w31 w5 w2", mode="lexical").hits[0]]
    change(scene, [Document("last", added, {})], deleted, "1-2")
    later = [one for page in pages(scene, cursor, 50, **hybrid) for one in page if one != "last"]
    assert [*first, *later] == [*whole[:10], *(one for one in whole[10:] if one not in deleted)]


def test_later_pages_are_ranked_for_the_time_of_the_first_page(tmp_path: Path) -> None:
    documents = [Document(str(n), "storm", {"day": f"20{n:02}-01-01"}) for n in range(20)]
    scene = Scene.of(tmp_path / "v1", documents, unit_vectors(20, DIMENSION), 20)
    options: dict[str, Any] = {"boost": [{"field": "day", "weight": 5, "half_life_days": 30}], "explain": True}
    _, cursor = first_page(scene, 1, **options)
    at = datetime(2007, 1, 1, tzinfo=UTC).timestamp()
    earlier = replace(Cursor.unpack(cursor), now=at, row=7).pack()  # as if the document of that day came first
    answer = scene.answer(QUERY, 18, cursor=earlier, **options)
    (next_cursor,) = answer.cursors or [""]
    assert Cursor.unpack(next_cursor or "").now == at
    boosts = {hit["day"]: hit["explain"]["boost"] for hit in answer.hits[0]}
    assert boosts["2008-01-01"] == boosts["2006-01-01"] == pytest.approx(5 * 2 ** (-365 / 30))


def test_a_text_that_no_search_has_answered_is_refused(tmp_path: Path) -> None:
    cursor = Cursor("d", "v1", 10, 0.5, 7, "", 1e9, 2.0)
    assert Cursor.unpack(cursor.pack()) == cursor
    forged: list[dict[str, Any]] = [
        *({"num_shown": -1}, {"num_shown": 2**63}, {"row": -1}, {"row": "7"}),
        *({"score": math.nan}, {"best_bm25": 1e-300}),
    ]
    index = forty(tmp_path / "v1").index
    for text in (*(replace(cursor, **values).pack() for values in forged), "!", "gaFjkwECAw", "ä" * 10):
        said = refusal(index, Search(["a"], search=SearchOptions(cursor=text)), QUERY[None])
        assert said.startswith("cursor is ")
        assert "which no search has returned" in said


def test_a_page_after_a_row_that_the_version_does_not_have_is_counted(tmp_path: Path) -> None:
    scene, ordered = forty(tmp_path / "v1"), {"sort": [{"field": "n"}]}
    _, cursor = first_page(scene, 5, **ordered)
    forged = replace(Cursor.unpack(cursor), row=2**40).pack()
    assert [one for page in pages(scene, forged, 40, **ordered) for one in page] == [str(n) for n in range(4, 40)]


def test_the_pages_of_one_search_may_differ_in_their_traces_and_in_the_order_of_keys_alone(tmp_path: Path) -> None:
    scene = forty(tmp_path / "v1")
    ids, cursor = first_page(scene, filter={"and": [], "not": {"or": []}})
    options = SearchOptions(cursor=cursor, filter={"not": {"or": []}, "and": []})
    same: list[dict[str, Any]] = [{"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, {"fingerprint": "f"}, {"k": 9}, {}]
    same += [{"search": replace(options, fields=[], snippet={}, explain=True, facets=["n"], facets_top_n=5)}]
    for changed in same:
        (hits,) = scene.index.find(replace(Search(["storm"], search=options), **changed), QUERY[None]).answer().hits
        assert hits
        assert not {hit["id"] for hit in hits} & {*ids}
    others: list[dict[str, Any]] = [{"texts": ["b"]}, {"index": "other"}, {"search": replace(options, min_score=0.5)}]
    for changed in others:
        other = replace(Search(["storm"], search=options), **changed)
        assert "belongs to another search or index" in refusal(scene.index, other, QUERY[None])


@pytest.mark.parametrize("sort", [None, [{"field": "n", "order": "desc"}]])
@pytest.mark.parametrize("options", [{}, {"filter": {"n": {"lt": 20}}, "min_score": -1.0}])
def test_pages_go_on_in_a_version_that_is_published_meanwhile(
    options: dict[str, Any], sort: list[dict[str, str]] | None, tmp_path: Path
) -> None:
    options = {**options, "sort": sort}
    ids, cursor = first_page(forty(tmp_path / "v1"), **options)
    scene = forty(tmp_path / "v2")
    whole = [hit["id"] for hit in scene.answer(QUERY, 40, **options).hits[0]]
    assert whole[:10] == ids
    unpacked = replace(Cursor.unpack(cursor), row=39)  # another document has this row in this version
    assert [one for page in pages(scene, unpacked.pack(), 4, **options) for one in page] == whole[10:]
