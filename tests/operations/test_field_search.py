"""Searches that filter, sort and count by fields answer exactly what looking at each document gives."""

import math
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from field_documents import BOOSTS, DOCUMENTS, FILTERS, KINDS, SORTS, Fields, in_order, matches
from hypothesis import given
from hypothesis import strategies as st
from index_versions import make_older, write_version
from numpy.typing import NDArray

from shoal.changes.change import Change
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_fields import parse_boosts
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index.index import Index
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.search.boosts import boosts_of
from shoal_workers.index.search.pages import Cursor

Vectors = NDArray[np.float32]

DIMENSION = 8


def vectors_of(count: int, seed: int) -> Vectors:
    """Return vectors of which many are equal or differ in their last bits."""
    few = unit_vectors(5, DIMENSION, seed)
    vectors = few[np.random.default_rng(seed).integers(len(few), size=count)]
    vectors[::3, 0] = np.nextafter(vectors[::3, 0], np.float32(2))
    return vectors


class Made:
    """An index of documents, of which the last ones were added to it, and the same documents in a list."""

    def __init__(self, folder: Path, fields: list[Fields], num_added: int, num_deleted: int, seed: int):
        documents = [Document(str(n), f"text {n}", one) for n, one in enumerate(fields)]
        vectors, count = vectors_of(len(documents), seed), len(documents) - num_added
        write_version(folder, documents[:count], vectors[:count], kinds=KINDS)
        self.index = Index.open_version(folder)
        deleted = tuple(str(n) for n in range(num_deleted))
        change = Change(tuple(documents[count:]), vectors[count:], deleted, "d", 0.0)
        if num_added or deleted:
            self.index.live = self.index.live.after([change], "1-1", self.index.rows_of)
        self.documents, self.vectors = documents[num_deleted:], vectors[num_deleted:]

    def answer(self, query: Vectors, k: int = 10, **options: Any) -> SearchAnswer:
        """Return the answer to a search for one vector."""
        return self.index.answer(Search(["storm"], k=k, search=SearchOptions(**options)), query[None])

    def expected(self, query: Vectors, **options: Any) -> list[dict[str, Any]]:
        """Return all hits, by looking at each document."""
        scores = np.vecdot(self.vectors, query)
        if boost := options.get("boost"):
            # The numbers themselves are those that test_selection.py compares with looking at each document.
            boosts = boosts_of(parse_boosts(boost), self.index.fields_at(self.index.live), 0.0)
            scores += np.concatenate([boosts.rows, boosts.added])[boosts.rows.size + boosts.added.size - len(scores) :]
        least = options.get("min_score", -np.inf)
        numbers = [
            n
            for n, one in enumerate(self.documents)
            if matches(options.get("filter") or {}, one.fields) and scores[n] >= least
        ]
        fields, of_these = [self.documents[n].fields for n in numbers], [float(scores[n]) for n in numbers]
        order = in_order(options.get("sort") or [], fields, of_these)
        found = [(self.documents[numbers[n]], of_these[n]) for n in order]
        return [{"id": one.id, "score": score, "text": one.text, **one.fields} for one, score in found]


@given(
    st.lists(DOCUMENTS, min_size=2, max_size=40),
    st.none() | FILTERS,
    st.none() | SORTS,
    st.none() | BOOSTS,
    st.sampled_from([None, -0.2, 0.3]),
    st.data(),
)
def test_hits_are_those_of_looking_at_each_document(
    fields: list[Fields],
    wanted: dict[str, Any] | None,
    sort: list[dict[str, str]] | None,
    boost: list[dict[str, Any]] | None,
    least: float | None,
    data: st.DataObject,
) -> None:
    num_added = data.draw(st.integers(0, len(fields) - 1))
    num_deleted = data.draw(st.integers(0, len(fields) - num_added))
    given = {"filter": wanted, "sort": sort, "boost": boost, "min_score": least}
    options = {name: value for name, value in given.items() if value is not None}
    k, query = data.draw(st.sampled_from([1, 3, 50])), unit_vectors(1, DIMENSION, 99)[0]
    with tempfile.TemporaryDirectory() as folder:
        made = Made(Path(folder) / "v1", fields, num_added, num_deleted, data.draw(st.integers(0, 1_000)))
        expected = made.expected(query, **options)
        assert made.answer(query, k, **options).hits == [expected[:k]]
        assert pages(made, query, k, **options) == expected


