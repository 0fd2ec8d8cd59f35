"""Exact search finds exactly the rows that scoring all vectors finds, for any vectors."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from index_versions import quantise
from numpy.typing import NDArray

from shoal_workers.index.vectors.exact_search import MAX_BOUNDS, ExactSearch, SearchThreads, TopK
from shoal_workers.index.vectors.quantisation import CACHE_LINE, NUM_TAIL_CODES, QuantisationBasis, QuantisedVectors
from shoal_workers.index.vectors.upper_bounds import MAX_QUERIES, Buffer, SharedProducts

Vectors = NDArray[np.float32]

FEW = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])


def normalised(vectors: Vectors) -> Vectors:
    """Scale each vector to length 1; a vector of zeros stays as it is."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)


def random(count: int, dimension: int, seed: int = 0) -> Vectors:
    """Return vectors that extend equally in all directions, so that no basis leaves a direction out."""
    return normalised(np.random.default_rng(seed).standard_normal((count, dimension), np.float32))


def grouped(count: int, dimension: int, seed: int = 0) -> Vectors:
    """Return vectors like the vectors of texts: near each other in groups, and extending mostly in few directions."""
    generator = np.random.default_rng(seed)
    shape = 0.98 ** np.arange(dimension, dtype=np.float32)
    centres = generator.standard_normal((1 + count // 50, dimension), np.float32) * shape
    spread = generator.standard_normal((count, dimension), np.float32) * shape
    return normalised(centres[generator.integers(len(centres), size=count)] + spread)


def by_scoring_all(vectors: Vectors, queries: Vectors, k: int, eligible: NDArray[np.bool_] | None = None) -> TopK:
    """Return the eligible rows of highest score in a full sort of all scores."""
    left = np.arange(len(vectors)) if eligible is None else np.flatnonzero(eligible)
    scores = np.array([np.vecdot(vectors[left], query) for query in queries]).reshape(len(queries), len(left))
    places = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(left[places], np.take_along_axis(scores, places, axis=1))


def check(vectors: Vectors, queries: Vectors, k: int, threads: int = 1) -> None:
    """Assert that rows and scores are as by scoring all vectors, to the last bit."""
    search = ExactSearch(vectors, quantise(vectors), SearchThreads(threads))
    assert_same(search.top_k(queries, k), by_scoring_all(vectors, queries, k))


def assert_same(found: TopK, expected: TopK) -> None:
    """Assert that rows and scores are the same, to the last bit."""
    assert (found.scores == expected.scores).all()
    assert (found.rows == expected.rows).all()


@given(st.data())
def test_a_search_finds_what_scoring_all_vectors_finds(data: st.DataObject) -> None:
    dimension = data.draw(st.sampled_from([1, 3, 32, 60, 61, 130]))
    elements = FEW | st.floats(-1, 1, width=16)
    vectors, queries = (
        normalised(data.draw(nps.arrays(np.float32, (data.draw(st.integers(1, most)), dimension), elements=elements)))
        for most in (80, 5)
    )
    check(vectors, queries, data.draw(st.integers(1, 100)))


def test_more_queries_than_there_is_memory_for_at_a_time() -> None:
    vectors = grouped(60_000, 8)
    check(vectors, grouped(MAX_BOUNDS // len(vectors) + 3, 8, seed=1), 5, 2)


@given(st.integers(1, 3_000), st.integers(0, 40), st.integers(1, 1_000), st.integers(0, 100), st.integers(0, 2**32 - 1))
def test_rows_that_are_hidden_or_not_eligible_are_never_found(
    count: int, num_queries: int, k: int, percent: int, seed: int
) -> None:
    vectors, queries = grouped(count, 24, seed), grouped(num_queries, 24, seed + 1)
    eligible = np.random.default_rng(seed).random(count) < percent / 100
    search = ExactSearch(vectors, quantise(vectors), SearchThreads(2))
    expected = by_scoring_all(vectors, queries, k, eligible)
    assert_same(search.top_k(queries, k, eligible=eligible), expected)
    assert_same(search.top_k(queries, k, np.flatnonzero(~eligible)), expected)


@pytest.mark.parametrize("num_eligible", [0, 1, 10, 749, 751, 5_999, 6_000])
def test_few_or_many_eligible_rows_are_searched(num_eligible: int) -> None:
    vectors = grouped(6_000, 96)
    vectors[1_000:4_000] = vectors[5]
    vectors[5_999] = vectors[17]
    eligible = np.random.default_rng(0).permutation(6_000) < num_eligible
    search = ExactSearch(vectors, quantise(vectors), SearchThreads(2))
    for k in (1, 1_000):
        expected = by_scoring_all(vectors, vectors[:3], k, eligible)
        assert_same(search.top_k(vectors[:3], k, eligible=eligible), expected)
        assert_same(search.top_k(vectors[:3], k, np.flatnonzero(~eligible)), expected)


def test_the_rows_that_are_left_may_lie_in_one_group_of_bounds() -> None:
    vectors = grouped(6_000, 96)
    eligible = np.arange(6_000) % 188 == 5
    search = ExactSearch(vectors, quantise(vectors), SearchThreads(2))
    for k in (1, 10, 50):
        expected = by_scoring_all(vectors, vectors[:3], k, eligible)
        assert_same(search.top_k(vectors[:3], k, np.flatnonzero(~eligible)), expected)


@pytest.mark.parametrize(("kind", "k"), [(random, 10), (grouped, 1_000)])
def test_many_vectors_of_many_dimensions(kind: Callable[..., Vectors], k: int) -> None:
    vectors = kind(8_000, 384)
    check(vectors[40:], vectors[:40], k, 3)


def test_queries_that_are_asked_for_together_share_a_pass_over_the_codes() -> None:
    vectors = random(100, 24)
    shared = SharedProducts(quantise(vectors), vectors[: MAX_QUERIES + 1], Buffer(), map)
    passes = [shared.of(query) and shared._bounds for query in vectors[: MAX_QUERIES + 1]]
    assert [one is passes[0] for one in passes] == [True] * MAX_QUERIES + [False]


def test_several_threads_may_search_at_a_time() -> None:
    vectors = grouped(9_000, 64)
    nearest = ExactSearch(vectors, quantise(vectors), SearchThreads(2))
    expected = by_scoring_all(vectors, vectors[:400], 5)[0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: nearest.top_k(vectors[start : start + 40], 5)[0], range(0, 400, 40)))
    assert (np.concatenate(found) == expected).all()


def in_a_tail_that_rounding_hides(dimension: int, generator: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Return vectors with a tail so short that float32 hides it in squared lengths, and queries along that tail."""
    main = min(CACHE_LINE - NUM_TAIL_CODES, dimension - 1)  # the number of directions in a basis of the least width
    vectors = np.zeros((3_000, dimension), np.float32)
    vectors[:, :main] = random(3_000, main, int(generator.integers(2**32)))
    vectors[:, -1] = generator.uniform(0, 2e-4, 3_000)
    return vectors, np.eye(dimension, dtype=np.float32)[-1:].copy()


@pytest.mark.parametrize("dimension", [8, 60, 200])
def test_tails_that_rounding_hides_are_searched(dimension: int) -> None:
    for k in (1, 10, 300):
        check(*in_a_tail_that_rounding_hides(dimension, np.random.default_rng(k)), k)


def misleading(seed: int, dimension: int, count: int, num_queries: int) -> tuple[Vectors, Vectors]:
    """Return vectors of few directions or many, with near ties, duplicates, tails, opposites, zeros and all lengths."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal((generator.integers(1, dimension + 1), dimension))
    vectors = generator.standard_normal((count, len(directions))) @ directions
    queries = generator.standard_normal((num_queries, dimension))
    shares = generator.dirichlet(np.ones(6))
    kinds = generator.choice(6, count, p=shares)
    nearest = queries[generator.integers(num_queries, size=count)]
    in_tail = np.eye(dimension)[generator.integers(dimension, size=count)] * np.abs(vectors).max()
    last_bits = 1 + 2.0**-22 * generator.integers(-4, 5, (count, dimension))
    made = np.stack([vectors, nearest * last_bits, vectors[:1].repeat(count, 0), in_tail, -nearest, 0 * vectors])
    vectors = made[kinds, np.arange(count)]
    if generator.random() < 0.5:
        vectors *= 10 ** generator.uniform(-8, 8, (count, 1))
        queries *= 10 ** generator.uniform(-8, 8, (num_queries, 1))
    return vectors.astype(np.float32), queries.astype(np.float32)


@settings(max_examples=100)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7, 59, 60, 61, 130]),
    st.integers(1, 500),
    st.integers(1, 5),
    st.integers(1, 40),
)
def test_no_vector_that_is_left_out_scores_more(
    seed: int, dimension: int, count: int, num_queries: int, k: int
) -> None:
    """Scores in float64 differ from scores in float32 by their rounding, and by no more."""
    vectors, queries = misleading(seed, dimension, count, num_queries)
    check(vectors, queries, k)
    rows, _ = ExactSearch(vectors, quantise(vectors)).top_k(queries, k)
    for query, found in zip(queries.astype(np.float64), rows, strict=True):
        scores = vectors.astype(np.float64) @ query
        error = dimension * 2.0**-22 * np.linalg.norm(vectors.astype(np.float64), axis=1) * np.linalg.norm(query)
        assert len(set(found.tolist())) == min(k, count)
        others = np.setdiff1d(np.arange(count), found)
        worst = found[np.argmin(scores[found])]
        assert (scores[others] - error[others] <= scores[worst] + error[worst]).all()


def test_near_ties_that_rounding_puts_in_another_order() -> None:
    basis = QuantisationBasis.fit(random(2_000, 60))
    generator = np.random.default_rng(0)
    signs = generator.choice([-1.0, 1.0], (8, 1, 60))
    codes = np.repeat(generator.integers(5, 40, (8, 1, 60)).astype(np.float64), 40, axis=1)
    # The first twenty vectors of each query lose nearly half a step in every code, and the other vectors gain as much.
    codes[:, :20] += 0.49
    codes[:, 20:] += 0.51
    codes[:, :20, 0] += np.arange(20)
    codes[:, 20:, 0] -= np.arange(20) + 5
    turned = basis.directions.T.astype(np.float64) * basis.step
    vectors, queries = ((numbers.reshape(-1, 60) @ turned).astype(np.float32) for numbers in (signs * codes, signs))
    quantised = QuantisedVectors(np.concatenate(list(basis.encode(vectors))), basis)
    found = ExactSearch(vectors, quantised).top_k(queries, 10)
    assert_same(found, by_scoring_all(vectors, queries, 10))
    assert (found.rows % 40 < 20).all()
