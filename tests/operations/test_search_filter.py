"""The grammar of filters, and of what else a search asks about fields: what is wrong is named with its place."""

from typing import Any

import pytest
from fuzzing import outcome
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidRequest
from shoal.operations.search_fields import Boost, Sort, parse_boosts, parse_facets, parse_sort
from shoal.operations.search_filter import (
    MAX_FILTER_CONDITIONS,
    MAX_FILTER_VALUES,
    All,
    AnyOf,
    Between,
    Exists,
    Not,
    OneOf,
    parse_filter,
)


def test_a_filter_is_read() -> None:
    wanted = {
        "tag": "news",
        "or": [{"year": {"gte": 2001, "lt": 2005}}, {"year": {"in": [1, 2.5]}}],
        "not": {"x": {"exists": False}, "\\not": True},
    }
    assert parse_filter(wanted) == All(
        (
            OneOf("tag", ("news",), "filter.tag"),
            AnyOf(
                (
                    Between("year", (("gte", 2001), ("lt", 2005)), "filter.or[0].year"),
                    OneOf("year", (1, 2.5), "filter.or[1].year.in"),
                )
            ),
            Not(All((Exists("x", False, "filter.not.x.exists"), OneOf("not", (True,), 'filter.not["\\\\not"]')))),
        )
    )


@pytest.mark.parametrize("name", ["and", "or", "not", "\\", "\\and", "eq", "field"])
def test_every_field_can_be_named(name: str) -> None:
    for written in {name, f"\\{name}"} if name in ("eq", "field") else {f"\\{name}"}:
        found = parse_filter({written: {"eq": 5}})
        assert isinstance(found, OneOf)
        assert found.field == name


