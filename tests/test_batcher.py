"""The batcher: every row once, within the budget, and never dearer than the two obvious ways to cut."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_workers.encoding.batcher import ATTENTION_LENGTH, Batcher


@dataclass(eq=False)
class Text:
    """Something with a number of tokens."""

    num_tokens: int


ROWS = st.lists(st.integers(1, 600).map(Text), max_size=80)
SIZES = (st.integers(1, 5_000), st.booleans(), st.integers(0, 500))
BATCHERS: st.SearchStrategy[Batcher[Text]] = st.builds(Batcher, *SIZES)


def size(batch: list[Text], batcher: Batcher[Text]) -> int:
    """Tokens of the batch, padding included where each text has a row of its own."""
    lengths = [row.num_tokens for row in batch]
    return sum(lengths) if batcher.shares_rows else len(lengths) * max(lengths)


def cost(batches: list[list[Text]], batcher: Batcher[Text]) -> float:
    """Return the cost of the batches, in tokens."""
    return sum(
        size(batch, batcher) * (1 + batch[-1].num_tokens / ATTENTION_LENGTH) + batcher.pass_cost for batch in batches
    )


@given(ROWS, BATCHERS)
def test_every_row_is_in_exactly_one_batch_shortest_first(rows: list[Text], batcher: Batcher[Text]) -> None:
    batches = batcher.cut(rows)
    cut = [row for batch in batches for row in batch]
    assert sorted(map(id, cut)) == sorted(map(id, rows))
    assert [row.num_tokens for row in cut] == sorted(row.num_tokens for row in rows)
    assert all(batches)


@given(ROWS, BATCHERS)
def test_the_budget_is_kept(rows: list[Text], batcher: Batcher[Text]) -> None:
    assert all(len(batch) == 1 or size(batch, batcher) <= batcher.max_batch_tokens for batch in batcher.cut(rows))


@given(ROWS.filter(bool), st.builds(Batcher, st.just(100_000), st.booleans(), st.integers(0, 500)))
def test_it_is_never_dearer_than_one_pass_for_all(rows: list[Text], batcher: Batcher[Text]) -> None:
    ordered = sorted(rows, key=lambda row: row.num_tokens)
    assert cost(batcher.cut(rows), batcher) <= cost([ordered], batcher) + 1e-6


@pytest.mark.parametrize(
    ("shares_rows", "lengths", "expected"),
    [
        (True, [], []),
        (True, [5], [[5]]),
        (True, [9, 8, 9, 8], [[8, 8, 9, 9]]),
        (True, [500, 5, 5], [[5, 5, 500]]),
        (True, [500, *[5] * 100], [[5] * 100, [500]]),
        (True, [100] * 12, [[100] * 10, [100] * 2]),
        (False, [500, 5, 5], [[5, 5], [500]]),
        (False, [900, 900], [[900], [900]]),
    ],
)
def test_short_and_long_texts_are_kept_apart_where_that_pays(
    shares_rows: bool, lengths: list[int], expected: list[list[int]]
) -> None:
    batcher: Batcher[Text] = Batcher(max_batch_tokens=1_000, shares_rows=shares_rows)
    batches = batcher.cut([Text(length) for length in lengths])
    assert [[row.num_tokens for row in batch] for batch in batches] == expected


@given(ROWS, BATCHERS, st.integers(1, 600))
def test_a_batch_can_be_split_into_smaller_ones(rows: list[Text], batcher: Batcher[Text], max_tokens: int) -> None:
    rows = sorted(rows, key=lambda row: row.num_tokens)
    parts = batcher.split(rows, max_tokens)
    assert [row for part in parts for row in part] == rows
    assert all(size(part, batcher) <= max_tokens or len(part) == 1 for part in parts)
