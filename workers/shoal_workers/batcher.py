"""Cuts texts into batches of similar length: it knows tokens, but no tensors and no queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeVar

#: What one more forward pass costs, in tokens of padding. Measured: a pass takes as long as thirty tokens before its
#: first one, and padding, which only attention computes, takes about a third of a token's time.
PASS_COST = 90


class Sized(Protocol):
    """Anything with a number of tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the text, special ones included."""
        ...


Row = TypeVar("Row", bound=Sized)


@dataclass(frozen=True, slots=True)
class Batcher(Generic[Row]):
    """Finds the batches that cost least, padding and passes together, under a budget of padded tokens each."""

    max_batch_tokens: int
    pass_cost: int = PASS_COST

    def cut(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The rows in batches, shortest first; a row longer than the budget is a batch of its own."""
        ordered = sorted(rows, key=lambda row: row.num_tokens)
        steps = [len(list(group)) for _, group in groupby(row.num_tokens for row in ordered)]
        ends = [0]
        for step in steps:
            ends.append(ends[-1] + step)
        batches = []
        for start, end in self._cheapest(ordered, ends):
            size = max(1, self.max_batch_tokens // ordered[end - 1].num_tokens)
            batches += [list(ordered[n : min(n + size, end)]) for n in range(start, end, size)]
        return batches

    def _cheapest(self, ordered: Sequence[Row], ends: list[int]) -> list[tuple[int, int]]:
        """The best cuts, by dynamic programming over the places where the length changes."""
        cost, cut_from = [0.0], [0]
        for n in range(1, len(ends)):
            length = ordered[ends[n] - 1].num_tokens
            options = [(cost[m] + self._cost(ends[n] - ends[m], length), m) for m in range(n)]
            best, m = min(options)
            cost.append(best)
            cut_from.append(m)
        cuts, n = [], len(ends) - 1
        while n:
            cuts.append((ends[cut_from[n]], ends[n]))
            n = cut_from[n]
        return cuts[::-1]

    def _cost(self, num_rows: int, length: int) -> float:
        num_passes = -(-num_rows // max(1, self.max_batch_tokens // length))
        return num_rows * length + num_passes * self.pass_cost