def test_no_conditions_hold_always() -> None:
    assert parse_filter({}) == parse_filter({"and": []}) == All(())
    assert parse_filter({"or": []}) == AnyOf(())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([], "filter is .*it takes a map"),
        ("year", 'filter is "year": it takes a map'),
        ({"year": None}, 'filter.year is null, which is no value: {"exists": false}'),
        ({"year": ""}, 'filter.year is "", which is no value'),
        ({"year": [1]}, 'filter.year is a list: {"in": '),
        ({"year": {}}, "filter.year is an empty map: it takes one of eq, in, gt"),
        ({"year": {"above": 3}}, 'filter.year: there is no operator "above": eq, in, gt'),
        ({"year": {"in": 3}}, "filter.year.in is 3: it takes a list"),
        ({"year": {"exists": 1}}, "filter.year.exists is 1: it takes true or false"),
        ({"year": {"eq": 1, "gt": 0}}, "filter.year.eq stands beside other operators"),
        ({"and": {"x": 1}}, r"filter.and is .*: it takes a list of filters; a field of that name is \\and"),
        ({"not": 3}, "filter.not is 3: it takes a map"),
        ({"and": [{"x": 1}, {"year": {"gte": []}}]}, r"filter.and\[1\].year.gte is a list"),
        ({"x": float("nan")}, "filter.x is nan: it takes a finite number"),
        ({"x": 2**64}, "filter.x is .*: it takes a whole number of 64 bits"),
        ({"x": b"a"}, "filter.x is bytes 61: it takes a string, a number, true or false"),
        ({"x": {"lt": {"a": 1}}}, "filter.x.lt is .*: it takes a string"),
        ({5: 1}, "filter.5: the name of a field is a string"),
        ({"a" * 500: None}, r'filter\["a{79}…\] is null'),
    ],
)
def test_what_is_no_filter_is_named_with_its_place(wanted: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_filter(wanted)


@pytest.mark.parametrize("name", ["and", "or", "not"])
def test_ten_thousand_levels_are_refused(name: str) -> None:
    def nested(levels: int) -> dict[str, Any]:
        wanted: dict[str, Any] = {"x": 1}
        for _ in range(levels):
            wanted = {name: wanted if name == "not" else [wanted]}
        return wanted

    parse_filter(nested(MAX_FILTER_CONDITIONS - 1))
    for levels in (MAX_FILTER_CONDITIONS, 10_000):
        with pytest.raises(InvalidRequest, match=f"the filter has over {MAX_FILTER_CONDITIONS} conditions"):
            parse_filter(nested(levels))


def test_ten_thousand_conditions_or_values_are_refused() -> None:
    parse_filter({"x": {"in": list(range(MAX_FILTER_VALUES))}})
    many = list(range(10_000))
    refused: list[Any] = [
        {"x": {"in": many}},
        {"or": [{"x": n} for n in many]},
        {"and": [{} for _ in many]},
        {str(n): n for n in many},
    ]
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
def test_any_json_is_a_filter_or_refused(value: Any) -> None:
    for parse, name in (
        (parse_filter, "filter"),
        (parse_sort, "sort"),
        (parse_boosts, "boost"),
        (parse_facets, "facets"),
    ):
        error = outcome(parse, value)
        assert not isinstance(error, InvalidRequest) or error.message.startswith(name)


def test_sorts_and_boosts_are_read() -> None:
    given = [{"field": "year", "order": "desc"}, {"field": "tag"}]
    assert parse_sort(given) == (Sort("year", True, "sort[0]"), Sort("tag", False, "sort[1]"))
    assert parse_boosts(
        [
            {"field": "a", "weight": 1},
            {"field": "b", "weight": -0.5, "value": ["x", 2]},
            {"field": "c", "weight": 2, "half_life_days": 10},
            {"field": "d", "weight": 2, "half_life": 10, "origin": 3},
        ]
    ) == (
        Boost("a", 1.0, "boost[0]"),
        Boost("b", -0.5, "boost[1]", ("x", 2)),
        Boost("c", 2.0, "boost[2]", None, 864_000.0, True),
        Boost("d", 2.0, "boost[3]", None, 10.0, False, 3),
    )
    assert parse_facets(["a", "b", "a"]) == ("a", "b")


@pytest.mark.parametrize(
    ("parse", "value", "said"),
    [
        (parse_sort, {}, "sort is {}: it takes a list that is not empty"),
        (parse_sort, [], "sort is"),
        (parse_sort, [{"field": "a"}] * 5, "sort has 5 entries: it takes at most 4"),
        (parse_sort, ["year"], r'sort\[0\] is "year": it takes a map with field, order'),
        (parse_sort, [{"field": 5}], r"sort\[0\].field is 5: it takes the name of a field"),
        (parse_sort, [{"field": "a", "order": "up"}], r'sort\[0\].order is "up": it takes one of asc, desc'),
        (parse_sort, [{"field": "a", "way": 1}], r'sort\[0\] has "way": it takes field, order'),
        (parse_boosts, [{"field": "a", "weight": 1}] * 9, "boost has 9 entries: it takes at most 8"),
        (parse_boosts, [{"field": "a"}], r"boost\[0\].weight is null: it takes a number"),
        (parse_boosts, [{"field": "a", "weight": True}], r"boost\[0\].weight is true"),
        (parse_boosts, [{"field": "a", "weight": 10**400}], r"boost\[0\].weight is 1000"),
        (parse_boosts, [{"field": "a", "weight": 2_000}], r"boost\[0\].weight is 2000.0: it takes -1,000 to 1,000"),
        (parse_boosts, [{"field": "a", "weight": 1, "value": []}], r"boost\[0\].value is \[\]: it takes a value"),
        (parse_boosts, [{"field": "a", "weight": 1, "value": None}], r"boost\[0\].value is null"),
        (
            parse_boosts,
            [{"field": "a", "weight": 1, "half_life_days": 0}],
            "half_life_days is 0.0: it takes a number above",
        ),
        (parse_boosts, [{"field": "a", "weight": 1, "half_life": 3}], r"boost\[0\] has no origin"),
        (parse_boosts, [{"field": "a", "weight": 1, "origin": 3}], r"boost\[0\].origin goes with half_life"),
        (parse_boosts, [{"field": "a", "weight": 1, "value": 1, "half_life": 3}], "has value and half_life: drop one"),
        (parse_facets, "year", 'facets is "year": it takes a list'),
        (parse_facets, ["a", ""], r'facets\[1\] is "": it takes the name of a field'),
        (parse_facets, ["a"] * 9, "facets has 9 entries: it takes at most 8"),
    ],
)
def test_what_is_none_is_named_with_its_place(parse: Any, value: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse(value)
