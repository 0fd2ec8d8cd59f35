"""Statistics by resampling the queries: intervals of means, and tests of differences between two settings.

The random numbers come from a fixed seed, so the same values give the same figures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Resamples for an interval, and for a test.
NUM_RESAMPLES = 10_000

#: Part of the resamples whose mean is inside an interval.
CONFIDENCE = 0.95

#: Most random numbers at a time.
_MAX_NUMBERS = 2**21

_SEED = 20_261_123

#: Values of one measure, one for each query: float64 `[queries]`.
Values = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean over the queries, with the interval that has `CONFIDENCE` of the means of resampled queries."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a setting to another one over the same queries.

    `p` is the probability that a difference as large comes by chance, if neither is better. `num_better` queries have a
    higher value than with the other setting, and `num_worse` a lower one.
    """

    interval: Interval
    p: float
    num_better: int
    num_worse: int
    num_equal: int


def interval(values: Values) -> Interval:
    """Return the mean of the values and its interval: percentiles of the bootstrap over queries."""
    rng = np.random.default_rng(_SEED)
    means = [values[rng.integers(len(values), size=(num, len(values)))].mean(axis=1) for num in _parts(len(values))]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def difference(values: Values, others: Values) -> Difference:
    """Return the difference of `values` to `others`, which are of the same queries in the same order.

    The test is Fisher's, paired and two-sided: it changes the signs of the differences at random.
    """
    differences = values - others
    differences[np.abs(differences) < 1e-12] = 0.0  # of equal rankings: sums in another order
    found = np.abs(differences.sum())
    rng, num_as_large = np.random.default_rng(_SEED), 0
    for num in _parts(len(differences)):
        signs = rng.integers(2, size=(num, len(differences)), dtype=np.int8) * 2 - 1
        num_as_large += int((np.abs(signs @ differences) >= found - 1e-9).sum())
    counts = [int(np.sum(mask)) for mask in (differences > 0, differences < 0, differences == 0)]
    return Difference(interval(differences), (num_as_large + 1) / (NUM_RESAMPLES + 1), *counts)


def adjusted(ps: Sequence[float]) -> list[float]:
    """Return the probabilities for several tests together, by Holm: one of them is below 0.05 by chance in 5 %."""
    found, largest = list(ps), 0.0
    for rank, place in enumerate(np.argsort(ps, kind="stable").tolist()):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        found[place] = largest
    return found


def _parts(num_queries: int) -> Iterator[int]:
    """Yield numbers of resamples that add up to `NUM_RESAMPLES`, so that few random numbers are in memory at a time."""
    step = max(1, _MAX_NUMBERS // num_queries)
    for start in range(0, NUM_RESAMPLES, step):
        yield min(step, NUM_RESAMPLES - start)
