"""The options of a search: their values, how jobs contain and count them, and the grammar of filters."""

from dataclasses import replace
from typing import Any

import pytest
from fuzzing import outcome
from hypothesis import given
from hypothesis import strategies as st

from shoal import operations
from shoal.errors import InvalidRequest, TooLarge
from shoal.operations import Search
from shoal.operations.search_fields import MAX_BOOST_VALUES, parse_boosts, parse_facets, parse_sort
from shoal.operations.search_filter import MAX_FILTER_CONDITIONS, MAX_FILTER_VALUES, OneOf, parse_filter, place_of
from shoal.operations.search_options import PLAIN, SEARCH_DEFAULTS, SearchOptions

REFUSED: dict[str, list[Any]] = {
    "mode": ["sparse", ["dense"]],
    "alpha": [-0.1, 1.5, True, "half", float("nan")],
    "filter": ["year", [1], {"year": None}],
    "sort": ["year", [{"field": "year", "by": "x"}]],
    "boost": [["year"], [{"field": "year"}]],
    "group_by": [1],
    "group_size": [0, 101, True, 1.5],
    "facets": ["topic", [1], [""]],
    "facets_top_n": [0, 1_001, True, "all"],
    "fields": ["text", [None]],
    "snippet": [True, {"max_chars": 5}, {"max_chars": "9"}, {"maxchars": 100}],
    "cursor": [1, "x" * 5_000],
    "min_score": ["0.5", True, float("inf")],
    "explain": [1],
    "like": ["17", [17], [""], ["a"] * 1_025],
    "vectors": [[], [[]], [1.0], [[0, 0.0]], [["a"]], [[float("nan")]], [[True]], [[1e300]]],
    "num_negative": [-1, True, 2_000],
    "fuse": [1],
    "rerank": [5, {}, {"top_n": 0}, {"top_n": 2_000}, {"top_n": 5, "model": "x"}],
    "diversity": [2, -1, "much"],
}


