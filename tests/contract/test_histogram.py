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


def test_a_histogram_survives_a_heartbeat() -> None:
    assert Histogram.from_map(of(1, 3).to_map()).to_map() == {"limits": [1, 2, 4], "counts": [1, 0, 1, 0], "sum": 4.0}


@pytest.mark.parametrize(
    "change",
    [
        {"counts": [1, 2, 3]},
        {"counts": [1, 2, 3, -1]},
        {"counts": [1, 2, 3, 0.5]},
        {"counts": None},
        {"limits": [], "counts": [5]},
        {"limits": [1, 4, 2]},
        {"limits": [0, 1, 2]},
        {"limits": [1, 2, float("nan")]},
        {"sum": "x"},
        {"more": 1},
        None,
    ],
)
def test_an_invalid_histogram_is_refused(change: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram.from_map(None if change is None else of(1).to_map() | change)
