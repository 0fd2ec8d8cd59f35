"""Filters, orders, boosts and facets by columns give exactly the results of looking at each document."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from field_documents import DOCUMENTS, KINDS, NAMES, Fields, matches, span, values_of
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import InvalidRequest
from shoal.operations.search_fields import Boost, parse_boosts, parse_sort
from shoal.operations.search_filter import RANGE_OPERATORS, parse_filter
from shoal_workers.index.files.columns import Columns, Keywords
from shoal_workers.index.files.field_kinds import date_span, to_keyword
from shoal_workers.index.files.field_values import MAX_COLUMNS, DocumentFields
from shoal_workers.index.search.boosts import boosts_of
from shoal_workers.index.search.facets import MAX_FACET_VALUES, count_facet
from shoal_workers.index.search.field_order import FieldOrder
from shoal_workers.index.search.fields import Fields as IndexFields
from shoal_workers.index.search.filtering import matching
from shoal_workers.index.vectors.exact_search import TopK

#: The documents of a version, and the documents that were added to it.
BOTH = st.tuples(st.lists(DOCUMENTS, min_size=1, max_size=25), st.lists(DOCUMENTS, max_size=12))


def columns_of(documents: list[Fields], kinds: dict[str, str]) -> Columns:
    """Return the columns of documents, in which values of other kinds are ignored."""
    fields = DocumentFields(kinds, is_lenient=True)
    for document in documents:
        fields.add(document)
    return Columns({column.name: column for column in fields.columns()})


def fields_of(version: list[Fields], added: list[Fields], kinds: dict[str, str] | None = None) -> IndexFields:
    """Return the fields of a version and of the documents that were added to it."""
    columns = columns_of(version, KINDS if kinds is None else kinds)
    return IndexFields(columns, columns_of(added, columns.kinds), len(version), len(added))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("year", [1999, 2000, 2000.5, [1999, 2001], 2001, None]),
        ("day", ["2001-05-03", "2001-05-03T10:00", "2001-06", ["2002", "1969-12-31"], "2001-05", "2001"]),
    ],
)
def test_a_range_includes_its_ends_if_its_operators_say_so(name: str, values: list[Any]) -> None:
    documents: list[Fields] = [{name: value} for value in values]
    fields = fields_of(documents, documents)
    for end in (value for value in values if value is not None and not isinstance(value, list)):
        for wanted in ({name: {operator: end}} for operator in RANGE_OPERATORS):
            found = matching(parse_filter(wanted), fields)
            assert found.tolist() == 2 * [matches(wanted, document) for document in documents], wanted


def test_with_as_many_fields_as_have_columns_a_hit_may_have_others() -> None:
    fields = fields_of([{f"f{n}": 1 for n in range(MAX_COLUMNS)}], [], {})
    fields.check_hits(["other"])
    with pytest.raises(InvalidRequest, match="further fields than the first 256 have no column"):
        fields.kind("other", "filter")


def rank_alike(selected: NDArray[np.bool_], most: int) -> TopK:
    """Return the first selected documents, all with the same score."""
    rows = np.flatnonzero(selected)[:most]
    return TopK(rows, np.zeros(len(rows), np.float32))


def rank_few(selected: NDArray[np.bool_], most: int) -> TopK:
    """Return the first selected documents among every 40th. All others are left out."""
    return rank_alike(selected & (np.arange(len(selected)) % 40 == 0), most)


def test_an_order_of_many_fields_with_many_values() -> None:
    generator = np.random.default_rng(0)
    documents = [{f"n{m}": float(generator.integers(3) * 1_000 + n % 90) for m in range(3)} for n in range(2_000)]
    for n, document in enumerate(documents):
        document["own"] = float(n)
    kinds = dict.fromkeys(documents[0], "number")
    fields = fields_of(documents[:1_500], documents[1_500:], kinds)
    sorts = [{"field": f"n{m}", "order": "desc"} for m in range(3)] + [{"field": "own", "order": "asc"}]
    found, _ = FieldOrder(parse_sort(sorts), fields).top(np.ones(2_000, bool), 300, rank_alike)
    expected = sorted(range(2_000), key=lambda n: ([-documents[n][f"n{m}"] for m in range(3)], n))[:300]
    assert found.tolist() == expected
    few, _ = FieldOrder(parse_sort(sorts[:1]), fields).top(np.ones(2_000, bool), 30, rank_few)
    assert few.tolist() == sorted(range(0, 2_000, 40), key=lambda n: (-documents[n]["n0"], n))[:30]


@given(BOTH, NAMES, st.data())
def test_facets_count_the_selected_documents(
    both: tuple[list[Fields], list[Fields]], name: str, data: st.DataObject
) -> None:
    fields, documents = fields_of(*both), [*both[0], *both[1]]
    mask = data.draw(st.lists(st.booleans(), min_size=len(documents), max_size=len(documents)))
    selected = [values_of(document, name) for document, is_wanted in zip(documents, mask, strict=True) if is_wanted]
    counts = Counter(value for values in selected for value in set(values))
    facet = count_facet(name, fields, np.array(mask, bool))
    assert facet["num_documents"] == sum(bool(values) for values in selected)
    expected = sorted(counts.items(), key=lambda item: (-item[1], to_keyword(item[0]) if name == "tag" else item[0]))
    assert [value["count"] for value in facet["values"]] == [count for _, count in expected]
    shown = [value["value"] for value in facet["values"]]
    if name == "day":
        assert [date_span(value)[0] / 1e6 for value in shown] == [value for value, _ in expected]
    else:
        assert shown == [value for value, _ in expected]


def test_of_many_values_the_most_frequent_are_listed() -> None:
    version = [{"n": n // 2 if n < 400 else 1_000 + n} for n in range(3_000)]
    added = [{"n": 250}, {"n": 5_000}, {"n": 5_000}, {"n": 5_000}, {"n": 3_999}, {"n": 3}, {"n": -1}, {"n": -1}]
    fields = fields_of(version, added, {"n": "number"})
    facet = count_facet("n", fields, np.ones(3_008, bool))
    counts = Counter(document["n"] for document in version + added)
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_FACET_VALUES]
    assert facet == {
        "num_documents": 3_008,
        "values": [{"value": value, "count": count} for value, count in expected],
    }


NOW = 1_000_000_000.0


def share(boost: Boost, document: Fields, documents: list[Fields]) -> float:
    """Return the share of a boost that a document has."""
    values = values_of(document, boost.field)
    if not values:
        return 0.0
    if boost.values is not None:
        return float(any(value in boost.values for value in values))
    if boost.half_life is not None:
        origin = span(boost.field, boost.origin)[0] if boost.origin is not None else NOW
        return float(max(0.5 ** (abs(value - origin) / boost.half_life) for value in values))
    every = [value for other in documents for value in values_of(other, boost.field)]
    least, largest = (0, 1) if boost.field == "new" else (min(every), max(every))
    return float(max(min(1, max(0, (value - least) / ((largest - least) or 1))) for value in values))


ALL_BOOSTS: list[dict[str, Any]] = [
    {"field": "tag", "weight": 0.5, "value": "a"},
    {"field": "tag", "weight": -0.25, "value": ["b", "nothing"]},
    {"field": "year", "weight": 1},
    {"field": "day", "weight": 2},
    {"field": "new", "weight": 0.125},
    {"field": "year", "weight": 1, "half_life": 2, "origin": 2000},
    {"field": "year", "weight": 1, "half_life": 5e-324, "origin": 2000},
    {"field": "day", "weight": 1, "half_life_days": 300},
    {"field": "day", "weight": 1, "half_life_days": 30, "origin": "2001-08-10T01:46:40"},
]
BOOSTS = st.lists(st.sampled_from(ALL_BOOSTS), min_size=1, max_size=4)

TAGGED: Fields = {"tag": "b", "year": 2001, "day": "2001-07-11"}


@example(([TAGGED, {"day": "2001-08-10", "new": True}], [{"tag": ["a", "b"], "day": "2001-09-09"}]), ALL_BOOSTS[1:])
@given(BOTH, BOOSTS)
def test_boosts_are_sums_of_shares(both: tuple[list[Fields], list[Fields]], given: list[dict[str, Any]]) -> None:
    fields, documents = fields_of(*both), [*both[0], *both[1]]
    boosts = parse_boosts(given)
    found = boosts_of(boosts, fields, NOW)
    for n, document in enumerate(documents):
        expected = 0.0
        for boost in boosts:  # the range of a field comes from the version, unless the version has no values of it
            known = both[not any(values_of(other, boost.field) for other in both[0])]
            expected += boost.weight * share(boost, document, known)
        assert found[n] == pytest.approx(expected, abs=1e-6)


VERSION: list[Fields] = [{"tag": "a", "year": 2000, "day": "2001-05", "new": True, "and": "x", "long": {"a": 1}}]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"yeer": 5}, r'filter.yeer: there is no field "yeer": the index has "and", "day"'),
        ({"score": {"gt": 0.5}}, "filter.score: there is no field .*min_score"),
        ({"year": "soon"}, 'filter.year is "soon": the values of "year" are numbers'),
        ({"year": {"in": [1, {}]}}, r"filter.year.in\[1\] is"),
        ({"day": {"lt": "yesterday"}}, 'filter.day.lt is "yesterday": .* dates, as 2026'),
        ({"new": "yes"}, 'filter.new is "yes": .* true and false'),
        ({"tag": "\ud800"}, "filter.tag is .* are keywords"),
        ({"tag": {"gt": "a"}}, "filter.tag: .*kind keyword, which have no order"),
        ({"long": "a"}, "filter.long: .*only exists applies"),
    ],
)
def test_a_condition_that_does_not_fit_its_field_is_refused(wanted: dict[str, Any], said: str) -> None:
    for fields in (fields_of(VERSION, [], {}), fields_of([{}], VERSION, {})):
        with pytest.raises(InvalidRequest, match=said):
            matching(parse_filter(wanted), fields)


def test_stored_values_exist_and_values_of_another_kind_in_added_documents_do_not() -> None:
    fields = fields_of([*VERSION, {"tag": "b"}], VERSION, {})
    for wanted in (True, False):
        found = matching(parse_filter({"long": {"exists": wanted}}), fields)
        assert found.tolist() == [wanted, not wanted, wanted]
    fields = fields_of([{"year": 2000}], [{"year": "soon"}, {"year": "2000"}, {"year": {"a": 1}}], {})
    for condition in (2000, {"exists": True}):
        assert matching(parse_filter({"year": condition}), fields).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("boost", "said"),
    [
        ({"field": "none"}, r"boost\[0\]: there is no field"),
        ({"field": "long", "value": 3}, r"boost\[0\]: .*only exists applies"),
        ({"field": "tag"}, r"boost\[0\]: .* without a value, a boost takes a field of the kind number or date"),
        ({"field": "year", "half_life_days": 3}, r"boost\[0\]: .* half_life_days takes .* date"),
        ({"field": "year", "value": "x"}, r'boost\[0\].value is "x": .* numbers'),
        ({"field": "day", "half_life_days": 3, "origin": "x"}, r'boost\[0\].origin is "x": it takes a date'),
        ({"field": "year", "half_life": 3, "origin": "x"}, r'origin is "x": it takes a number'),
    ],
)
def test_a_boost_a_sort_and_a_facet_that_do_not_fit_their_field_are_refused(boost: dict[str, Any], said: str) -> None:
    fields = fields_of(VERSION, [], {})
    with pytest.raises(InvalidRequest, match=said):
        boosts_of(parse_boosts([boost | {"weight": 1}]), fields, NOW)
    with pytest.raises(InvalidRequest, match=r"sort\[0\].field: .*only exists"):
        FieldOrder(parse_sort([{"field": "long"}]), fields)
    with pytest.raises(InvalidRequest, match=r"facets: .*only exists"):
        count_facet("long", fields, np.ones(1, bool))


def test_added_terms_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index may have a million of them."""
    fields, find, found = fields_of([{"tag": "a"}], [{"tag": "b"}, {"tag": "a"}]), Keywords.find, list[bytes]()

    def find_and_note(terms: Keywords, term: bytes) -> tuple[int, int]:
        found.append(term)
        return find(terms, term)

    monkeypatch.setattr(Keywords, "find", find_and_note)
    for _ in range(2):
        FieldOrder(parse_sort([{"field": "tag"}]), fields)
        assert count_facet("tag", fields, np.ones(3, bool))["values"][0] == {"value": "a", "count": 2}
    assert found == [b"a", b"b"]
