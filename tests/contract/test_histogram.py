"""Histograms: how they count and estimate, and which maps are refused as histograms."""

from typing import Any

import pytest

from shoal.contract.histogram import Histogram, total

LIMITS = (1, 2, 4)


def of(*values: float) -> Histogram:
    histogram = Histogram(LIMITS)
    for value in values:
        histogram.add(value)
    return histogram


def test_a_value_counts_at_the_first_limit_not_below_it_and_quantiles_are_estimated() -> None:
    histogram = of(0, 1, 1.5, 4, 4.5, 100)
    assert (histogram.counts, histogram.num_values, histogram.sum) == ([2, 1, 1, 2], 6, 111)
    histogram = of(0.5, 0.5, 1.5, 1.5, 3, 3, 3, 3)
    assert [histogram.quantile(share) for share in (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)] == [0.5, 1, 1.5, 2, 3, 4]
    assert (of(100).quantile(0.5), of().quantile(0.5)) == (4, None)


def test_the_map_of_a_heartbeat_is_read_and_an_invalid_one_is_refused() -> None:
    found = of(1, 3).to_map()
    assert Histogram.from_map(found).to_map() == found == {"limits": [1, 2, 4], "counts": [1, 0, 1, 0], "sum": 4.0}
    changes: list[dict[str, Any]] = [{"counts": counts} for counts in ([1, 2, 3], [1, 2, 3, -1], [1, 2, 3, 0.5], None)]
    changes += [{"limits": limits} for limits in ([1, 4, 2], [0, 1, 2], [1, 2, float("nan")])]
    for wrong in (None, *(found | one for one in (*changes, {"limits": [], "counts": [5]}, {"sum": "x"}, {"more": 1}))):
        with pytest.raises(ValueError, match="histogram"):
            Histogram.from_map(wrong)


def test_the_difference_has_the_values_measured_since() -> None:
    earlier = of(1, 3)
    later = of(1, 3, 5, 0.5)
    assert later.minus(earlier).to_map() == of(5, 0.5).to_map()
    assert earlier.minus(later) is earlier  # counts that fell come from another worker
    assert later.minus(Histogram((1, 2))) is later


def test_histograms_of_the_same_limits_are_added_up() -> None:
    together = total([of(1), of(3, 9), Histogram((1, 2), [1, 0, 0], 1.0)])
    assert together is not None
    assert together.to_map() == of(1, 3, 9).to_map()
    assert total([]) is None
