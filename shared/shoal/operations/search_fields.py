"""The options of a search that use fields of documents: `sort`, `boost` and `facets`."""

from dataclasses import dataclass
from typing import Any

from shoal.contract.checks import check_names, check_number, check_string
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.operations.search_filter import Value, parse_value

#: Largest numbers of fields to sort by, of boosts, and of facets. For each of them, a worker goes over all documents.
MAX_SORTS, MAX_BOOSTS, MAX_FACETS = 4, 8, 8

#: Largest number of values of a boost. A worker looks up each value and marks its documents.
MAX_BOOST_VALUES = 1_000

#: Largest absolute value of a boost's weight. Scores of a dense search are between -1 and 1.
MAX_WEIGHT = 1_000.0

#: Largest absolute value of a number in a boost. msgpack can hold every whole number up to it.
MAX_NUMBER = 9e18


@dataclass(frozen=True, slots=True)
class Sort:
    """A field by which hits are sorted. Documents without a value come last. `place` is the path of the sort."""

    field: str
    is_descending: bool
    place: str


@dataclass(frozen=True, slots=True)
class Boost:
    """A number that is added to the score: `weight` times a share from 0 to 1, which depends on a field's value.

    With `values`, the share is 1 for a document that has one of them. With `half_life`, which is in seconds for dates,
    the share is 1 at `origin`, by default the time of the search, and halves with each half-life of distance from it.
    With neither, the share grows from 0 for the smallest value in the index to 1 for the largest. `place` is the path
    of the boost in the request.
    """

    field: str
    weight: float
    place: str
    values: tuple[Value, ...] | None = None
    half_life: float | None = None
    is_in_days: bool = False
    origin: Value | None = None


def parse_sort(value: Any) -> tuple[Sort, ...]:
    """Return the fields to sort by, the most important one first. Raises InvalidRequest, which names the wrong item."""
    return tuple(_sort(item, f"sort[{n}]") for n, item in enumerate(_list("sort", value, MAX_SORTS)))


def parse_boosts(value: Any) -> tuple[Boost, ...]:
    """Return the boosts. Raises InvalidRequest, which names the wrong item."""
    return tuple(_boost(item, f"boost[{n}]") for n, item in enumerate(_list("boost", value, MAX_BOOSTS)))


def parse_facets(value: Any) -> tuple[str, ...]:
    """Return the fields whose values are counted, each once. Raises InvalidRequest, which names the wrong item."""
    names = _list("facets", value, MAX_FACETS)
    return tuple(dict.fromkeys(_string(name, f"facets[{n}]") for n, name in enumerate(names)))


def _sort(value: Any, place: str) -> Sort:
    check_names(place, value, ("field", "order"))
    if (order := value.get("order", "asc")) not in ("asc", "desc"):
        raise InvalidRequest(f"{place}.order is {excerpt(order)}: it takes one of asc, desc")
    return Sort(_string(value.get("field"), f"{place}.field"), order == "desc", place)


def _boost(parts: Any, place: str) -> Boost:
    check_names(place, parts, ("field", "weight", "value", "half_life_days", "half_life", "origin"))
    field, weight = _string(parts.get("field"), f"{place}.field"), _number(parts.get("weight"), f"{place}.weight")
    if abs(weight) > MAX_WEIGHT:
        raise InvalidRequest(f"{place}.weight is {excerpt(weight)}: it takes -{MAX_WEIGHT:,.0f} to {MAX_WEIGHT:,.0f}")
    shapes = [name for name in ("value", "half_life_days", "half_life") if name in parts]
    if len(shapes) > 1:
        raise InvalidRequest(f"{place} has {shapes[0]} and {shapes[1]}: drop one of the two")
    if "origin" in parts and shapes not in (["half_life_days"], ["half_life"]):
        raise InvalidRequest(f"{place}.origin goes with half_life or half_life_days: set one, or drop it")
    if not shapes:
        return Boost(field, weight, place)
    if shapes == ["value"]:
        given, place_of_values = parts["value"], f"{place}.value"
        if not isinstance(given, list):
            return Boost(field, weight, place, (parse_value(given, place_of_values),))
        values = enumerate(_list(place_of_values, given, MAX_BOOST_VALUES))
        return Boost(field, weight, place, tuple(parse_value(one, f"{place_of_values}[{n}]") for n, one in values))
    half_life, is_in_days = _number(parts[shapes[0]], f"{place}.{shapes[0]}"), shapes[0] == "half_life_days"
    if half_life <= 0:
        raise InvalidRequest(f"{place}.{shapes[0]} is {excerpt(half_life)}: it takes a number above 0")
    if not is_in_days and "origin" not in parts:
        raise InvalidRequest(f"{place}.origin is missing: add the best number, or for dates use half_life_days")
    origin = parse_value(parts["origin"], f"{place}.origin") if "origin" in parts else None
    return Boost(field, weight, place, None, half_life * (86_400.0 if is_in_days else 1.0), is_in_days, origin)


def _list(name: str, value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a list that is not empty")
    if len(value) > most:
        raise InvalidRequest(f"{name} has {len(value):,} entries: it takes at most {most:,}")
    return value


def _string(value: Any, place: str) -> str:
    if not value:
        raise InvalidRequest(f"{place} is {excerpt(value)}: it takes the name of a field")
    check_string(place, value, "the name of a field")
    return str(value)


def _number(value: Any, place: str) -> float:
    check_number(place, value, -MAX_NUMBER, MAX_NUMBER)
    return float(value)
