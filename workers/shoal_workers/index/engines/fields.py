"""Documents' fields in the form that PostgreSQL keeps and compares: numbers, and digests of keywords.

A field is called `f` and its number in the index. So no name and no value of a document needs quoting.
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

from shoal.operations.search_filter import All, AnyOf, Between, Exists, Filter, Not, OneOf, Value
from shoal_workers.index.files.columns import Column, Columns
from shoal_workers.index.files.field_kinds import CONVERTERS, date_span
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.filtering import check_filter, wrong_kind

#: Size of a keyword's digest in bytes.
DIGEST_BYTES = 8

#: The operators of ranges in a path of JSON.
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def values_of(columns: Columns, count: int) -> Iterator[dict[str, Any]]:
    """Yield the values of each of `count` rows, keyed by the field's name in the table. Empty fields are left out."""
    keys = [(key, columns[name], _by_row(columns[name])) for name, key in _keys(columns).items()]
    for row in range(count):
        found = {}
        for key, column, (codes, starts) in keys:
            terms = [_term(column.kind, column.value(code)) for code in codes[starts[row] : starts[row + 1]].tolist()]
            if terms:
                found[key] = terms
        yield found


def path_of(wanted: Filter, fields: Fields) -> str:
    """Return the filter as a predicate of a path of JSON. The names and values in it are digests and numbers.

    Raises InvalidRequest for a condition on an unknown field, and for a value that is not of its field's kind.
    """
    check_filter(wanted, fields)
    return _path(wanted, fields.version, _keys(fields.version))


def _path(wanted: Filter, columns: Columns, keys: dict[str, str]) -> str:
    match wanted:
        case All(parts):
            return " && ".join(f"({_path(part, columns, keys)})" for part in parts) or "1 == 1"
        case AnyOf(parts):
            return " || ".join(f"({_path(part, columns, keys)})" for part in parts) or "1 == 2"
        case Not(part):
            return f"!({_path(part, columns, keys)})"
        case Exists(field, is_wanted):
            return f"{'' if is_wanted else '!'}(exists($.{keys[field]}))"
        case OneOf(field, values, place):
            column = columns[field]
            return _any_item(keys[field], " || ".join(_equals(column, value, place) for value in values) or "1 == 2")
        case Between(field, bounds, place):
            column = columns[field]
            return _any_item(keys[field], " && ".join(_bound(column, *bound, place) for bound in bounds))


def _any_item(key: str, condition: str) -> str:
    return f"exists($.{key}[*] ? ({condition}))"


def _equals(column: Column, value: Value, place: str) -> str:
    found = _converted(column, value, place)
    if column.kind == "date":
        first, end = found
        return f"(@ >= {first!r} && @ < {end!r})"
    return f"@ == {json.dumps(_term(column.kind, found))}"


def _bound(column: Column, operator: str, value: Value, place: str) -> str:
    """Return a bound in numbers. A date is a span of time: a later date begins after its end."""
    found = _converted(column, value, f"{place}.{operator}")
    if column.kind == "date":
        first, end = found
        operator, found = {"gt": ("gte", end), "gte": ("gte", first), "lt": ("lt", first), "lte": ("lt", end)}[operator]
    return f"@ {_OPERATORS[operator]} {float(found)!r}"


def _converted(column: Column, value: Value, place: str) -> Any:
    """Return a value in the form of the column's terms; for a date, its first and its end."""
    try:
        return tuple(map(float, date_span(value))) if column.kind == "date" else CONVERTERS[column.kind](value)
    except ValueError as error:
        raise wrong_kind(column, value, place) from error


def _term(kind: str, value: Any) -> str | float:
    return blake2b(value, digest_size=DIGEST_BYTES).hexdigest() if kind == "keyword" else float(value)


def _keys(columns: Columns) -> dict[str, str]:
    return {name: f"f{n}" for n, name in enumerate(columns)}


def _by_row(column: Column) -> Any:
    """Return the codes of the rows, one row after the other, and the places where the rows begin."""
    order = np.argsort(column.rows, kind="stable")
    codes = np.repeat(np.arange(len(column.terms)), np.diff(column.starts))[order]
    return codes, np.searchsorted(column.rows[order], np.arange(column.codes.shape[1] + 1))
