"""Pages of a search: together they are the whole list of hits."""

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


def test_a_page_begins_behind_as_many_hits_as_were_shown_whatever_changes(tmp_path: Path) -> None:
    scene = forty(tmp_path / "v1")
    _, cursor = first_page(scene)
    new = tuple(Document(one, "storm", {}) for one in ("new", "other"))
    apply(scene.index, [Change(new, np.stack([QUERY, -QUERY]), ("3",), "d", 0.0)])
    orders: list[dict[str, Any]] = [{}, {"sort": [{"field": "n"}]}]
    for options in orders:
        whole = [hit["id"] for hit in scene.answer(QUERY, 50, **options).hits[0]]
        cursor = first_page(scene, **options)[1] if options else cursor
        assert [one for page in pages(scene, cursor, 7, **options) for one in page] == whole[10:]


def test_later_pages_are_ranked_for_the_time_of_the_first_page(tmp_path: Path) -> None:
    documents = [Document(str(n), "storm", {"day": f"20{n:02}-01-01"}) for n in range(20)]
    scene = Scene.of(tmp_path / "v1", documents, unit_vectors(20, DIMENSION), 20)
    options: dict[str, Any] = {"boost": [{"field": "day", "weight": 5, "half_life_days": 30}], "explain": True}
    _, cursor = first_page(scene, 1, **options)
    at = datetime(2007, 1, 1, tzinfo=UTC).timestamp()
    earlier = replace(Cursor.unpack(cursor), now=at).pack()  # as if that day's document came first
    answer = scene.answer(QUERY, 18, cursor=earlier, **options)
    (next_cursor,) = answer.cursors or [""]
    assert Cursor.unpack(next_cursor or "").now == at
    boosts = {hit["day"]: hit["explain"]["boost"] for hit in answer.hits[0]}
    assert boosts["2008-01-01"] == boosts["2006-01-01"] == pytest.approx(5 * 2 ** (-365 / 30))


def test_a_text_that_no_search_has_answered_is_refused(tmp_path: Path) -> None:
    cursor = Cursor("d", 10, 1e9)
    assert Cursor.unpack(cursor.pack()) == cursor
    forged: list[dict[str, Any]] = [{"num_shown": -1}, {"num_shown": 2**63}, {"num_shown": "7"}, {"now": math.nan}]
    index = forty(tmp_path / "v1").index
    for text in (*(replace(cursor, **values).pack() for values in forged), "!", "gaFjkwECAw", "ä" * 10):
        said = refusal(index, Search(["a"], search=SearchOptions(cursor=text)), QUERY[None])
        assert said.startswith("cursor is ")
        assert "which no search has returned" in said


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
