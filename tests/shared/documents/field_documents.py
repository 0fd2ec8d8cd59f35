"""Documents with fields of all kinds, and the expected results of filters, orders, boosts and facets.

Expected results are computed document by document, and not from columns.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any

from hypothesis import strategies as st

from shoal.operations.search_filter import ESCAPE, OPERATORS, RANGE_OPERATORS

Fields = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The kind of each field of the documents.
KINDS = {"tag": "keyword", "year": "number", "day": "date", "new": "boolean", "and": "keyword"}

VALUES: dict[str, list[Any]] = {
    "tag": ["a", "b", "ab", "ä", "z"],
    "year": [1999, 2000, 2000.5, 2001, -1],
    "day": ["2001-05-03", "2001-05-03T10:00", "2001-06", "2002", "1969-12-31"],
    "new": [True, False],
    "and": ["x", "or"],
}

_VALUES: dict[str, st.SearchStrategy[Any]] = {name: st.sampled_from(values) for name, values in VALUES.items()}

#: Values for filters: values of the documents, and other values.
_WANTED = _VALUES | {
    "tag": _VALUES["tag"] | st.just("c"),
    "year": _VALUES["year"] | st.sampled_from([2000.25, "2000", 1e9]),
    "day": _VALUES["day"] | st.sampled_from(["2001", "2001-05", 988_884_000, "2001-05-03T12:00+02:00"]),
}

NAMES = st.sampled_from(sorted(KINDS))

#: Documents that each have some of the fields, with one value or several.
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={name: values | st.lists(values, max_size=3) | st.none() for name, values in _VALUES.items()}
)


def random_fields(draw: random.Random, values: Mapping[str, list[Any]]) -> Fields:
    """Return random fields, most of them with one value, some with several or none."""
    fields: Fields = {}
    for name, known in values.items():
        if (luck := draw.random()) < 0.6:
            fields[name] = draw.choice(known)
        elif luck < 0.8:
            fields[name] = draw.choices(known, k=draw.randint(0, 3)) if luck < 0.75 else None
    return fields


def _condition(name: str) -> st.SearchStrategy[Any]:
    wanted = _WANTED[name]
    ways = [
        wanted,
        st.builds(lambda value: {"eq": value}, wanted),
        st.builds(lambda yes: {"exists": yes}, st.booleans()),
    ]
    ways.append(st.builds(lambda values: {"in": values}, st.lists(wanted, max_size=3)))
    if KINDS[name] in ("number", "date"):
        ways.append(st.dictionaries(st.sampled_from(RANGE_OPERATORS), wanted, min_size=1, max_size=2))
    written = ESCAPE + name if name == "and" else name
    return st.one_of(ways).map(lambda condition: {written: condition})


FILTERS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    NAMES.flatmap(_condition),
    lambda inner: st.one_of(
        st.builds(lambda parts: {"and": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda parts: {"or": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda a, b: {**a, **b}, inner, inner),
    ),
    max_leaves=5,
)

SORTS = st.lists(
    st.fixed_dictionaries({"field": NAMES, "order": st.sampled_from(["asc", "desc"])}), min_size=1, max_size=3
)


#: Boosts of the documents that do not depend on the time of a search.
BOOSTS = st.lists(
    st.sampled_from(
        [
            {"field": "tag", "weight": 0.5, "value": "a"},
            {"field": "tag", "weight": -0.25, "value": ["b", "nothing"]},
            {"field": "year", "weight": 1},
            {"field": "new", "weight": 0.125},
            {"field": "year", "weight": 1e-7, "half_life": 2, "origin": 2000},
            {"field": "day", "weight": 1, "half_life_days": 300, "origin": "2001"},
        ]
    ),
    min_size=1,
    max_size=3,
)


def values_of(document: Fields, name: str) -> list[Any]:
    """Return the values of a document's field in a form that can be compared."""
    value = document.get(name)
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [span(name, one)[0] for one in values]


def span(name: str, value: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value that count as equal to a value."""
    if KINDS[name] == "number":
        return float(value), float(value)
    if KINDS[name] == "date":
        return _date_span(value)
    return value, value


def _date_span(value: Any) -> tuple[float, float]:
    if not isinstance(value, str):
        return float(value), float(value)
    year, month, day = [*map(int, value[:10].split("-")), 0, 0][:3]
    if len(value) > 10:
        at = datetime.fromisoformat(value)
        seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH).total_seconds()
        return seconds, seconds
    first = datetime(year, month or 1, day or 1, tzinfo=UTC)
    last = first.replace(year=year + 1) if not month else first.replace(month=month + 1) if not day else None
    end = (last - EPOCH).total_seconds() if last else (first - EPOCH).total_seconds() + 86_400
    return (first - EPOCH).total_seconds(), end - 1e-6


def matches(wanted: Mapping[str, Any], document: Fields) -> bool:
    """Return True if a document matches a filter."""
    return all(_part(name, value, document) for name, value in wanted.items())


def _part(name: str, value: Any, document: Fields) -> bool:
    if name == "and":
        return all(matches(part, document) for part in value)
    if name == "or":
        return any(matches(part, document) for part in value)
    if name == "not":
        return not matches(value, document)
    name = name.removeprefix(ESCAPE)
    values = values_of(document, name)
    conditions = value if isinstance(value, dict) else {"eq": value}
    assert set(conditions) <= set(OPERATORS)
    if "exists" in conditions:
        return bool(values) is conditions["exists"]
    tests = [(_TESTS[operator], given) for operator, given in conditions.items()]
    return any(all(test(name, one, given) for test, given in tests) for one in values)


_TESTS: Mapping[str, Callable[[str, Any, Any], bool]] = {
    "eq": lambda name, one, given: span(name, given)[0] <= one <= span(name, given)[1],
    "in": lambda name, one, given: any(span(name, each)[0] <= one <= span(name, each)[1] for each in given),
    "gte": lambda name, one, given: one >= span(name, given)[0],
    "gt": lambda name, one, given: one > span(name, given)[1],
    "lt": lambda name, one, given: one < span(name, given)[0],
    "lte": lambda name, one, given: one <= span(name, given)[1],
}


def in_order(sorts: Sequence[Mapping[str, str]], documents: Sequence[Fields], scores: Sequence[float]) -> list[int]:
    """Return the numbers of the documents in the order of some fields, then by score, best first, then by number."""

    def compare(a: int, b: int) -> int:
        for sort in sorts:
            is_descending = sort["order"] == "desc"
            first, second = (values_of(documents[n], sort["field"]) for n in (a, b))
            if not first or not second:
                if bool(first) != bool(second):
                    return -1 if first else 1
                continue
            best = max if is_descending else min
            x, y = (best(_bytes(one) for one in values) for values in (first, second))
            if x != y:
                return 1 if (x < y) == is_descending else -1
        return -1 if (-scores[a], a) < (-scores[b], b) else 1

    return sorted(range(len(documents)), key=cmp_to_key(compare))


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
