"""Histograms: how they count, and which maps are refused as histograms."""

from typing import Any

import pytest

from shoal.contract.histogram import Histogram

LIMITS = (1, 2, 4)


def of(*values: float) -> Histogram:
    histogram = Histogram(LIMITS)
    for value in values:
        histogram.add(value)
    return histogram


def test_a_value_counts_at_the_first_limit_not_below_it() -> None:
    histogram = of(0, 1, 1.5, 4, 4.5, 100)
    assert (histogram.counts, histogram.sum) == ([2, 1, 1, 2], 111)


def test_the_map_of_a_heartbeat_is_read_and_an_invalid_one_is_refused() -> None:
    found = of(1, 3).to_map()
    assert Histogram.from_map(found).to_map() == found == {"limits": [1, 2, 4], "counts": [1, 0, 1, 0], "sum": 4.0}
    changes: list[dict[str, Any]] = [{"counts": counts} for counts in ([1, 2, 3], [1, 2, 3, -1], [1, 2, 3, 0.5], None)]
    changes += [{"limits": limits} for limits in ([1, 4, 2], [0, 1, 2], [1, 2, float("nan")])]
    for wrong in (None, *(found | one for one in (*changes, {"limits": [], "counts": [5]}, {"sum": "x"}, {"more": 1}))):
        with pytest.raises(ValueError, match="histogram"):
            Histogram.from_map(wrong)
