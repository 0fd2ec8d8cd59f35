"""Measures, intervals and tests, compared with values by hand and with other ways to compute them."""

import math
from itertools import product

import numpy as np
import pytest

from shoal.evaluation.evaluation import NUM_RESAMPLES, Difference, Interval, Values, differences, interval, measures

#: The gains of the hits of a query, and of all its judged documents.
GAINS, JUDGED = [3, 2, 3, 0, 1, 2], [3, 3, 3, 2, 2, 2, 1, 0, -1]


def test_measures_by_hand() -> None:
    found = 3 + 2 / math.log2(3) + 3 / 2 + 1 / math.log2(6) + 2 / math.log2(7)
    best = 3 + 3 / math.log2(3) + 3 / 2 + 2 / math.log2(5) + 2 / math.log2(6) + 2 / math.log2(7)
    precision = (1 + 1 + 1 + 4 / 5 + 5 / 6) / 7
    assert measures(GAINS, JUDGED, 6, 6) == pytest.approx(
        {"nDCG@6": found / best, "recall@6": 5 / 7, "MRR@6": 1, "MAP@6": precision}
    )
    expected = {"nDCG@1": 1, "recall@3": 3 / 7, "MRR@1": 1, "MAP@3": 3 / 7}
    assert measures([3, 2, 3, 1], JUDGED, 1, 3) == pytest.approx(expected)
    assert measures(GAINS, JUDGED, 100, 100)["nDCG@100"] == pytest.approx(found / (best + 1 / 3))
    assert [measures([0, -1, 2, 3], JUDGED, k, 10)[f"MRR@{k}"] for k in (2, 10)] == [0, 1 / 3]
    assert measures([], [1], 10, 100) == {"nDCG@10": 0, "recall@100": 0, "MRR@10": 0, "MAP@100": 0}


def difference(values: Values, others: Values) -> Difference:
    """Return the difference of a setting with `values` to a first setting with `others`."""
    (found,) = differences(["first", "second"], [others, values])
    assert found.setting == "second"
    return found


def test_an_interval_has_about_two_standard_errors_on_each_side() -> None:
    values = np.random.default_rng(1).random(400)
    error = values.std() / math.sqrt(len(values))
    found = interval(values)
    assert found == interval(values.copy())
    assert found.mean == pytest.approx(values.mean())
    assert (found.high - found.mean, found.mean - found.low) == pytest.approx((1.96 * error, 1.96 * error), rel=0.05)


class TestDifferences:
    def test_p_is_the_share_of_sign_changes_with_a_difference_as_large(self) -> None:
        values, others = np.array([0.5, 0.9, 0.4, 0.8, 0.7, 0.6]), np.array([0.4, 0.5, 0.6, 0.3, 0.4, 0.6])
        deltas = values - others
        sums = [abs(sum(s * d for s, d in zip(signs, deltas, strict=True))) for signs in product((1, -1), repeat=6)]
        exact = sum(each >= abs(deltas.sum()) - 1e-9 for each in sums) / len(sums)
        found = difference(values, others)
        assert found.p == pytest.approx(exact, abs=0.02)
        assert (found.num_better, found.num_worse, found.num_equal) == (4, 1, 1)
        assert found.interval.mean == pytest.approx(deltas.mean())

    def test_queries_are_compared_in_pairs(self) -> None:
        """The test finds a difference of settings, though the queries differ much more."""
        others = np.random.default_rng(3).random(100)
        assert difference(others + 0.01, others).p == 1 / (NUM_RESAMPLES + 1)

    def test_a_setting_does_not_differ_from_itself(self) -> None:
        values = np.random.default_rng(4).random(50)
        found = difference(values, values.copy())
        assert (found.p, found.num_equal, found.interval) == (1.0, 50, Interval(0.0, 0.0, 0.0))

    def test_several_differences_are_adjusted_by_holm(self) -> None:
        rng = np.random.default_rng(6)
        values = [rng.random(30) + shift for shift in (0, 0.12, 0.2, 0.16)]
        found = differences("abcd", values)
        low, middle, high = sorted(each.p for each in found)
        assert low < middle < high < 0.3
        adjusted = [3 * low, max(3 * low, 2 * middle), max(2 * middle, high)]
        assert sorted((each.p, each.p_of_all) for each in found) == [*zip((low, middle, high), adjusted, strict=True)]
