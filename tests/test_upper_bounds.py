"""UpperBounds are the products of codes, and all that are high enough are found."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray

from shoal_workers.index.upper_bounds import MAX_BLOCK, Memory, UpperBounds

CODES = nps.arrays(
    np.int8, st.tuples(st.integers(1, 300), st.just(64)), elements=st.sampled_from([-127, -3, 0, 1, 127])
)
Codes = NDArray[np.int8]


def products(codes: Codes, queries: Codes) -> NDArray[np.int32]:
    """The bounds `[rows, queries]`."""
    return codes.astype(np.int32) @ queries.astype(np.int32).T


@settings(deadline=None)
@given(CODES, st.integers(1, 300), st.data())
def test_those_as_high_as_asked_for(codes: Codes, num_queries: int, data: st.DataObject) -> None:
    queries = codes[:num_queries]
    expected = products(codes, queries)
    least = data.draw(nps.arrays(np.int32, len(queries), elements=st.sampled_from(expected[:, 0].tolist())))
    rows, owners = UpperBounds(codes, queries, Memory()).at_least(least)
    found_owners, found_rows = np.nonzero((expected >= least).T)
    assert (rows == found_rows).all()
    assert (owners == found_owners).all()


@settings(deadline=None)
@given(CODES, st.integers(1, 300), st.integers(1, 300))
def test_at_least_k_reach_the_bound(codes: Codes, num_queries: int, k: int) -> None:
    k = min(k, len(codes))
    queries = codes[:num_queries]
    least = UpperBounds(codes, queries, Memory()).reached_by(k)
    assert ((products(codes, queries) >= least).sum(axis=0) >= k).all()


def test_many_blocks_in_memory_that_was_used_before() -> None:
    memory, generator = Memory(), np.random.default_rng(3)
    for count, num_queries in ((MAX_BLOCK * 2 + 77, 1), (9_001, 65), (3_333, 2_000), (5, 1)):
        codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (count, num_queries))
        expected = products(codes, queries)
        least = np.partition(expected, count - 3, axis=0)[count - 3]
        rows, owners = UpperBounds(codes, queries, memory).at_least(least)
        assert (expected[rows, owners] >= least[owners]).all()
        assert len(rows) == (expected >= least).sum()


def test_few_rows_reach_the_bound() -> None:
    generator = np.random.default_rng(4)
    codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (100_000, 3))
    bounds = UpperBounds(codes, queries, Memory())
    assert len(bounds.at_least(bounds.reached_by(10))[0]) < 3 * 15
