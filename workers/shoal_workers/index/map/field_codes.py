"""The values of a field as codes of one byte, by which the points of a map are coloured."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.columns import Column
from shoal_workers.index.files.field_kinds import shown
from shoal_workers.index.search.fields import Fields

#: Most values with a code of their own: eyes can tell few more colours apart.
MAX_VALUES = 8

#: The code of a document that has no value, and that of the highest value on a scale.
NO_VALUE, HIGHEST = 255, 254

#: Part of the values at each end of a scale that are shown like the one next to them: a few far ones would leave the
#: others one colour.
_ENDS = 0.02

#: Distance of the median from the middle of a scale from which on values are skewed: half of them would have nearly one
#: colour. 0.5 is the half of the scale.
_SKEWED = 0.3

#: Kinds of fields whose values are on a scale.
SCALES = ("number", "date")


def field_codes(name: str, fields: Fields, rows: NDArray[np.int64]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Return the codes of the values that documents have in a field, uint8 `[rows]`, and the legend as plain values.

    Added documents follow those of the version. Of several values of a document, the lowest counts. Raises
    InvalidRequest for a field that the index has not, or whose values are not known.
    """
    fields.check_values(name, "field")
    kind = fields.kind(name, "field")
    values = _values_of(fields.version.get(name), rows[rows < fields.count])
    values += _values_of(fields.added.get(name), rows[rows >= fields.count] - fields.count)
    codes, legend = (_on_scale if kind in SCALES else _by_value)(kind, values)
    return codes, {"name": name, "kind": kind, "num_without": values.count(None), **legend}


def _values_of(column: Column | None, rows: NDArray[np.int64]) -> list[Any]:
    """Return the lowest value of each row, or None."""
    if column is None:
        return [None] * len(rows)
    codes, places = np.unique(column.lowest[rows], return_inverse=True)
    values = [None if code < 0 else value for code, value in zip(codes.tolist(), column.values(codes), strict=True)]
    return [values[place] for place in places.tolist()]


def _by_value(kind: str, values: Sequence[Any]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Return a code for each of the most frequent values, the next one for all others, and their numbers."""
    counts = Counter(value for value in values if value is not None)
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_VALUES]
    codes = {value: code for code, (value, _) in enumerate(best)} | {None: NO_VALUE}
    legend = {
        "values": [{"value": shown(kind, value), "count": count} for value, count in best],
        "num_others": counts.total() - sum(count for _, count in best),
    }
    return np.array([codes.get(value, len(best)) for value in values], np.uint8), legend


def _on_scale(kind: str, values: Sequence[Any]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Return codes from 0 to `HIGHEST` for values on a scale, and its ends; None where no document has a value.

    Codes of skewed values go by rank, and then there is a `middle`.
    """
    has_value = np.array([value is not None for value in values], bool)
    codes = np.full(len(values), NO_VALUE, np.uint8)
    if not has_value.any():
        return codes, {"low": None, "high": None}
    found = np.array([value for value in values if value is not None])
    low, median, high = np.quantile(found, [_ENDS, 0.5, 1 - _ENDS], method="nearest")
    by_rank = len(np.unique(found)) > 2 and abs(_shares(median, low, high) - 0.5) > _SKEWED
    shares = _ranks(found) if by_rank else _shares(found, low, high)
    codes[has_value] = np.rint(shares * HIGHEST)
    legend = {"low": found.min(), "middle": found[np.abs(shares - 0.5).argmin()], "high": found.max()}
    told = legend if by_rank else {"low": low, "high": high}
    return codes, {name: shown(kind, value) for name, value in told.items()}


def _shares(values: Any, low: Any, high: Any) -> Any:
    """Return where values are between two others, from 0 to 1. If these are equal, it is 0.5 there and else an end."""
    size = high / 2 - low / 2  # the difference of two numbers may be more than a float64 holds
    return np.clip((values / 2 - low / 2) / size, 0, 1) if size > 0 else (np.sign(values / 2 - low / 2) + 1) / 2


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ranks of values, at least two of which differ, from 0 to 1; equal ones have that in their middle."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - counts / 2)[places]
    least = ranks.min()
    return np.asarray((ranks - least) / (ranks.max() - least))
