"""Exact search finds exactly the rows that scoring all vectors finds: no score is over its upper bound."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from index_versions import quantise
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.manifest import BASIS, QUANTISED, SCALES
from shoal_workers.index.vectors.exact_search import MAX_BOUNDS, ExactSearch, SearchThreads, TopK
from shoal_workers.index.vectors.quantisation import (
    MAX_CODE,
    QuantisationBasis,
    QuantisedVectors,
)
from shoal_workers.index.vectors.upper_bounds import MAX_QUERIES, Buffer, SharedProducts, UpperBounds

Vectors = NDArray[np.float32]
Codes = NDArray[np.int8]

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
    """Return the eligible rows with the highest scores, from a full sort."""
    left = np.arange(len(vectors)) if eligible is None else np.flatnonzero(eligible)
    scores = np.array([np.vecdot(vectors[left], query) for query in queries]).reshape(len(queries), len(left))
    places = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(left[places], np.take_along_axis(scores, places, axis=1))


def check(vectors: Vectors, queries: Vectors, *ks: int, eligible: NDArray[np.bool_] | None = None) -> None:
    """Assert that a search finds what scoring all vectors finds, with ineligible rows and with hidden rows."""
    quantised = quantise(vectors)
    for threads, k in product((1, 2), ks):
        search = ExactSearch(vectors, quantised, SearchThreads(threads))
        expected = by_scoring_all(vectors, queries, k, eligible)
        assert_same(search.top_k(queries, k, eligible=eligible), expected)
        if eligible is not None:
            assert_same(search.top_k(queries, k, np.flatnonzero(~eligible)), expected)


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
    check(vectors, grouped(MAX_BOUNDS // len(vectors) + 3, 8, seed=1), 5)


@given(st.integers(1, 3_000), st.integers(0, 40), st.integers(1, 1_000), st.integers(0, 100), st.integers(0, 2**32 - 1))
def test_rows_that_are_hidden_or_not_eligible_are_never_found(
    count: int, num_queries: int, k: int, percent: int, seed: int
) -> None:
    vectors, queries = grouped(count, 24, seed), grouped(num_queries, 24, seed + 1)
    check(vectors, queries, k, eligible=np.random.default_rng(seed).random(count) < percent / 100)


@pytest.mark.parametrize("num_eligible", [0, 1, 10, 749, 751, 5_999, 6_000])
def test_few_or_many_eligible_rows_are_searched(num_eligible: int) -> None:
    vectors = grouped(6_000, 96)
    vectors[1_000:4_000] = vectors[5]
    vectors[5_999] = vectors[17]
    check(vectors, vectors[:3], 1, 1_000, eligible=np.random.default_rng(0).permutation(6_000) < num_eligible)
    in_one_group = np.arange(6_000) % 188 == 5  # all rows of one group of bounds
    check(vectors, vectors[:3], 1, 10, 50, eligible=in_one_group)


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
    basis, generator = QuantisationBasis.fit(random(2_000, 60)), np.random.default_rng(0)
    signs = generator.choice([-1.0, 1.0], (8, 1, 60))
    codes = np.repeat(generator.integers(5, 40, (8, 1, 60)).astype(np.float64), 40, axis=1)
    # The first twenty vectors of each query lose nearly half a step in every code, and the other vectors gain as much.
    codes[:, :20] += 0.49
    codes[:, 20:] += 0.51
    codes[:, :20, 0] += np.arange(20)
    codes[:, 20:, 0] -= np.arange(20) + 5
    turned = basis.directions.T.astype(np.float64) * basis.step
    vectors, queries = ((numbers.reshape(-1, 60) @ turned).astype(np.float32) for numbers in (signs * codes, signs))
    found = ExactSearch(vectors, encoded(basis, vectors)).top_k(queries, 10)
    assert_same(found, by_scoring_all(vectors, queries, 10))
    assert (found.rows % 40 < 20).all()


# Upper bounds


def products_of(codes: Codes, queries: Codes) -> NDArray[np.int32]:
    """Return the products of codes `[rows, queries]`."""
    return codes.astype(np.int32) @ queries.astype(np.int32).T


def excess(quantised: QuantisedVectors, vectors: Vectors, queries: Vectors) -> NDArray[np.float64]:
    """Return the upper bound of each vector's score for each query, minus the score."""
    encoded = quantised.basis.encode_queries(queries)
    bounds = products_of(quantised.codes, encoded.codes) * encoded.units + encoded.slacks
    return bounds - vectors.astype(np.float64) @ queries.astype(np.float64).T