def pages(made: Made, query: Vectors, k: int, **options: Any) -> list[dict[str, Any]]:
    """Return the hits of all pages."""
    hits, cursor = [], ""
    num_matching = len(made.expected(query, filter=options.get("filter")))
    while True:
        answer = made.answer(query, k, cursor=cursor, **options)
        assert answer.cursors is not None
        assert answer.totals == [num_matching]
        hits += answer.hits[0]
        if not (cursor := answer.cursors[0] or ""):
            return hits


def many(tmp_path: Path) -> Made:
    """Return an index of 3,000 documents with three values in turn, of which 100 were added and 50 deleted."""
    fields: list[Fields] = [{"year": n % 3, "tag": f"t{n % 7}", "and": "x"} for n in range(3_000)]
    return Made(tmp_path / "v1", fields, 100, 50, 0)


@pytest.mark.parametrize(
    "wanted",
    [
        {"year": 2},
        {"year": {"gte": 0}},
        {"year": 9},
        {"year": 1, "tag": {"in": ["t1", "t2"]}},
        {"not": {"tag": "t0"}},
        {"tag": "t6", "year": 0},
    ],
)
def test_many_documents_are_filtered_whatever_part_is_left(tmp_path: Path, wanted: dict[str, Any]) -> None:
    made = many(tmp_path)
    for query in made.vectors[:3]:
        for k in (1, 100, 1_000):
            assert made.answer(query, k, filter=wanted).hits == [made.expected(query, filter=wanted)[:k]]


def test_groups_and_likeness_are_filtered_too(tmp_path: Path) -> None:
    made = many(tmp_path)
    query = made.vectors[0]
    hits = made.answer(query, 50, filter={"year": 1}, group_by="tag").hits[0]
    firsts: dict[str, dict[str, Any]] = {}
    for hit in made.expected(query, filter={"year": 1}):
        firsts.setdefault(hit["tag"], hit)
    assert hits == list(firsts.values())
    job = Search([], k=5, search=SearchOptions(like=["53"], filter={"year": 53 % 3}))
    (hits,) = made.index.answer(job, np.empty((0, DIMENSION), np.float32)).hits
    expected = [hit["id"] for hit in made.expected(made.vectors[3], filter={"year": 2}) if hit["id"] != "53"]
    assert [hit["id"] for hit in hits] == expected[:5]


def test_recency_is_that_of_the_first_page_on_all_pages(tmp_path: Path) -> None:
    made = many(tmp_path)
    boost = [{"field": "year", "weight": 2, "half_life": 0.5, "origin": 1}]
    query = made.vectors[0]
    hits = made.answer(query, 20, boost=boost, explain=True).hits[0]
    assert {hit["year"] for hit in hits} == {1}
    assert all(hit["score"] == pytest.approx(hit["explain"]["cosine"] + hit["explain"]["boost"]) for hit in hits)
    first = made.answer(query, 5, boost=boost, cursor="")
    assert first.cursors is not None
    assert abs(Cursor.unpack(first.cursors[0] or "").now - time.time()) < 60
    second = made.answer(query, 5, boost=boost, cursor=first.cursors[0])
    assert second.cursors is not None
    assert Cursor.unpack(second.cursors[0] or "").now == Cursor.unpack(first.cursors[0] or "").now


def test_later_pages_are_ranked_as_of_the_time_of_the_first(tmp_path: Path) -> None:
    fields: list[Fields] = [{"day": f"20{n:02}-01-01"} for n in range(20)]
    made = Made(tmp_path / "v1", fields, 0, 0, 1)
    boost = [{"field": "day", "weight": 5, "half_life_days": 30}]
    query = made.vectors[0]
    (cursor,) = made.answer(query, 1, boost=boost, cursor="").cursors or [""]
    at = datetime(2007, 1, 1, tzinfo=UTC).timestamp()
    earlier = replace(Cursor.unpack(cursor or ""), now=at, row=7).pack()  # the document of that day was the first hit
    (hits,) = made.answer(query, 20, boost=boost, cursor=earlier, explain=True).hits
    boosts = {hit["day"]: hit["explain"]["boost"] for hit in hits}
    assert len(boosts) == 19
    assert boosts["2008-01-01"] == boosts["2006-01-01"] == pytest.approx(5 * 2 ** (-365 / 30))


