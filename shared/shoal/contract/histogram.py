"""Histograms: the numbers of measurements between limits. Heartbeats contain them, and Prometheus can read them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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
