"""The best of many scores, as a full sort would find them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray

from shoal_workers.selection import top_k

FEW = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])
SCORES = nps.arrays(
    np.float32,
    nps.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=30),
    elements=FEW | st.floats(-1, 1, width=32),
)


@given(SCORES, st.integers(1, 40))
def test_it_finds_what_a_full_sort_finds(scores: NDArray[np.float32], k: int) -> None:
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert (top_k(scores, k) == expected).all()
    assert top_k(scores, k).shape == expected.shape


def test_ties_go_by_column() -> None:
    scores = np.array([[0.5, 1, 0.5, 1, 0.5]], np.float32)
    assert top_k(scores, 4).tolist() == [[1, 3, 0, 2]]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_choose_from(shape: tuple[int, int]) -> None:
    assert top_k(np.zeros(shape, np.float32), 3).shape == (shape[0], min(3, shape[1]))


def test_a_large_array() -> None:
    scores = np.random.default_rng(0).standard_normal((4, 100_000)).astype(np.float32)
    assert (top_k(scores, 100) == np.argsort(-scores, axis=1, kind="stable")[:, :100]).all()