@pytest.mark.parametrize("name", SEARCH_DEFAULTS)
def test_a_wrong_value_of_an_option_is_named(name: str) -> None:
    for value in REFUSED[name]:
        with pytest.raises(InvalidRequest, match=name):
            SearchOptions(**{name: value})


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        (["a"], {"mode": "dense", "alpha": 0.5}, "alpha is 0.5, and mode is dense: set mode to hybrid"),
        ([], {}, "the list of texts is empty"),
        (["a"], {"num_negative": 1}, "num_negative is 1 of 1 texts: add the texts"),
        (["a"], {"num_negative": 2, "like": ["1", "2"]}, "num_negative is 2 of 1 texts"),
        (["a", "b"], {"cursor": ""}, "cursor goes with one list of hits, and 2 are asked for"),
        (["a"], {"facets_top_n": 5}, "facets_top_n goes with facets"),
        (["a"], {"cursor": "", "diversity": 0.5}, "cursor does not go with rerank and diversity"),
        (["a"], {"diversity": 0.5, "sort": [{"field": "year"}]}, "sort does not go with rerank and diversity"),
        (["a"], {"rerank": {"top_n": 9}}, "rerank.top_n is 9, and k is 10: raise top_n to at least k"),
        (["a"], {"rerank": {"top_n": 20, "query": " "}}, "rerank.query is empty"),
        (["a"], {"like": ["1"], "rerank": {"top_n": 20}}, "rerank.query is missing: hits of vectors and documents"),
        (["a"], {"vectors": [[1.0]], "fuse": True, "rerank": {"top_n": 20}}, "rerank.query is missing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(texts: list[str], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Search(texts, k=10, search=SearchOptions(**options))


def test_a_search_is_packed_with_its_options() -> None:
    search = SearchOptions(fuse=True, num_negative=1, like=["7"], vectors=[[0.5, 1.0]], min_score=0.25, fields=[])
    for job in (Search(["storm", "protest"], k=3, search=search), Search(["storm"], search=PLAIN)):
        assert operations.unpack(job.pack()) == job


# How jobs count in a lane


@pytest.mark.parametrize(
    ("texts", "options", "num_lists", "num_pairs", "num_lane_texts"),
    [
        (["a", "b"], {}, 2, 0, 2),
        (["a", "b", "c"], {"num_negative": 1}, 2, 0, 3),
        (["a", "b"], {"fuse": True}, 1, 0, 2),
        ([], {"like": ["1", "2"], "vectors": [[1.0]]}, 3, 0, 3),
        (["a"], {"like": ["1"], "num_negative": 1}, 1, 0, 2),
        (["a", "b"], {"rerank": {"top_n": 30}}, 2, 60, 62),
        (["a"], {"rerank": {"top_n": 30}, "group_by": "topic", "group_size": 3}, 1, 90, 91),
        (["a", "b"], {"rerank": {"top_n": 30}, "fuse": True}, 1, 30, 32),
    ],
)
def test_lists_of_hits_pairs_and_texts_of_the_lane_are_counted(
    texts: list[str], options: dict[str, Any], num_lists: int, num_pairs: int, num_lane_texts: int
) -> None:
    job = Search(texts, k=5, search=SearchOptions(**options))
    assert (job.num_lists, job.num_pairs, job.num_lane_texts) == (num_lists, num_pairs, num_lane_texts)


def test_a_search_that_must_be_answered_together_stays_one_job() -> None:
    together: list[dict[str, Any]] = [{"fuse": True}, {"num_negative": 1}, {"vectors": [[1.0]]}, {"like": ["1"]}]
    for options in together:
        job = Search(["storm"] * 50, search=SearchOptions(**options))
        assert job.split(32) == [job]
    job = Search(["a", "b"], k=30, search=SearchOptions(rerank={"top_n": 30}))
    assert [part.texts for part in job.split(32)] == [["a"], ["b"]]


SORTED: dict[str, Any] = {"sort": [{"field": "year"}]}


@pytest.mark.parametrize(
    ("options", "num_passes"),
    [
        ({"facets": ["a", "b"], "group_by": "", "group_size": 3}, 1),
        ({"mode": "hybrid", "facets": ["a", "b"]}, 2),
        ({"facets": ["a", "b"], "facets_top_n": 5}, 3),
        ({"group_by": "a", "group_size": 3}, 4),
        (SORTED, 2),
        ({"mode": "lexical", "facets": ["a"], **SORTED}, 3),
    ],
)
def test_a_list_counts_for_each_pass_over_the_documents(options: dict[str, Any], num_passes: int) -> None:
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


def test_too_many_lists_of_a_large_index_are_refused_with_the_number_that_is_allowed() -> None:
    many = Search(["storm"] * 200, search=SearchOptions(**SORTED))
    with pytest.raises(TooLarge, match="asks for 200 lists of hits of 1,000,000 documents, and may ask for 67 with"):
        many.check_rows(1_000_000)
    many.check_rows(10_000)
    negative = Search(["storm"] * 1_000, search=SearchOptions(num_negative=1))
    with pytest.raises(TooLarge, match=r"may ask for 134 with these options: split the list of queries$"):
        negative.check_rows(1_000_000)
    Search(["storm"], search=SearchOptions(**SORTED)).check_rows(10**12)


# Filters, sorts, boosts and facets


def test_names_may_be_escaped_and_facets_repeated_and_a_boost_has_each_value() -> None:
    for written in ("\\and", "\\\\", "\\\\and", "eq", "\\eq"):
        assert parse_filter({written: {"eq": 5}}) == OneOf(
            written.removeprefix("\\"), (5,), f"{place_of('filter', written)}.eq"
        )
    assert parse_facets(["a", "b", "a"]) == ("a", "b")
    assert parse_boosts([{"field": "a", "weight": 1, "value": ["x", 2]}])[0].values == ("x", 2)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([], "filter is .*it takes a map"),
        ({"year": None}, 'filter.year is null, which is no value: {"exists": false}'),
        ({"year": [1]}, 'filter.year is a list: {"in": '),
        ({"year": {}}, "filter.year is an empty map: it takes one of eq, in, gt"),
        ({"year": {"above": 3}}, 'filter.year: unknown operator "above": use eq, in, gt'),
        ({"year": {"in": "2001"}}, 'filter.year.in is "2001": it takes a list of values'),
        ({"year": {"exists": 1}}, "filter.year.exists is 1: it takes true or false"),
        ({"year": {"eq": 1, "gt": 0}}, "filter.year.eq is next to other operators"),
        ({"and": {"x": 1}}, r"filter.and is .*: it takes a list of filters; a field of that name is \\and"),
        ({"and": [{"x": 1}, {"year": {"gte": []}}]}, r"filter.and\[1\].year.gte is a list"),
        ({"x": float("nan")}, "filter.x is nan: it takes a finite number"),
        ({"x": 2**64}, "filter.x is .*: it takes a whole number of 64 bits"),
        ({"x": b"a"}, "filter.x is bytes 61: it takes a string, a number, true or false"),
        ({5: 1}, "filter.5: the name of a field is a string"),
        ({"a" * 500: None}, r'filter\["a{79}…\] is null'),
    ],
)
def test_a_wrong_filter_is_named_with_its_place(wanted: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_filter(wanted)


def test_ten_thousand_levels_conditions_or_values_are_refused() -> None:
    def nested(levels: int, name: str) -> dict[str, Any]:
        wanted: dict[str, Any] = {"x": 1}
        for _ in range(levels):
            wanted = {name: wanted if name == "not" else [wanted]}
        return wanted

    many, most = list(range(10_000)), MAX_FILTER_CONDITIONS - 1
    for wanted in (nested(most, "or"), nested(most, "not"), {"x": {"in": many[:MAX_FILTER_VALUES]}}):
        parse_filter(wanted)
    refused: list[Any] = [nested(levels, name) for levels in (most + 1, 10_000) for name in ("or", "not")]
    refused += [{"x": {"in": many}}, {"and": [{} for _ in many]}, {str(n): n for n in many}]
    for wanted in refused:
        with pytest.raises(InvalidRequest, match=r"the filter has over (1,000 values|32 conditions)"):
            parse_filter(wanted)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["and", "or", "not", "in", "gte", "exists", "eq"]) | st.text(), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_read_or_refused(value: Any) -> None:
    named = {"filter": parse_filter, "sort": parse_sort, "boost": parse_boosts, "facets": parse_facets}
    for name, parse in named.items():
        error = outcome(parse, value)
        assert not isinstance(error, InvalidRequest) or error.message.startswith(name)


