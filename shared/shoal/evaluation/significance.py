"""Statistics by resampling the queries: intervals of means, and tests of the differences between settings.

The random numbers come from a fixed seed, so the same values give the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Resamples for an interval, and for a test, and how many of them are in memory at a time.
NUM_RESAMPLES, _AT_A_TIME = 10_000, 100

#: Part of the resamples whose mean is inside an interval.
CONFIDENCE = 0.95

_SEED = 20_261_123

#: Values of one measure, one for each query: float64 `[queries]`.
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the queries, with the interval that has `CONFIDENCE` of the means of resampled queries."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a setting to the first one over the same queries.

    `p` is the probability that a difference as large comes by chance, if neither is better, and `p_of_all` that of one
    in all comparisons together. `num_better` queries have a higher value than with the first setting.
    """

    setting: str
    interval: Interval
    p: float
    p_of_all: float
    num_better: int
    num_worse: int
    num_equal: int


def interval(values: Values) -> Interval:
    """Return the mean of the values and its interval: percentiles of the bootstrap over queries."""
    rng, num = np.random.default_rng(_SEED), len(values)
    means = [values[rng.integers(num, size=(_AT_A_TIME, num))].mean(axis=1) for _ in range(NUM_RESAMPLES // _AT_A_TIME)]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def differences(names: Sequence[str], values: Sequence[Values]) -> list[Difference]:
    """Return the difference of each setting but the first to the first, whose values are in the same order."""
    deltas = [each - values[0] for each in values[1:]]
    for each in deltas:
        each[np.abs(each) < 1e-12] = 0.0  # of equal rankings: sums in another order
    ps = [_p(each) for each in deltas]
    return [
        Difference(name, interval(each), p, p_of_all, *(int(mask.sum()) for mask in (each > 0, each < 0, each == 0)))
        for name, each, p, p_of_all in zip(names[1:], deltas, ps, adjusted(ps), strict=True)
    ]


def adjusted(ps: Sequence[float]) -> list[float]:
    """Return the probabilities for several tests together, by Holm: one of them is below 0.05 by chance in 5 %."""
    found, largest = list(ps), 0.0
    for rank, place in enumerate(np.argsort(ps, kind="stable").tolist()):
        found[place] = largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
    return found


def _p(deltas: Values) -> float:
    """Return Fisher's probability, paired and two-sided: the signs of the differences are changed at random."""
    rng, num_as_large = np.random.default_rng(_SEED), 0
    for _ in range(NUM_RESAMPLES // _AT_A_TIME):
        signs = rng.integers(2, size=(_AT_A_TIME, len(deltas)), dtype=np.int8) * 2 - 1
        num_as_large += int((np.abs(signs @ deltas) >= np.abs(deltas.sum()) - 1e-9).sum())
    return (num_as_large + 1) / (NUM_RESAMPLES + 1)
