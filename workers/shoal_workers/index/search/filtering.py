"""Filters: the documents that match the conditions of a search."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.operations.search_filter import All, AnyOf, Between, Exists, Filter, Not, OneOf, Value
from shoal_workers.index.files.columns import Column, Columns
from shoal_workers.index.files.field_kinds import CONVERTERS, date_span
from shoal_workers.index.search.fields import Fields

#: The words for values of each kind, for messages.
_PLURALS: Mapping[str, Any] = {
    "keyword": "keywords",
    "number": "numbers",
    "date": "dates, as 2026-11-22 or 2026-11-22T03:00",
    "boolean": "true and false",
}


def matching(wanted: Filter, fields: Fields) -> NDArray[np.bool_]:
    """Return a mask of the documents that match a filter, bool `[count + added]`. Hidden documents may be among them.

    Raises InvalidRequest for a condition on an unknown field, and for a value that is not of its field's kind.
    """
    check_filter(wanted, fields)
    mask = np.zeros(fields.count + fields.num_added, bool)
    for columns, part in fields.parts:
        _mark(wanted, columns, mask[part])
    return mask


def check_filter(wanted: Filter, fields: Fields) -> None:
    """Raise InvalidRequest for a condition that does not fit the kind of its field."""
    match wanted:
        case All(parts) | AnyOf(parts):
            for part in parts:
                check_filter(part, fields)
        case Not(part):
            check_filter(part, fields)
        case Exists(field, _, place):
            fields.kind(field, place)
        case OneOf(field, _, place):
            fields.check_values(field, place)
        case Between(field, _, place):
            fields.check_values(field, place)
            if (kind := fields.kind(field, place)) not in ("number", "date"):
                raise InvalidRequest(
                    f"{place}: {excerpt(field)} has values of the kind {kind}, which have no order; ranges are of "
                    f"numbers and dates (--field {field}=number at a build says that it has these)"
                )


def _mark(wanted: Filter, columns: Columns, mask: NDArray[np.bool_]) -> None:
    """Set the mask to True for the documents that match."""
    match wanted:
        case AnyOf(parts):
            for part in parts:
                _mark(part, columns, mask)
        case All(parts):
            mask |= _all(parts, columns, len(mask))
        case Not(part):
            mask |= ~_all((part,), columns, len(mask))
        case Exists(field, is_wanted):
            column = columns.get(field)
            mask |= (False if column is None else column.lowest >= 0) == is_wanted
        case OneOf(field, values, place):
            if (column := columns.get(field)) is not None:
                _mark_codes({span_of(column, value, place) for value in values}, column, mask)
        case Between(field):
            if (column := columns.get(field)) is not None:
                _mark_codes({_bounds(wanted, column)}, column, mask)


def _all(parts: tuple[Filter, ...], columns: Columns, count: int) -> NDArray[np.bool_]:
    found = np.ones(count, bool)
    for part in parts:
        mask = np.zeros(count, bool)
        _mark(part, columns, mask)
        found &= mask
    return found


def _mark_codes(spans: set[tuple[int, int]], column: Column, mask: NDArray[np.bool_]) -> None:
    """Set the mask to True for the rows with a code in a span. A span is a first code and the code after the last.

    If the spans have many rows, it is faster to look at the codes of all rows, one after the other in memory.
    """
    if column.is_list or sum(len(column.rows_between(*span)) for span in spans) < len(mask) // 16:
        for span in spans:
            mask[column.rows_between(*span)] = True
        return
    is_wanted = np.zeros(len(column.terms) + 1, bool)  # the last element is for the code -1
    for first, last in spans:
        is_wanted[first:last] = True
    mask |= is_wanted[column.lowest]


def _bounds(wanted: Between, column: Column) -> tuple[int, int]:
    """Return the first code of the values in a range, and the code after the last."""
    low, high = 0, len(column.terms)
    for operator, value in wanted.bounds:
        first, last = span_of(column, value, f"{wanted.place}.{operator}")
        if operator in ("gt", "gte"):
            low = max(low, first if operator == "gte" else last)
        else:
            high = min(high, last if operator == "lte" else first)
    return low, high


def span_of(column: Column, value: Value, place: str) -> tuple[int, int]:
    """Return the first code of a value and the code after its last code.

    For a missing value, both are the next term's code. Raises InvalidRequest for a value of another kind.
    """
    try:
        if column.kind == "date":
            first, last = np.searchsorted(column.terms, date_span(value))
            return int(first), int(last)
        return column.span(CONVERTERS[column.kind](value))
    except ValueError as error:
        raise wrong_kind(column, value, place) from error


def wrong_kind(column: Column, value: Value, place: str) -> InvalidRequest:
    """Return the error for a value that is not of the column's kind."""
    return InvalidRequest(
        f"{place} is {excerpt(value)}: the values of {excerpt(column.name)} are {_PLURALS[column.kind]}"
    )
