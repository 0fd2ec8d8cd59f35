"""Bucketing puts every text into one batch. Batches keep the budget, and cost no more than one pass for all texts."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_workers.encoding.bucketing import ATTENTION_LENGTH, PASS_COST, Bucketing


@dataclass(eq=False)
class Text:
    num_tokens: int


ROWS = st.lists(st.integers(1, 600).map(Text), max_size=80)
BATCHERS: st.SearchStrategy[Bucketing] = st.builds(Bucketing, st.integers(1, 5_000), st.booleans())


def size(batch: list[Text], bucketing: Bucketing) -> int:
    """Return the number of tokens of the batch, with padding if each text has a row of its own."""
    lengths = [row.num_tokens for row in batch]
    return sum(lengths) if bucketing.shares_rows else len(lengths) * max(lengths)


def cost(batches: list[list[Text]], bucketing: Bucketing) -> float:
    return sum(size(batch, bucketing) * (1 + batch[-1].num_tokens / ATTENTION_LENGTH) + PASS_COST for batch in batches)


@given(ROWS, BATCHERS)
def test_every_row_is_in_exactly_one_batch_shortest_first(rows: list[Text], bucketing: Bucketing) -> None:
    batches = bucketing.cut(rows)
    cut = [row for batch in batches for row in batch]
    assert sorted(map(id, cut)) == sorted(map(id, rows))
    assert [row.num_tokens for row in cut] == sorted(row.num_tokens for row in rows)
    assert all(len(batch) == 1 or size(batch, bucketing) <= bucketing.max_batch_tokens for batch in batches)


@given(ROWS.filter(bool), st.builds(Bucketing, st.just(100_000), st.booleans()))
def test_batches_never_cost_more_than_one_pass_for_all(rows: list[Text], bucketing: Bucketing) -> None:
    ordered = sorted(rows, key=lambda row: row.num_tokens)
    assert cost(bucketing.cut(rows), bucketing) <= cost([ordered], bucketing) + 1e-6


@pytest.mark.parametrize(
    ("shares_rows", "lengths", "expected"),
    [
        (True, [], []),
        (True, [9, 8, 9, 8], [[8, 8, 9, 9]]),
        (True, [500, 5, 5], [[5, 5, 500]]),
        (True, [500, *[5] * 100], [[5] * 100, [500]]),
        (True, [100] * 12, [[100] * 10, [100] * 2]),
        (True, [7] * 143, [[7] * 142, [7]]),  # this text is one token over the budget
        (False, [500, 5, 5], [[5, 5], [500]]),
    ],
)
def test_short_and_long_texts_are_separated(shares_rows: bool, lengths: list[int], expected: list[list[int]]) -> None:
    bucketing = Bucketing(max_batch_tokens=1_000, shares_rows=shares_rows)
    batches = bucketing.cut([Text(length) for length in lengths])
    assert [[row.num_tokens for row in batch] for batch in batches] == expected


@given(ROWS.filter(bool), BATCHERS, st.integers(1, 2_000), st.booleans())
def test_a_part_is_within_its_cost(rows: list[Text], bucketing: Bucketing, room: int, more_follow: bool) -> None:
    part = bucketing.part(rows, PASS_COST + room, more_follow)
    assert part == rows[: len(part)]
    is_within = bucketing.cost_of(part) <= PASS_COST + room
    assert len(part) == 1 or (part and is_within and size(part, bucketing) <= bucketing.max_batch_tokens)


@pytest.mark.parametrize(
    ("more_follow", "expected"), [(False, [20, 20, 20]), (True, [24, 24, 12])], ids=["the last", "more"]
)
def test_the_last_items_are_spread_evenly_over_their_passes(more_follow: bool, expected: list[int]) -> None:
    bucketing = Bucketing(max_batch_tokens=1_000)
    rows, sizes = [Text(4) for _ in range(15)], []
    while rows:
        part = bucketing.part(rows, PASS_COST + 25, more_follow)
        sizes.append(sum(row.num_tokens for row in part))
        rows = rows[len(part) :]
    assert sizes == expected