def test_groups_stand_where_the_best_of_their_hits_does_after_a_second_stage(tmp_path: Path) -> None:
    made = many(tmp_path)
    options: dict[str, Any] = {"group_by": "year", "group_size": 4, "fields": []}
    query, scores = made.vectors[0], [0.1, 0.9, 0.2, 0.3, 0.8, 0.7, 0.75, 0.72, 0.5, 0.95, 0.4, 0.05]
    ids = [hit["id"] for hit in made.answer(query, 3, **options).hits[0]]
    job = Search(["storm"], k=2, search=SearchOptions(rerank={"top_n": 3}, **options))
    stage = made.index.find(job, query[None])
    assert len(stage.pairs) == len(ids) == len(scores)
    expected = [(ids[n], scores[n]) for n in (9, 8, 10, 11, 1, 3, 2, 0)]
    assert [(hit["id"], hit["score"]) for hit in stage.answer(scores).hits[0]] == expected


def test_a_boost_by_the_largest_numbers_is_exact(tmp_path: Path) -> None:
    fields: list[Fields] = [{"size": -1.7e308}, {"size": 0}, {"size": 1.7e308}, {}]
    made = Made(tmp_path / "v1", fields, 0, 0, 0)
    hits = made.answer(made.vectors[0], boost=[{"field": "size", "weight": 10}], explain=True).hits[0]
    assert {hit["id"]: hit["explain"]["boost"] for hit in hits} == {"0": 0, "1": 5, "2": 10, "3": 0}


def test_the_least_score_is_compared_alike_with_and_without_an_order(tmp_path: Path) -> None:
    made = Made(tmp_path / "v1", [{"year": 1}], 0, 0, 0)
    query = unit_vectors(1, DIMENSION, 99)[0]
    score = made.answer(query).hits[0][0]["score"]
    for least, num in ((score, 1), (math.nextafter(score, 2), 0)):
        for order in (None, [{"field": "year"}]):
            assert len(made.answer(query, min_score=least, sort=order).hits[0]) == num


def test_facets_are_counted_for_each_list(tmp_path: Path) -> None:
    made = many(tmp_path)
    options: dict[str, Any] = {"facets": ["year", "tag"], "filter": {"tag": {"in": ["t1", "t2"]}}}
    expected = made.expected(made.vectors[0], **options)
    answer = made.answer(made.vectors[0], 1, **options)
    (facets,) = answer.facets or [{}]
    assert answer.totals == [len(expected)]
    assert facets["tag"] == {
        "num_documents": len(expected),
        "values": sorted(
            ({"value": tag, "count": sum(hit["tag"] == tag for hit in expected)} for tag in ("t1", "t2")),
            key=lambda value: (-int(value["count"]), value["value"]),
        ),
    }
    assert [value["count"] for value in facets["year"]["values"]] == sorted(
        (sum(hit["year"] == year for hit in expected) for year in range(3)), reverse=True
    )


def test_facets_are_of_the_documents_that_may_be_in_the_list(tmp_path: Path) -> None:
    made, none = many(tmp_path), np.empty((0, DIMENSION), np.float32)
    like = Search([], search=SearchOptions(like=["60"], facets=["year"], cursor=""))
    found = made.index.answer(like, none)
    assert found.totals == [len(made.documents) - 1]
    assert found.facets
    assert found.facets[0]["year"]["num_documents"] == len(made.documents) - 1
    words = Search(["60"], search=SearchOptions(mode="lexical", facets=["year"]))
    counted = made.index.answer(words, made.vectors[:1]).facets
    assert counted == [{"year": {"num_documents": 1, "values": [{"value": 0, "count": 1}]}}]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filter": {"tag": {"in": ["t1", "t2"]}}},
        {"sort": [{"field": "year", "order": "desc"}]},
        {"min_score": 0.5},
        {"group_by": "tag", "group_size": 2},
        {"mode": "hybrid"},
        {"like": ["60"]},
    ],
)
@pytest.mark.parametrize("num", [1, 7, 1_000])
def test_facets_may_be_of_the_best_documents_alone(tmp_path: Path, options: dict[str, Any], num: int) -> None:
    made = many(tmp_path)
    texts = [] if "like" in options else ["text storm"]
    ungrouped = {"group_by": ""} | {name: value for name, value in options.items() if not name.startswith("group")}
    best = Search(texts, k=num, search=SearchOptions(**ungrouped))
    counted = Search(texts, k=2, search=SearchOptions(**options, cursor="", facets=["year"], facets_top_n=num))
    vectors = made.vectors[: len(texts)]
    (hits,), found = made.index.answer(best, vectors).hits, made.index.answer(counted, vectors)
    years = Counter(hit["year"] for hit in hits if hit.get("year") is not None)
    expected = [{"value": year, "count": n} for year, n in sorted(years.items(), key=lambda item: (-item[1], item[0]))]
    assert found.facets == [{"year": {"num_documents": years.total(), "values": expected}}]
    (cursor,) = found.cursors or [None]
    later = replace(counted, search=replace(counted.search, cursor=cursor))
    assert cursor is None or made.index.answer(later, vectors).facets == found.facets


