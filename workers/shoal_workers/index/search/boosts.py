"""Boosts: numbers that a search adds to the scores of documents because of their fields."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.operations.search_fields import Boost
from shoal_workers.index.files.columns import Column
from shoal_workers.index.files.field_kinds import SECOND_US, to_date, to_number
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.filtering import span_of


def boosts_of(boosts: Sequence[Boost], fields: Fields, now: float) -> NDArray[np.float32]:
    """Return the sum of each document's boosts, float32 `[count + added]`.

    `now` is the time of the search in Unix seconds. Raises InvalidRequest for an unknown field, and for a field whose
    kind does not fit the boost.
    """
    for boost in boosts:
        _check(boost, fields)
    total = np.zeros(fields.count + fields.num_added)
    for columns, part in fields.parts:
        for boost in boosts:
            if (column := columns.get(boost.field)) is not None and len(column.terms):
                total[part] += boost.weight * _shares(column, _shares_of_terms(boost, column, fields, now))
    return total.astype(np.float32)


def _check(boost: Boost, fields: Fields) -> None:
    fields.check_values(boost.field, boost.place)
    if boost.values is not None:
        return
    if boost.half_life is None:
        way, kinds = "without a value, a boost", ["number", "date", "boolean"]
    else:
        way, kinds = ("half_life_days", ["date"]) if boost.is_in_days else ("half_life", ["number"])
    if (kind := fields.kind(boost.field, boost.place)) not in kinds:
        raise InvalidRequest(
            f"{boost.place}: {excerpt(boost.field)} has values of the kind {kind}: {way} takes a field of the kind "
            f"{' or '.join(kinds)}"
        )


def _shares_of_terms(boost: Boost, column: Column, fields: Fields, now: float) -> NDArray[np.float64]:
    """Return, for each term of a column, the share of the boost, from 0 to 1, that a document with this term gets."""
    if boost.values is not None:
        shares = np.zeros(len(column.terms))
        for value in boost.values:
            first, last = span_of(column, value, f"{boost.place}.value")
            shares[first:last] = 1
        return shares
    terms = np.asarray(column.terms, np.float64)
    if boost.half_life is not None:
        value = now if boost.origin is None else boost.origin  # only a boost by date may leave the origin out
        try:
            origin = float(to_date(value)) if boost.is_in_days else to_number(value)
        except ValueError as error:
            kind = "date" if boost.is_in_days else "number"
            raise InvalidRequest(f"{boost.place}.origin is {excerpt(value)}: it takes a {kind}") from error
        half_life = boost.half_life * (SECOND_US if boost.is_in_days else 1)
        with np.errstate(over="ignore"):  # an infinite number of half-lives gives the share 0
            return np.asarray(np.exp2(-np.abs(terms - origin) / half_life))
    known: Any = fields.version.get(boost.field)  # without a value in the version, the range of added documents counts
    known = known if known is not None and len(known.terms) else fields.added[boost.field]
    least, largest = (0.0, 1.0) if known.kind == "boolean" else (float(known.terms[0]), float(known.terms[-1]))
    span = largest / 2 - least / 2  # halved, because float64 may not hold the whole span
    # If all values are equal, their share is 0, and an added value that is larger by at least 1 has the share 1.
    return np.clip((terms / 2 - least / 2) / (span or 0.5), 0, 1)


def _shares(column: Column, of_terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each row: the largest share of its terms, or 0 without terms."""
    if not column.is_list:
        return np.append(of_terms, 0.0)[column.lowest]  # the code -1 selects the last element
    shares = np.zeros(len(column.lowest))
    np.maximum.at(shares, column.rows, np.repeat(of_terms, np.diff(column.starts)))
    return shares
