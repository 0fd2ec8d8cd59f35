"""Diverse hits: chosen as brute force chooses them, with copies last."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_search import grouped, random

from shoal_workers.index.ranked_search import MAX_POOL, MIN_POOL, most_diverse, pool_size

#: Largest difference between two ways to add up the same products.
ROUNDING = 1e-5


def ranked(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scores and the vectors, best first."""
    scores = vectors @ query
    order = np.argsort(-scores, kind="stable")
    return scores[order], vectors[order]


def check_choice(
    chosen: list[int], scores: NDArray[np.float32], vectors: NDArray[np.float32], diversity: float
) -> None:
    """Assert that each choice has the highest value there was, as far as rounding allows, by sums one by one."""
    best = float(scores[0]) if scores[0] > 0 else 1.0
    rounding = ROUNDING * max(1.0, float(np.abs(scores).max()) / best)
    cosines = np.array([[np.dot(a.astype(float), b.astype(float)) for b in vectors] for a in vectors])
    assert chosen[0] == 0
    for position in range(1, len(chosen)):
        before = chosen[:position]
        values = {
            n: (1 - diversity) * float(scores[n]) / best - diversity * max(cosines[n][m] for m in before)
            for n in range(len(scores))
            if n not in before
        }
        assert values[chosen[position]] >= max(values.values()) - rounding


@given(st.integers(1, 30), st.integers(1, 35), st.floats(0, 1), st.integers(0, 2**32 - 1), st.booleans())
def test_each_hit_is_the_best_choice_after_those_before(
    num_hits: int, k: int, diversity: float, seed: int, has_copies: bool
) -> None:
    vectors = grouped(num_hits, 16, seed)
    if has_copies:
        vectors[num_hits // 2 :] = vectors[: num_hits - num_hits // 2]
    scores, vectors = ranked(vectors, grouped(1, 16, seed + 1)[0])
    chosen = most_diverse(scores, vectors, k, diversity).tolist()
    assert len(set(chosen)) == len(chosen) == min(k, num_hits)
    check_choice(chosen, scores, vectors, diversity)


@pytest.mark.parametrize("k", [1, 7, 40])
def test_without_diversity_hits_keep_their_order(k: int) -> None:
    scores, vectors = ranked(grouped(40, 24), random(1, 24)[0])
    assert most_diverse(scores, vectors, k, 0.0).tolist() == list(range(k))


def test_a_copy_of_a_hit_comes_after_one_that_says_something_else() -> None:
    first, other = np.eye(2, dtype=np.float32)
    query = np.array([0.8, 0.6], np.float32)
    scores, vectors = ranked(np.array([first, first, first, other]), query)
    assert most_diverse(scores, vectors, 2, 0.0).tolist() == [0, 1]
    assert most_diverse(scores, vectors, 2, 0.5).tolist() == [0, 3]


def test_no_score_needs_to_be_positive() -> None:
    scores, vectors = ranked(-grouped(20, 8), grouped(1, 8)[0])
    chosen = most_diverse(scores - 2, vectors, 20, 0.3).tolist()
    assert sorted(chosen) == list(range(20))
    check_choice(chosen, scores - 2, vectors, 0.3)


def test_scores_of_any_scale_are_weighed_alike() -> None:
    scores, vectors = ranked(grouped(50, 24), grouped(1, 24, 1)[0])
    assert (most_diverse(scores * 30, vectors, 20, 0.4) == most_diverse(scores, vectors, 20, 0.4)).all()


def test_no_hits() -> None:
    assert most_diverse(np.empty(0, np.float32), np.empty((0, 8), np.float32), 5, 0.5).tolist() == []


def test_a_pool_has_a_few_hits_for_each_that_is_chosen() -> None:
    sizes = {k: pool_size(k) for k in (1, 10, 13, 100, 400, 1_000)}
    assert sizes == {1: MIN_POOL, 10: MIN_POOL, 13: 52, 100: 400, 400: MAX_POOL, 1_000: MAX_POOL}