def test_numbers_and_booleans_that_are_written_as_texts_are_the_same_in_hits_and_facets(tmp_path: Path) -> None:
    kinds = {"year": "number", "new": "boolean", "tag": "keyword", "day": "date"}
    written: list[Fields] = [
        {"year": "2001", "new": "true", "tag": "7", "day": "2001"},
        {"year": ["2.50", ""], "new": None, "tag": 7, "day": "2001-05-03T00:00"},
        {"year": 7, "new": "FALSE"},
    ]
    documents, vectors = [Document(str(n), "storm", one) for n, one in enumerate(written)], vectors_of(3, 0)
    write_version(tmp_path / "v1", documents[:2], vectors[:2], kinds=kinds)
    index = Index.open_version(tmp_path / "v1")
    index.live = index.live.after([Change((documents[2],), vectors[2:], (), "d", 0.0)], "1-1", index.rows_of)
    expected: dict[str, Fields] = {
        "0": {"year": 2001, "new": True, "tag": "7", "day": "2001"},
        "1": {"year": [2.5, ""], "new": None, "tag": 7, "day": "2001-05-03T00:00"},
        "2": {"year": 7, "new": False},
    }
    asked = Search(["storm"], search=SearchOptions(facets=["year", "new"]))
    (facets,) = index.answer(asked, vectors[:1]).facets or [{}]
    for hits in (index.search(vectors[:1], 3)[0], index.answer(asked, vectors[:1]).hits[0]):
        assert {hit["id"]: {name: hit[name] for name in expected[hit["id"]]} for hit in hits} == expected
        assert isinstance(next(hit["year"] for hit in hits if hit["id"] == "0"), int)
    assert [one["value"] for one in facets["year"]["values"]] == [2.5, 7, 2001]
    assert [one["value"] for one in facets["new"]["values"]] == [False, True]


def test_fields_that_only_added_documents_have(tmp_path: Path) -> None:
    made = many(tmp_path)
    change = Change((Document("new", "text", {"size": 7, "year": "soon"}),), made.vectors[:1], (), "d", 0.0)
    live = made.index.live
    made.index.live = live.after([change], "1-2", made.index.rows_of)
    query = made.vectors[0]
    assert [hit["id"] for hit in made.answer(query, filter={"size": {"gt": 6}}).hits[0]] == ["new"]
    assert made.answer(query, sort=[{"field": "size"}]).hits[0][0]["id"] == "new"
    assert len(made.answer(query, 50, filter={"year": {"exists": False}}).hits[0]) == 1
    assert made.answer(query, filter={"size": {"exists": False}}, cursor="").totals == [len(made.documents)]
    made.index.live = live
    with pytest.raises(InvalidRequest, match=r'filter\.size: there is no field "size"'):
        made.answer(query, filter={"size": 7})


@pytest.mark.parametrize("options", [{"filter": {"year": 1}}, {"sort": [{"field": "year"}]}, {"facets": ["year"]}])
def test_a_version_of_an_older_layout_has_no_fields(tmp_path: Path, options: dict[str, Any]) -> None:
    vectors = unit_vectors(3, DIMENSION)
    write_version(tmp_path / "v1", [Document(str(n), "text", {"year": 1}) for n in range(3)], vectors)
    make_older(tmp_path / "v1", 4)
    index = Index.open_version(tmp_path / "v1")
    assert len(index.search(vectors[:1], 2)[0]) == 2
    with pytest.raises(InvalidRequest, match="built before searches could look at fields: build the index again"):
        index.answer(Search(["storm"], search=SearchOptions(**options)), vectors[:1])
