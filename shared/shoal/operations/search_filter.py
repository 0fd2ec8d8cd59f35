"""The filter of a search: a small JSON grammar over the fields of documents (docs/search.md)."""

import math
import re
from dataclasses import dataclass
from typing import Any

from shoal.contract.checks import MAX_VALUE_CHARS, check_string, check_type
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest

#: A value with which a field is compared.
Value = str | int | float | bool

#: The operators that together make a range.
RANGE_OPERATORS = ("gt", "gte", "lt", "lte")

#: All operators on a field.
OPERATORS = ("eq", "in", *RANGE_OPERATORS, "exists")

#: Largest number of conditions in a filter, including `and`, `or` and `not`. Each condition may need a scan of all
#: documents. A filter has at most as many levels as conditions.
MAX_FILTER_CONDITIONS = 32

#: Largest number of values in all lists of a filter together.
MAX_FILTER_VALUES = 1_000

#: The character before the name of a field if the name is also an operator or begins with this character.
ESCAPE = "\\"

_PLAIN_NAME = re.compile(r"[\w-]{1,60}")


@dataclass(frozen=True, slots=True)
class OneOf:
    """The condition that a field has one of some values. `place` is its path in the request, for messages."""

    field: str
    values: tuple[Value, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Between:
    """The condition that a single value of a field meets all `bounds`, pairs of a range operator and a value."""

    field: str
    bounds: tuple[tuple[str, Value], ...]
    place: str


@dataclass(frozen=True, slots=True)
class Exists:
    """The condition that a field has a value, or has none. Null, "" and [] do not count as values."""

    field: str
    is_wanted: bool
    place: str


@dataclass(frozen=True, slots=True)
class All:
    """The condition that all parts are true. Without parts, it is true."""

    parts: "tuple[Filter, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The condition that at least one part is true. Without parts, it is false."""

    parts: "tuple[Filter, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The condition that its part is false."""

    part: "Filter"


Filter = OneOf | Between | Exists | All | AnyOf | Not


def parse_filter(value: Any) -> Filter:
    """Return the filter in a JSON value. Raises InvalidRequest, which names a path such as "filter.and[1].year"."""
    return _Parser().filter(value, "filter")


def parse_value(value: Any, place: str) -> Value:
    """Return the value at the path `place`. Raises InvalidRequest if no field can be compared with it."""
    if value is None or value == "":
        raise InvalidRequest(f'{place} is {excerpt(value)}, which is no value: {{"exists": false}} finds no value')
    if isinstance(value, list):
        raise InvalidRequest(f'{place} is a list: {{"in": [...]}} matches any of several values')
    if not isinstance(value, str | int | float):
        raise InvalidRequest(f"{place} is {excerpt(value)}: it takes a string, a number, true or false")
    if isinstance(value, str):
        check_string(place, value, "a value", MAX_VALUE_CHARS)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{place} is {value}: it takes a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"{place} is {excerpt(value)}: it takes a whole number of 64 bits")
    return value


def place_of(parent: str, name: str) -> str:
    """Return the path of `name` in the map at the path `parent`, for messages."""
    return f"{parent}.{name}" if _PLAIN_NAME.fullmatch(name) else f"{parent}[{excerpt(name)}]"


class _Parser:
    """A parser of one filter, which counts the filter's conditions and values."""

    def __init__(self) -> None:
        self._num_conditions, self._num_values = 0, 0

    def filter(self, value: Any, place: str) -> Filter:
        """Return the filter in the value at the path `place`."""
        check_type(place, value, dict, 'a map, as {"year": {"gte": 2001}}')
        if not value:
            self._count_condition(place)  # an empty filter is a condition too
        parts = [self._part(name, item, place_of(place, str(name))) for name, item in value.items()]
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _part(self, name: Any, value: Any, place: str) -> Filter:
        self._count_condition(place)
        if not isinstance(name, str):
            raise InvalidRequest(f"{place}: the name of a field is a string")
        check_string(place, name, "the name of a field")
        if name == "not":
            return Not(self.filter(value, place))
        if name in ("and", "or"):
            if not isinstance(value, list):
                raise InvalidRequest(
                    f"{place} is {excerpt(value)}: it takes a list of filters; a field of that name is {ESCAPE}{name}"
                )
            parts = tuple(self.filter(item, f"{place}[{n}]") for n, item in enumerate(value))
            return All(parts) if name == "and" else AnyOf(parts)
        return self._condition(name.removeprefix(ESCAPE), value, place)

    def _condition(self, field: str, value: Any, place: str) -> Filter:
        if not isinstance(value, dict):
            return OneOf(field, (parse_value(value, place),), place)
        if not value:
            raise InvalidRequest(f"{place} is an empty map: it takes one of {', '.join(OPERATORS)}")
        for operator in value:
            if operator not in OPERATORS:
                raise InvalidRequest(f"{place}: unknown operator {excerpt(operator)}: use {', '.join(OPERATORS)}")
            if len(value) > 1 and operator not in RANGE_OPERATORS:
                raise InvalidRequest(f"{place}.{operator} is next to other operators: put each into an `and`")
        operator, wanted = next(iter(value.items()))
        where = f"{place}.{operator}"
        if operator == "exists":
            check_type(where, wanted, bool, "true or false")
            return Exists(field, wanted, where)
        if operator == "in":
            return OneOf(field, self._values(wanted, where), where)
        if operator == "eq":
            return OneOf(field, (parse_value(wanted, where),), where)
        bounds = ((name, parse_value(bound, f"{place}.{name}")) for name, bound in value.items())
        return Between(field, tuple(bounds), place)

    def _values(self, values: Any, place: str) -> tuple[Value, ...]:
        if not isinstance(values, list):
            raise InvalidRequest(f"{place} is {excerpt(values)}: it takes a list of values")
        self._num_values += len(values)
        if self._num_values > MAX_FILTER_VALUES:
            raise InvalidRequest(
                f"{place}: the filter has over {MAX_FILTER_VALUES:,} values: give the documents a "
                "field that replaces them"
            )
        return tuple(parse_value(value, f"{place}[{n}]") for n, value in enumerate(values))

    def _count_condition(self, place: str) -> None:
        self._num_conditions += 1
        if self._num_conditions > MAX_FILTER_CONDITIONS:
            raise InvalidRequest(
                f"{place}: the filter has over {MAX_FILTER_CONDITIONS} conditions: ask for several values of a field "
                "by `in`, or give the documents a field that replaces them"
            )
