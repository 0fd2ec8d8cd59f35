"""The options of a search: which values they take, and how jobs carry them."""

from dataclasses import replace
from typing import Any

import pytest

from shoal import operations
from shoal.errors import InvalidRequest, TooLarge
from shoal.operations import Search
from shoal.operations.search_options import PLAIN, SEARCH_DEFAULTS, SearchOptions

REFUSED: dict[str, list[Any]] = {
    "mode": ["sparse", None, ["dense"]],
    "alpha": [-0.1, 1.5, True, "half", float("nan")],
    "filter": ["year", [1], {"year": None}],
    "sort": ["year", [1], [{}], [{"field": 1}], [{"field": "year", "order": "up"}], [{"field": "year", "by": "x"}]],
    "boost": [{"field": "year"}, ["year"], [{"field": "year"}]],
    "group_by": [1],
    "group_size": [0, 101, True, 1.5],
    "facets": ["topic", [1], [""], ["a"] * 101],
    "facets_top_n": [0, 1_001, True, 1.5, "all"],
    "fields": ["text", [None]],
    "snippet": [True, "yes"],
    "cursor": [1, "x" * 5_000],
    "min_score": ["0.5", True, float("inf")],
    "explain": [1, "yes"],
    "like": ["17", [17], [""], ["a"] * 1_025],
    "vectors": [[], [[]], [1.0], [[0, 0.0]], [["a"]], [[float("nan")]], [[True]], [[1e300]]],
    "num_negative": [-1, True, 2_000],
    "fuse": [1],
    "rerank": [5, {}, {"top_n": 0}, {"top_n": 2_000}, {"top_n": 5, "model": 7}, {"top_n": 5, "of": "x"}],
    "diversity": [2, -1, "much"],
}


def test_every_option_has_values_that_it_does_not_take() -> None:
    assert REFUSED.keys() == SEARCH_DEFAULTS.keys()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_value_that_an_option_does_not_take_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name):
        SearchOptions(**{name: value})


@pytest.mark.parametrize("mode", ["dense", "lexical"])
def test_a_share_of_the_meaning_goes_with_a_hybrid_search_alone(mode: str) -> None:
    with pytest.raises(InvalidRequest, match=f"alpha is 0.5, and mode is {mode}: set mode to hybrid"):
        SearchOptions(mode=mode, alpha=0.5)


def test_a_search_travels_with_its_options() -> None:
    search = SearchOptions(fuse=True, num_negative=1, like=["7"], vectors=[[0.5, 1.0]], min_score=0.25, fields=[])
    job = Search(["storm", "protest"], k=3, search=search)
    assert operations.unpack(job.pack()) == job
    plain = operations.unpack(Search(["storm"]).pack())
    assert isinstance(plain, Search)
    assert plain.search is PLAIN


@pytest.mark.parametrize(
    ("texts", "options", "num_lists"),
    [
        (["a", "b"], {}, 2),
        (["a", "b", "c"], {"num_negative": 1}, 2),
        (["a", "b"], {"fuse": True}, 1),
        ([], {"like": ["1", "2"], "vectors": [[1.0]]}, 3),
        (["a"], {"like": ["1"], "num_negative": 1}, 1),
    ],
)
def test_lists_of_hits_are_counted(texts: list[str], options: dict[str, Any], num_lists: int) -> None:
    assert Search(texts, search=SearchOptions(**options)).num_lists == num_lists


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ([], {}),
        (["a"], {"num_negative": 1}),
        (["a"], {"num_negative": 2, "like": ["1", "2"]}),
        (["a", "b"], {"cursor": ""}),
        (["a"], {"cursor": "", "diversity": 0.5}),
        (["a"], {"facets_top_n": 5}),
    ],
)
def test_options_that_do_not_go_together_are_refused(texts: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Search(texts, search=SearchOptions(**options))


@pytest.mark.parametrize("options", [{"fuse": True}, {"num_negative": 1}, {"vectors": [[1.0]]}, {"like": ["1"]}])
def test_what_must_be_answered_together_stays_in_one_job(options: dict[str, Any]) -> None:
    job = Search(["storm"] * 50, search=SearchOptions(**options))
    assert job.split(32) == [job]
    assert len(Search(["storm"] * 50, search=SearchOptions(min_score=0.5)).split(32)) == 2


def test_vectors_and_documents_count_as_texts_in_a_lane() -> None:
    assert Search([], search=SearchOptions(like=["1"] * 3, vectors=[[1.0]] * 2)).num_lane_texts == 5
    assert Search(["a"], search=SearchOptions(like=["1"])).num_lane_texts == 2


SORTED: dict[str, Any] = {"sort": [{"field": "year"}]}


@pytest.mark.parametrize(
    ("options", "num_passes"),
    [
        ({}, 1),
        ({"facets": ["a", "b"], "group_by": "", "group_size": 3}, 1),
        ({"mode": "hybrid", "facets": ["a", "b"]}, 2),
        ({"facets": ["a", "b"], "facets_top_n": 5}, 3),
        ({"group_by": "a", "group_size": 3}, 4),
        (SORTED, 2),
        ({"mode": "lexical", "facets": ["a", "b"]}, 3),
        ({"mode": "lexical", "facets": ["a"], **SORTED}, 3),
    ],
)
def test_a_list_counts_as_often_as_it_goes_over_the_documents(options: dict[str, Any], num_passes: int) -> None:
    job = Search(["storm"] * 50, search=SearchOptions(**options))
    texts_per_list = 1 + 4 * (num_passes - 1)
    assert job.num_lane_texts == 50 * texts_per_list - (texts_per_list - 1)
    assert replace(job, texts=["storm"]).num_lane_texts == 1
    parts = job.split(32)
    assert [text for part in parts for text in part.texts] == job.texts
    assert max(len(part.texts) for part in parts) == 32 // texts_per_list
    assert max(part.num_lane_texts for part in parts) <= 32


def test_many_hits_count_as_texts_of_the_lane_and_are_split() -> None:
    assert Search(["storm"] * 4, k=99).num_lane_texts == 4
    job = Search(["storm"] * 50, k=1_000)
    assert job.num_lane_texts == 50 + 50 * 10
    assert [len(part.texts) for part in job.split(32)] == [2] * 25
    assert replace(job, k=100, search=SearchOptions(group_by="topic", group_size=10)).num_lane_texts >= 50 + 50 * 10


def test_too_many_lists_of_a_large_index_are_refused_with_the_number_that_is_taken() -> None:
    many = Search(["storm"] * 200, search=SearchOptions(**SORTED))
    with pytest.raises(TooLarge, match="asks for 200 lists of hits of 1,000,000 documents, and may ask for 67 with"):
        many.check_rows(1_000_000)
    many.check_rows(10_000)
    negative = Search(["storm"] * 1_000, search=SearchOptions(num_negative=1))
    with pytest.raises(TooLarge, match=r"may ask for 134 with these options: split the list of queries$"):
        negative.check_rows(1_000_000)
    Search(["storm"], search=SearchOptions(**SORTED)).check_rows(10**12)