@pytest.mark.parametrize(
    ("parse", "value", "said"),
    [
        (parse_sort, {}, "sort is {}: it takes a list that is not empty"),
        (parse_sort, [{"field": "a"}] * 5, "sort has 5 entries: it takes at most 4"),
        (parse_sort, [{"field": 5}], r"sort\[0\].field is 5: it takes the name of a field"),
        (parse_sort, [{"field": "a", "order": "up"}], r'sort\[0\].order is "up": it takes one of asc, desc'),
        (parse_sort, [{"field": "a", "way": 1}], r'sort\[0\] has "way": it takes field, order'),
        (parse_boosts, [{"field": "a", "weight": 1}] * 9, "boost has 9 entries: it takes at most 8"),
        (parse_boosts, [{"field": "a", "weight": 10**400}], r"boost\[0\].weight is 1000"),
        (parse_boosts, [{"field": "a", "weight": 2_000}], r"boost\[0\].weight is 2000.0: it takes -1,000 to 1,000"),
        (
            parse_boosts,
            [{"field": "a", "weight": 1, "value": []}],
            r"boost\[0\].value is \[\]: it takes a list that is not",
        ),
        (
            parse_boosts,
            [{"field": "a", "weight": 1, "value": [1] * (MAX_BOOST_VALUES + 1)}],
            r"boost\[0\].value has 1,001 entries",
        ),
        (parse_boosts, [{"field": "a", "weight": 1, "half_life_days": 0}], "is 0.0: it takes a number above"),
        (parse_boosts, [{"field": "a", "weight": 1, "half_life": 2**64}], r"8446744073709551616: .* to 9e\+18"),
        (parse_boosts, [{"field": "a", "weight": 1, "half_life": 3}], r"boost\[0\].origin is missing"),
        (parse_boosts, [{"field": "a", "weight": 1, "origin": 3}], r"boost\[0\].origin goes with half_life"),
        (parse_boosts, [{"field": "a", "weight": 1, "value": 1, "half_life": 3}], "has value and half_life: drop one"),
        (parse_facets, ["a", ""], r'facets\[1\] is "": it takes the name of a field'),
        (parse_facets, ["a"] * 9, "facets has 9 entries: it takes at most 8"),
    ],
)
def test_a_wrong_sort_boost_or_facet_is_named_with_its_place(parse: Any, value: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse(value)