@pytest.mark.parametrize("length", [1e-6, 1, 1e6])
def test_scores_that_rounding_takes_farthest_from_the_truth_are_bounded(length: float) -> None:
    generator = np.random.default_rng(1)
    basis = QuantisationBasis.fit(generator.standard_normal((2_000, 60), np.float32) * np.float32(length))

    def of_codes(codes: NDArray[np.float64], unit: float) -> Vectors:
        """Return the vectors with these coordinates in the basis, in units of the codes."""
        return (codes * unit @ basis.directions.T.astype(np.float64)).astype(np.float32)

    signs = generator.choice([-1.0, 1.0], (20, 60))
    # Every code of a vector is rounded towards zero by nearly half a step, and the query has the direction of the loss.
    vectors = of_codes(signs * (generator.integers(0, 40, (20, 60)) + 0.49), basis.step)
    assert excess(encoded(basis, vectors), vectors, of_codes(signs, 1.0)).min() >= 0
    # One large number makes the query's unit large. Its other numbers are rounded to zero, and the vectors have their
    # direction.
    numbers = 0.49 * signs
    numbers[:, 0] = 127
    vectors = of_codes(signs * 36, basis.step)
    assert excess(encoded(basis, vectors), vectors, of_codes(numbers, 1.0)).min() >= 0


def encoded(basis: QuantisationBasis, vectors: Vectors) -> QuantisedVectors:
    """Encode vectors with a basis that was computed for other vectors."""
    return QuantisedVectors(np.concatenate(list(basis.encode(vectors))), basis)


def test_vectors_outside_of_the_basis_are_bounded_by_their_tails() -> None:
    vectors = np.zeros((4_000, 130), np.float32)
    vectors[:, :50] = np.random.default_rng(5).standard_normal((4_000, 50))
    vectors[:80] = np.eye(130, dtype=np.float32)[50:] * 7
    quantised = quantise(vectors)
    directions = quantised.basis.directions
    assert directions.shape == (130, 60)
    assert excess(quantised, vectors, vectors[:80]).min() >= 0
    outside = vectors[:80] - vectors[:80] @ directions @ directions.T
    query = outside[np.linalg.norm(outside, axis=1).argmax()][None]
    shorter = query * np.linspace(0.01, 1, 400, dtype=np.float32)[:, None]
    assert excess(encoded(quantised.basis, shorter), shorter, query).min() >= 0
    vectors = np.hstack([random(3_000, 60), np.zeros((3_000, 70), np.float32)])
    vectors[:, -1] = np.linspace(0, 5e-4, 3_000)  # so short that squared lengths in float32 lose it
    assert excess(quantise(vectors), vectors, np.eye(130, dtype=np.float32)[-1:]).min() >= 0


@pytest.mark.parametrize(("extent", "width"), [(0.9, 64), (0.985, 128), (1, 384)], ids=["narrow", "usual", "even"])
def test_the_width_of_codes_fits_the_vectors(extent: float, width: int) -> None:
    generator = np.random.default_rng(2)
    vectors = generator.standard_normal((8_000, 384), np.float32) * extent ** np.arange(384, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    quantised = quantise(vectors)
    assert quantised.codes.shape == (8_000, width)
    assert np.abs(quantised.codes).max() <= MAX_CODE
    over = excess(quantised, vectors, vectors[:50])
    assert 0 <= over.min() < over.max() < 0.25


def test_written_files_are_mapped_and_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((20_000, 40), np.float32)
    made = quantise(vectors)
    parts: list[float] = []
    assert QuantisedVectors.write(tmp_path, vectors, parts.append) == 64
    assert parts == sorted(parts)
    assert (parts[0], 0.5 in parts, parts[-1] < 1) == (0.0, True, True)
    assert {path.name for path in tmp_path.iterdir()} == {QUANTISED, BASIS, SCALES}
    opened = QuantisedVectors.open(tmp_path, 20_000, 40, 64)
    assert (opened.codes == made.codes).all()
    assert (opened.basis.directions == made.basis.directions).all()
    for name in ("step", "tail_step", "max_norm", "width"):
        assert getattr(opened.basis, name) == getattr(made.basis, name)
    assert isinstance(opened.codes.base, np.memmap)
    assert not opened.codes.flags.writeable
    for shape in ((19_999, 40, 64), (20_000, 41, 64), (20_000, 40, 128), (20_000, 40, 4)):
        with pytest.raises(IndexCorrupt, match="build the index again"):
            QuantisedVectors.open(tmp_path, *shape)
    for scales in ([0, 1, 1], [1, 1, np.nan], [np.inf, 1, 1]):
        np.save(tmp_path / SCALES, np.array(scales, np.float64))
        with pytest.raises(IndexCorrupt, match="in units of"):
            QuantisedVectors.open(tmp_path, 20_000, 40, 64)


def test_few_rows_reach_the_bound() -> None:
    generator = np.random.default_rng(4)
    codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (100_000, 3))
    bounds = UpperBounds(codes, queries, Buffer())
    assert len(bounds.candidates(bounds.reached_by_k(10))[0]) < 3 * 15
