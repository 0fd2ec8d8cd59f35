"""Documents' fields in the form that an engine keeps and compares: numbers, and digests of keywords.

A field's name in an engine is `f` and the field's number, so no name and no value of a document needs quoting.
"""

import json
import math
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

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def values_of(columns: Columns, count: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of each of `count` rows, keyed by the field's name in engines."""
    keys = [(key, columns[name], _by_row(columns[name])) for name, key in _keys(columns).items()]
    for row in range(count):
        yield {
            key: [_term(column.kind, column.value(code)) for code in codes[starts[row] : starts[row + 1]].tolist()]
            for key, column, (codes, starts) in keys
        }


def written(wanted: Filter, fields: Fields) -> str:
    """Return the filter as a JSON path predicate. The names and values in it are digests and numbers.

    Raises InvalidRequest for a condition on an unknown field, and for a value that is not of its field's kind.
    """
    check_filter(wanted, fields)
    keys = _keys(fields.version)

    def any_value(field: str, condition: str) -> str:
        return f"exists($.{keys[field]}[*] ? ({condition}))"

    def write(wanted: Filter) -> str:
        match wanted:
            case All(parts):
                return " && ".join(f"({write(part)})" for part in parts) or "1 == 1"
            case AnyOf(parts):
                return " || ".join(f"({write(part)})" for part in parts) or "1 == 2"
            case Not(part):
                return f"!({write(part)})"
            case Exists(field, is_wanted):
                exists = f"exists($.{keys[field]}[*])"
                return exists if is_wanted else f"!({exists})"
            case OneOf(field, values, place):
                column = fields.version[field]
                found = [_converted(column, value, place) for value in values]
                if column.kind == "date":
                    conditions = [f"@ >= {first!r} && @ < {end!r}" for first, end in found]
                else:
                    conditions = [f"@ == {json.dumps(_term(column.kind, one))}" for one in found]
                return any_value(field, " || ".join(conditions) or "1 == 2")
            case Between(field, bounds, place):
                column = fields.version[field]
                return any_value(field, " && ".join(_bound(column, *bound, place) for bound in bounds))

    return write(wanted)


def _bound(column: Column, operator: str, value: Value, place: str) -> str:
    """Return a bound as a condition. A date is a span of time; a later date begins at its end or after."""
    found = _converted(column, value, f"{place}.{operator}")
    if column.kind == "date":
        first, end = found
        operator, found = {"gt": ("gte", end), "gte": ("gte", first), "lt": ("lt", first), "lte": ("lt", end)}[operator]
    return f"@ {_OPERATORS[operator]} {float(found)!r}"


def _converted(column: Column, value: Value, place: str) -> Any:
    """Return a value in the form of the column's terms; for a date, its start and a later end."""
    try:
        if column.kind != "date":
            return CONVERTERS[column.kind](value)
        first, end = map(float, date_span(value))
    except ValueError as error:
        raise wrong_kind(column, value, place) from error
    return first, max(end, math.nextafter(first, math.inf))  # far from 1970, a microsecond is lost by rounding


def _term(kind: str, value: Any) -> str | float:
    return blake2b(value, digest_size=DIGEST_BYTES).hexdigest() if kind == "keyword" else float(value)


def _keys(columns: Columns) -> dict[str, str]:
    return {name: f"f{n}" for n, name in enumerate(columns)}


def _by_row(column: Column) -> Any:
    """Return the codes of all rows, row by row, and the position where each row's codes begin."""
    order = np.argsort(column.rows, kind="stable")
    codes = np.repeat(np.arange(len(column.terms)), np.diff(column.starts))[order]
    return codes, np.searchsorted(column.rows[order], np.arange(column.codes.shape[1] + 1))
