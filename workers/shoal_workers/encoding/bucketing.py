"""Bucketing cuts texts into batches of similar length. It uses numbers of tokens, but no tensors and no queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import ceil
from typing import Protocol, TypeVar

#: Fixed cost of a forward pass, in tokens. Measured: a pass takes 2 ms of processor time and 0.1 ms for each token.
PASS_COST = 20

#: Row length at which attention takes as long as all other layers. Measured: at 256, a token takes 16 % longer than at
#: 16.
ATTENTION_LENGTH = 1_600


class Sized(Protocol):
    """An item with a number of tokens, special tokens included."""

    num_tokens: int


Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True, slots=True)
class Bucketing:
    """Cuts texts into batches of at most `max_batch_tokens`, so that attention and passes cost least in total.

    If texts do not share rows, the padding to the longest text of a batch counts as tokens.
    """

    max_batch_tokens: int
    shares_rows: bool = True

    def cut(self, items: Sequence[Item]) -> list[list[Item]]:
        """Return the items in batches, shortest items first. An item over `max_batch_tokens` is a batch of its own."""
        if len(items) == 1:
            return [list(items)]
        ordered = sorted(items, key=lambda item: item.num_tokens)
        ends = [0, *accumulate(len(list(group)) for _, group in groupby(item.num_tokens for item in ordered))]
        totals = [0, *accumulate(item.num_tokens for item in ordered)]
        batches = []
        for start, end in self._cheapest(ordered, ends, totals):
            batches += self._split(ordered[start:end])
        return batches

    def _split(self, items: Sequence[Item]) -> list[list[Item]]:
        """Return the items, in their order, in batches of at most `max_batch_tokens`."""
        batches: list[list[Item]] = []
        num_tokens = longest = 0
        for item in items:
            num_tokens, longest = num_tokens + item.num_tokens, max(longest, item.num_tokens)
            if not batches or self._size(num_tokens, longest, len(batches[-1]) + 1) > self.max_batch_tokens:
                batches.append([])
                num_tokens = longest = item.num_tokens
            batches[-1].append(item)
        return batches

    def part(self, items: Sequence[Item], max_cost: float, more_follow: bool = False) -> list[Item]:
        """Return the items of the next pass, which costs at most `max_cost`.

        If `more_follow` is False, all items are divided evenly among the passes that they need.
        """
        total, longest = sum(item.num_tokens for item in items), max(item.num_tokens for item in items)
        num_passes = max(1, ceil(total * (1 + longest / ATTENTION_LENGTH) / (max_cost - PASS_COST)))
        enough = max_cost if more_follow else total / num_passes
        num_tokens = longest = 0
        for n, item in enumerate(items):
            if num_tokens >= enough:
                return list(items[:n])
            num_tokens, longest = num_tokens + item.num_tokens, max(longest, item.num_tokens)
            size = self._size(num_tokens, longest, n + 1)
            if n and (size > self.max_batch_tokens or self.cost(size, longest) > max_cost):
                return list(items[:n])
        return list(items)

    def cost_of(self, items: Sequence[Item]) -> float:
        """Return the cost of a pass over the items. The unit is the cost of one token in a short row."""
        longest = max(item.num_tokens for item in items)
        return self.cost(self._size(sum(item.num_tokens for item in items), longest, len(items)), longest)

    def cost(self, size: int, longest: int) -> float:
        """Return the cost of the passes over `size` tokens, padding included, in the unit of `cost_of`."""
        num_passes = -(-size // self.max_batch_tokens)
        return size * (1 + longest / ATTENTION_LENGTH) + num_passes * PASS_COST

    def _size(self, num_tokens: int, longest: int, num_items: int) -> int:
        """Return the number of tokens of a pass, with padding if items do not share rows."""
        return num_tokens if self.shares_rows else num_items * longest

    def _cheapest(self, ordered: Sequence[Item], ends: list[int], totals: list[int]) -> list[tuple[int, int]]:
        """Return the start and the end of each batch. Dynamic programming tries each place where the length changes."""
        cost, cut_from = [0.0], [0]
        for n in range(1, len(ends)):
            longest = ordered[ends[n] - 1].num_tokens
            options = []
            for m in range(n):
                num_items, num_tokens = ends[n] - ends[m], totals[ends[n]] - totals[ends[m]]
                size = self._size(num_tokens, longest, num_items)
                options.append((cost[m] + self.cost(size, longest), m))
            best, m = min(options)
            cost.append(best)
            cut_from.append(m)
        cuts, n = [], len(ends) - 1
        while n:
            cuts.append((ends[cut_from[n]], ends[n]))
            n = cut_from[n]
        return cuts[::-1]
