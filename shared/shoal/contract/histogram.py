"""Histograms: the numbers of measurements between limits. Heartbeats contain them, and Prometheus can read them."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Self


@dataclass(slots=True)
class Histogram:
    """Counts of measurements between limits. A measurement counts at the first limit that it does not exceed.

    The `limits` ascend. `counts` has one more number, for measurements above all limits. One thread adds, others may
    read.
    """

    limits: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.limits) + 1)

    @classmethod
    def from_map(cls, found: Any) -> Self:
        """Return the histogram in a map of a heartbeat. Raises ValueError if it is not valid."""
        if not isinstance(found, dict) or found.keys() != {"limits", "counts", "sum"}:
            raise ValueError("a histogram is a map of limits, counts and sum")
        limits, counts, total = found["limits"], found["counts"], found["sum"]
        if not (isinstance(limits, list) and isinstance(counts, list) and len(counts) == len(limits) + 1 > 1):
            raise ValueError("a histogram has limits, and one count more")
        if not all(isinstance(number, int | float) for number in [*limits, total]):
            raise ValueError("the limits and the sum of a histogram are numbers")
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError("the counts of a histogram are whole numbers from 0 on")
        if not all(low < high for low, high in pairwise([0, *limits])):
            raise ValueError("the limits of a histogram ascend, from above 0 on")
        return cls(limits, counts, total)

    def to_map(self) -> dict[str, Any]:
        """Return the histogram as a map for a heartbeat."""
        return {"limits": list(self.limits), "counts": list(self.counts), "sum": self.sum}

    def add(self, value: float) -> None:
        """Count one measurement."""
        self.counts[bisect_left(self.limits, value)] += 1
        self.sum += value

    @property
    def num_values(self) -> int:
        """The number of measurements."""
        return sum(self.counts)

    def minus(self, earlier: "Histogram") -> "Histogram":
        """Return the measurements since `earlier`, or all if `earlier` is not an earlier state of this histogram."""
        counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=False)]
        if list(self.limits) != list(earlier.limits) or min(counts) < 0:
            return self
        return Histogram(self.limits, counts, self.sum - earlier.sum)

    def quantile(self, share: float) -> float | None:
        """Return the value that this share of the measurements does not exceed, estimated as Prometheus does.

        Between two limits, measurements are assumed to be evenly spread. A measurement above the highest limit counts
        as equal to that limit. Without measurements, return None.
        """
        rank = share * self.num_values
        if not rank:
            return None
        until = list(accumulate(self.counts))
        n = bisect_left(until, rank)
        if n >= len(self.limits):
            return self.limits[-1]
        low = self.limits[n - 1] if n else 0.0
        return low + (self.limits[n] - low) * (1 - (until[n] - rank) / self.counts[n])


def total(histograms: Iterable[Histogram]) -> Histogram | None:
    """Return the sum of the histograms that have the same limits as the first one, or None without histograms."""
    found = list(histograms)
    if not found:
        return None
    same = [one for one in found if list(one.limits) == list(found[0].limits)]
    counts = [sum(of_limit) for of_limit in zip(*(one.counts for one in same), strict=True)]
    return Histogram(found[0].limits, counts, sum(one.sum for one in same))
