"""The batcher: every row once, within the budget, and never dearer than the two obvious ways to cut."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_workers.batcher import Batcher


@dataclass(eq=False)
class Text:
    """Something with a number of tokens."""

    num_tokens: int


ROWS = st.lists(st.integers(1, 600).map(Text), max_size=80)
BATCHERS = st.builds(Batcher, st.integers(1, 5_000), st.integers(0, 500))


def padded(batch: list[Text]) -> int:
    """Tokens of the batch, padding included."""
    return len(batch) * max(row.num_tokens for row in batch)


def cost(batches: list[list[Text]], batcher: Batcher[Text]) -> int:
    """What the batches cost, in tokens."""
    return sum(padded(batch) + batcher.pass_cost for batch in batches)


@given(ROWS, BATCHERS)
def test_every_row_is_in_exactly_one_batch_shortest_first(rows: list[Text], batcher: Batcher[Text]) -> None:
    batches = batcher.cut(rows)
    cut = [row for batch in batches for row in batch]
    assert sorted(map(id, cut)) == sorted(map(id, rows))
    assert [row.num_tokens for row in cut] == sorted(row.num_tokens for row in rows)
    assert all(batches)


@given(ROWS, BATCHERS)
def test_the_budget_is_kept(rows: list[Text], batcher: Batcher[Text]) -> None:
    assert all(len(batch) == 1 or padded(batch) <= batcher.max_batch_tokens for batch in batcher.cut(rows))


@given(ROWS.filter(bool), BATCHERS)
def test_it_is_never_dearer_than_one_pass_a_row_or_one_pass_for_all(rows: list[Text], batcher: Batcher[Text]) -> None:
    found = cost(batcher.cut(rows), batcher)
    assert found <= cost([[row] for row in rows], batcher)
    assert padded(rows) > batcher.max_batch_tokens or found <= cost([rows], batcher)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([5], [[5]]),
        ([9, 8, 9, 8], [[8, 8, 9, 9]]),
        ([500, 5, 5], [[5, 5], [500]]),
        ([900, 900], [[900], [900]]),
        ([100] * 12, [[100] * 10, [100] * 2]),
    ],
)
def test_short_and_long_texts_are_kept_apart(lengths: list[int], expected: list[list[int]]) -> None:
    batcher: Batcher[Text] = Batcher(max_batch_tokens=1_000)
    batches = batcher.cut([Text(length) for length in lengths])
    assert [[row.num_tokens for row in batch] for batch in batches] == expected
