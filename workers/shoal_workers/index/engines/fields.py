"""Documents' fields in the form that engines keep and compare: numbers, and digests of keywords.

A field's name in an engine is `f` and the field's number, so no name and no value of a document needs quoting.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.operations.search_filter import All, AnyOf, Between, Exists, Filter, Not, OneOf, Value
from shoal_workers.index.files.columns import Column, Columns
from shoal_workers.index.files.field_kinds import CONVERTERS, date_span
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.filtering import check_filter, wrong_kind

#: Size of a keyword's digest in bytes.
DIGEST_BYTES = 8

#: A bound of a range: one of `>`, `>=`, `<` and `<=`, and a number.
Bound = tuple[str, float]

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class Language(NamedTuple):
    """The language in which an engine takes filters: functions that write a condition.

    `all_of` and `any_of` write that all or some conditions of a list, perhaps an empty one, hold, and `negation` that
    one does not. `exists` writes that a field has a value, `one_of` that it has one of some terms, and `between` that a
    value is within bounds. If `compares_each` is False, `between` compares the greatest value with lower bounds, and
    the least with upper bounds.
    """

    all_of: Callable[[Sequence[str]], str]
    any_of: Callable[[Sequence[str]], str]
    negation: Callable[[str], str]
    exists: Callable[[str], str]
    one_of: Callable[[str, Sequence[Any]], str]
    between: Callable[[str, Sequence[Bound]], str]
    compares_each: bool = False


def joined(word: str, none: str) -> Callable[[Sequence[str]], str]:
    """Return a function that writes conditions in brackets with a word between them, and `none` for no conditions."""
    return lambda conditions: word.join(f"({one})" for one in conditions) or none


def types_of(columns: Columns) -> dict[str, type]:
    """Return the type of each field's values, str or float, keyed by the field's name in engines."""
    return {key: str if columns[name].kind == "keyword" else float for name, key in _keys(columns).items()}


def values_of(columns: Columns, count: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of each of `count` rows, keyed by the field's name in engines."""
    keys = [(key, columns[name], _by_row(columns[name])) for name, key in _keys(columns).items()]
    for row in range(count):
        yield {
            key: [_term(column.kind, column.value(code)) for code in codes[starts[row] : starts[row + 1]].tolist()]
            for key, column, (codes, starts) in keys
        }


def written(wanted: Filter, fields: Fields, language: Language) -> str:
    """Return the filter in the language of an engine. The names and values in it are digests and numbers.

    Raises InvalidRequest for a condition on an unknown field, for a value that is not of its field's kind, and for a
    condition that the engine cannot check.
    """
    check_filter(wanted, fields)
    return _Writer(fields.version, language).filter(wanted)


class _Writer:
    """A writer of filters on some columns."""

    def __init__(self, columns: Columns, language: Language):
        self._columns, self._keys, self._language = columns, _keys(columns), language

    def filter(self, wanted: Filter) -> str:
        """Return the filter."""
        language = self._language
        match wanted:
            case All(parts):
                return language.all_of([self.filter(part) for part in parts])
            case AnyOf(parts):
                return language.any_of([self.filter(part) for part in parts])
            case Not(part):
                return language.negation(self.filter(part))
            case Exists(field, is_wanted):
                exists = language.exists(self._keys[field])
                return exists if is_wanted else language.negation(exists)
            case OneOf(field, values, place):
                column = self._columns[field]
                found = [_converted(column, value, place) for value in values]
                if column.kind == "date" or not found:
                    spans = [[(">=", first), ("<", end)] for first, end in found]
                    return language.any_of([self._between(field, span, place) for span in spans])
                return language.one_of(self._keys[field], [_term(column.kind, one) for one in found])
            case Between(field, bounds, place):
                column = self._columns[field]
                return self._between(field, [_bound(column, *bound, place) for bound in bounds], place)

    def _between(self, field: str, bounds: Sequence[Bound], place: str) -> str:
        has_two_ends = len({operator[0] for operator, _ in bounds}) == 2
        if has_two_ends and self._columns[field].is_list and not self._language.compares_each:
            raise InvalidRequest(
                f"{place}: some documents have several values of {excerpt(field)}, and the engine of this index cannot "
                "say whether one of several is between two bounds: give one bound, or search an index in files"
            )
        return self._language.between(self._keys[field], bounds)


def _bound(column: Column, operator: str, value: Value, place: str) -> Bound:
    """Return an operator and a number. A date is a span of time: a later date begins at its end or after."""
    found = _converted(column, value, f"{place}.{operator}")
    if column.kind == "date":
        first, end = found
        operator, found = {"gt": ("gte", end), "gte": ("gte", first), "lt": ("lt", first), "lte": ("lt", end)}[operator]
    return _OPERATORS[operator], _number(found)


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
    return blake2b(value, digest_size=DIGEST_BYTES).hexdigest() if kind == "keyword" else _number(value)


def _number(value: float) -> float:
    return float(value) + 0.0  # turns -0.0 into 0.0, because LanceDB tells them apart


def _keys(columns: Columns) -> dict[str, str]:
    return {name: f"f{n}" for n, name in enumerate(columns)}


def _by_row(column: Column) -> Any:
    """Return the codes of all rows, row by row, and the position where each row's codes begin."""
    order = np.argsort(column.rows, kind="stable")
    codes = np.repeat(np.arange(len(column.terms)), np.diff(column.starts))[order]
    return codes, np.searchsorted(column.rows[order], np.arange(column.codes.shape[1] + 1))
