"""Documents' fields in the form that engines keep and compare: numbers, and digests of keywords.

A field is called `f` and its number in the index. So no name and no value of a document needs quoting.
"""

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


def values_of(columns: Columns, count: int) -> Iterator[dict[str, Any]]:
    """Yield the values of each of `count` rows, keyed by the field's name in engines. Empty fields are left out."""
    keys = [(key, columns[name], _by_row(columns[name])) for name, key in _keys(columns).items()]
    for row in range(count):
        found = {}
        for key, column, (codes, starts) in keys:
            terms = [_term(column.kind, column.value(code)) for code in codes[starts[row] : starts[row + 1]].tolist()]
            if terms:
                found[key] = terms
        yield found


def translated(wanted: Filter, fields: Fields) -> Filter:
    """Return the filter on the fields and values that engines have. Its values are digests and numbers.

    Raises InvalidRequest for a condition on an unknown field, and for a value that is not of its field's kind.
    """
    check_filter(wanted, fields)
    return _translated(wanted, fields.version, _keys(fields.version))


def _translated(wanted: Filter, columns: Columns, keys: dict[str, str]) -> Filter:
    match wanted:
        case All(parts):
            return All(tuple(_translated(part, columns, keys) for part in parts))
        case AnyOf(parts):
            return AnyOf(tuple(_translated(part, columns, keys) for part in parts))
        case Not(part):
            return Not(_translated(part, columns, keys))
        case Exists(field, is_wanted, place):
            found = Exists(keys[field], True, place)
            return found if is_wanted else Not(found)
        case OneOf(field, values, place):
            column, key = columns[field], keys[field]
            terms = [_converted(column, value, place) for value in values]
            if column.kind == "date" or not terms:
                return AnyOf(tuple(Between(key, (("gte", first), ("lt", end)), place) for first, end in terms))
            return OneOf(key, tuple(_term(column.kind, term) for term in terms), place)
        case Between(field, bounds, place):
            return Between(keys[field], tuple(_bound(columns[field], *bound, place) for bound in bounds), place)


def _bound(column: Column, operator: str, value: Value, place: str) -> tuple[str, Value]:
    """Return a bound in numbers. A date is a span: later than a day is not within it."""
    found = _converted(column, value, f"{place}.{operator}")
    if column.kind != "date":
        return operator, float(found)
    first, end = found
    return {"gt": ("gte", end), "gte": ("gte", first), "lt": ("lt", first), "lte": ("lt", end)}[operator]


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
