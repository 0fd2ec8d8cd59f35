"""Searches by fields: filters, facets, boosts and orders, with many documents, odd values, changes and old layouts."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changes import unit_vectors
from field_documents import Fields
from index_versions import write_version
from made_documents import DIMENSION, apply, near_ties
from test_search_modes import NO_VECTORS, Scene

from shoal.changes.change import Change
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index.index import Index

QUERY = unit_vectors(1, DIMENSION, 99)[0]


def scene_of(folder: Path, fields: list[Fields], num_added: int = 0, num_deleted: int = 0) -> Scene:
    """Return an index of documents with these fields. The last ones were added and the first ones deleted later."""
    documents = [Document(str(n), f"text {n}", one) for n, one in enumerate(fields)]
    deleted = [str(n) for n in range(num_deleted)]
    return Scene.of(folder, documents, near_ties(len(documents), 0), len(documents) - num_added, deleted)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Return an index of 3,000 documents with few values, of which 100 were added and 50 deleted later."""
    fields: list[Fields] = [{"year": n % 3, "tag": f"t{n % 7}", "and": "x"} for n in range(3_000)]
    return scene_of(tmp_path_factory.mktemp("many") / "v1", fields, 100, 50)


@pytest.mark.parametrize("wanted", [{"year": 2}, {"not": {"tag": "t0"}}, {"tag": "t6", "year": 0}])
def test_many_documents_are_filtered_whatever_part_matches(many: Scene, wanted: dict[str, Any]) -> None:
    expected = many.expected(QUERY, filter=wanted)
    for k in (1, 1_000):
        assert many.answer(QUERY, k, filter=wanted).hits == [expected[:k]]


def test_a_boost_by_the_largest_numbers_is_exact(tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "v1", [{"size": -1.7e308}, {"size": 0}, {"size": 1.7e308}, {}])
    hits = scene.answer(QUERY, boost=[{"field": "size", "weight": 10}], explain=True).hits[0]
    assert {hit["id"]: hit["explain"]["boost"] for hit in hits} == {"0": 0, "1": 5, "2": 10, "3": 0}
    assert all(hit["score"] == pytest.approx(hit["explain"]["cosine"] + hit["explain"]["boost"]) for hit in hits)


def test_the_least_score_is_compared_alike_with_and_without_an_order(tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "v1", [{"year": 1}])
    score = scene.answer(QUERY).hits[0][0]["score"]
    for least, num in ((score, 1), (math.nextafter(score, 2), 0)):
        for order in (None, [{"field": "year"}]):
            assert len(scene.answer(QUERY, min_score=least, sort=order).hits[0]) == num


def test_facets_count_the_documents_that_may_be_in_each_list(many: Scene) -> None:
    like = Search([], search=SearchOptions(like=["60"], facets=["year"], cursor=""))
    found = many.index.find(like, NO_VECTORS).answer()
    assert found.totals == [len(many.made.documents) - 1]
    assert found.facets
    assert found.facets[0]["year"]["num_documents"] == len(many.made.documents) - 1
    words = Search(["60", "61"], search=SearchOptions(mode="lexical", facets=["year"], filter={"tag": "t4"}))
    answer = many.index.find(words, near_ties(2, 0)).answer()
    one = {"num_documents": 1, "values": [{"value": 0, "count": 1}]}
    assert (answer.totals, answer.facets) == ([1, 0], [{"year": one}, {"year": {"num_documents": 0, "values": []}}])


@pytest.mark.parametrize(
    "options",
    [
        {"filter": {"tag": {"in": ["t1", "t2"]}}},
        {"sort": [{"field": "year", "order": "desc"}]},
        {"min_score": 0.5},
        {"group_by": "tag", "group_size": 2},
        {"mode": "hybrid"},
        {"like": ["60"]},
    ],
)
def test_facets_may_count_only_the_best_documents(many: Scene, options: dict[str, Any]) -> None:
    texts = [] if "like" in options else ["text storm"]
    vectors = QUERY[None][: len(texts)]
    ungrouped = {"group_by": ""} | {name: value for name, value in options.items() if not name.startswith("group")}
    for num in (1, 7, 1_000):
        (hits,) = many.index.find(Search(texts, k=num, search=SearchOptions(**ungrouped)), vectors).answer().hits
        counted = Search(texts, k=2, search=SearchOptions(**options, cursor="", facets=["year"], facets_top_n=num))
        found = many.index.find(counted, vectors).answer()
        counts = sorted(Counter(hit["year"] for hit in hits).items(), key=lambda item: (-item[1], item[0]))
        values = [{"value": year, "count": n} for year, n in counts]
        assert found.facets == [{"year": {"num_documents": len(hits), "values": values}}]
        (cursor,) = found.cursors or [None]
        later = replace(counted, search=replace(counted.search, cursor=cursor))
        assert cursor is None or many.index.find(later, vectors).answer().facets == found.facets


def test_numbers_and_booleans_written_as_texts_are_equal_in_hits_and_facets(tmp_path: Path) -> None:
    kinds = {"year": "number", "new": "boolean", "tag": "keyword", "day": "date"}
    written: list[Fields] = [
        {"year": "2001", "new": "true", "tag": "7", "day": "2001"},
        {"year": ["2.50", ""], "new": None, "tag": 7, "day": "2001-05-03T00:00"},
        {"year": 7, "new": "FALSE"},
    ]
    documents, vectors = [Document(str(n), "storm", one) for n, one in enumerate(written)], near_ties(3, 0)
    write_version(tmp_path / "v1", documents[:2], vectors[:2], kinds=kinds)
    index = Index.open_version(tmp_path / "v1")
    apply(index, [Change((documents[2],), vectors[2:], (), "d", 0.0)])
    expected: dict[str, Fields] = {
        "0": {"year": 2001, "new": True, "tag": "7", "day": "2001"},
        "1": {"year": [2.5, ""], "new": None, "tag": 7, "day": "2001-05-03T00:00"},
        "2": {"year": 7, "new": False},
    }
    asked = Search(["storm"], search=SearchOptions(facets=["year", "new"]))
    (facets,) = index.find(asked, vectors[:1]).answer().facets or [{}]
    for hits in (index.search(vectors[:1], 3)[0], index.find(asked, vectors[:1]).answer().hits[0]):
        assert {hit["id"]: {name: hit[name] for name in expected[hit["id"]]} for hit in hits} == expected
        assert isinstance(next(hit["year"] for hit in hits if hit["id"] == "0"), int)
    assert [one["value"] for one in facets["year"]["values"]] == [2.5, 7, 2001]
    assert [one["value"] for one in facets["new"]["values"]] == [False, True]


def test_fields_that_only_added_documents_have_can_be_used(tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "v1", [{"year": n} for n in range(9)])
    with pytest.raises(InvalidRequest, match=r'filter\.size: there is no field "size"'):
        scene.answer(QUERY, filter={"size": 7})
    new = Document("new", "text", {"size": 7, "year": "soon"})
    apply(scene.index, [Change((new,), QUERY[None], (), "d", 0.0)])
    assert [hit["id"] for hit in scene.answer(QUERY, filter={"size": {"gt": 6}}).hits[0]] == ["new"]
    assert scene.answer(QUERY, sort=[{"field": "size"}]).hits[0][0]["id"] == "new"
    assert len(scene.answer(QUERY, 50, filter={"year": {"exists": False}}).hits[0]) == 1
    assert scene.answer(QUERY, filter={"size": {"exists": False}}, cursor="").totals == [9]
