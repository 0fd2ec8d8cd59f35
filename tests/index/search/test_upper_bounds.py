"""Upper bounds are the products of codes, and all rows that reach a threshold are found."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray

from shoal_workers.index.vectors.upper_bounds import MAX_BLOCK, Buffer, UpperBounds

CODES = nps.arrays(
    np.int8, st.tuples(st.integers(1, 300), st.just(64)), elements=st.sampled_from([-127, -3, 0, 1, 127])
)
Codes = NDArray[np.int8]


def products(codes: Codes, queries: Codes) -> NDArray[np.int32]:
    """Return the products of codes `[rows, queries]`."""
    return codes.astype(np.int32) @ queries.astype(np.int32).T


@given(CODES, st.integers(1, 300), st.data())
def test_rows_that_reach_the_threshold(codes: Codes, num_queries: int, data: st.DataObject) -> None:
    queries = codes[:num_queries]
    expected = products(codes, queries)
    threshold = data.draw(nps.arrays(np.int32, len(queries), elements=st.sampled_from(expected[:, 0].tolist())))
    rows, owners = UpperBounds(codes, queries, Buffer()).candidates(threshold)
    found_owners, found_rows = np.nonzero((expected >= threshold).T)
    assert (rows == found_rows).all()
    assert (owners == found_owners).all()


@given(CODES, st.integers(1, 300), st.integers(1, 300))
def test_at_least_k_rows_reach_the_bound(codes: Codes, num_queries: int, k: int) -> None:
    k = min(k, len(codes))
    queries = codes[:num_queries]
    threshold = UpperBounds(codes, queries, Buffer()).reached_by_k(k)
    assert ((products(codes, queries) >= threshold).sum(axis=0) >= k).all()


def test_many_blocks_in_a_buffer_that_was_used_before() -> None:
    buffer, generator = Buffer(), np.random.default_rng(3)
    for count, num_queries in ((MAX_BLOCK * 2 + 77, 1), (9_001, 65), (3_333, 2_000), (5, 1)):
        codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (count, num_queries))
        expected = products(codes, queries)
        threshold = np.partition(expected, count - 3, axis=0)[count - 3]
        rows, owners = UpperBounds(codes, queries, buffer).candidates(threshold)
        assert (expected[rows, owners] >= threshold[owners]).all()
        assert len(rows) == (expected >= threshold).sum()


def test_few_rows_reach_the_bound() -> None:
    generator = np.random.default_rng(4)
    codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (100_000, 3))
    bounds = UpperBounds(codes, queries, Buffer())
    assert len(bounds.candidates(bounds.reached_by_k(10))[0]) < 3 * 15
