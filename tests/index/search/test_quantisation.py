"""No score is over its upper bound, all rows that reach a threshold are found, and files are read as written."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from index_versions import quantise
from numpy.typing import NDArray
from test_search import misleading

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.manifest import BASIS, QUANTISED, SCALES
from shoal_workers.index.vectors.quantisation import MAX_CODE, QuantisationBasis, QuantisedVectors
from shoal_workers.index.vectors.upper_bounds import MAX_BLOCK, Buffer, UpperBounds

Vectors = NDArray[np.float32]
Codes = NDArray[np.int8]


def products(quantised: QuantisedVectors, queries: Vectors) -> NDArray[np.int32]:
    """Multiply the codes of each vector with the codes of each query: `[vectors, queries]`."""
    return quantised.codes.astype(np.int32) @ quantised.basis.encode_queries(queries).codes.astype(np.int32).T


def bounds(quantised: QuantisedVectors, queries: Vectors) -> NDArray[np.float64]:
    """Return the upper bound of each vector's score for each query: `[vectors, queries]`."""
    encoded = quantised.basis.encode_queries(queries)
    return products(quantised, queries) * encoded.units + encoded.slacks


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.float64]:
    """Return the scores without rounding to float32."""
    return vectors.astype(np.float64) @ queries.astype(np.float64).T


@pytest.mark.parametrize("dimension", [1, 2, 60, 61, 130])
def test_of_many_scores_none_is_over_its_bound(dimension: int) -> None:
    for seed in range(3):
        vectors, queries = misleading(seed, dimension, 1_000, 50)
        quantised = quantise(vectors)
        assert (bounds(quantised, queries) >= exact(vectors, queries)).all()
        thresholds = quantised.basis.encode_queries(queries).thresholds(vectors[0] @ queries.T)
        assert (products(quantised, queries)[0] >= thresholds).all()


@pytest.fixture(params=[1e-6, 1, 1e6])
def basis(request: pytest.FixtureRequest) -> QuantisationBasis:
    """Return a basis for vectors of these lengths, with all of their dimensions as directions."""
    vectors = np.random.default_rng(8).standard_normal((2_000, 60), np.float32) * np.float32(request.param)
    return QuantisationBasis.fit(vectors)


def of_codes(basis: QuantisationBasis, codes: NDArray[np.float64], unit: float) -> Vectors:
    """Return the vectors `[count, dimension]` that have these numbers of units, whole or not, in the basis."""
    return (codes * unit @ basis.directions.T.astype(np.float64)).astype(np.float32)


def encoded(basis: QuantisationBasis, vectors: Vectors) -> QuantisedVectors:
    """Encode vectors with a basis that was computed for other vectors."""
    return QuantisedVectors(np.concatenate(list(basis.encode(vectors))), basis)


def test_vectors_that_rounding_takes_farthest_from_a_query_are_bounded(basis: QuantisationBasis) -> None:
    generator = np.random.default_rng(1)
    signs = generator.choice([-1.0, 1.0], (20, 60))
    # Every code is rounded towards zero by nearly half a step, and the query has the direction of the loss.
    vectors = of_codes(basis, signs * (generator.integers(0, 40, (20, 60)) + 0.49), basis.step)
    queries = of_codes(basis, signs, 1.0)
    assert (bounds(encoded(basis, vectors), queries) >= exact(vectors, queries)).all()


def test_queries_that_rounding_takes_farthest_from_a_vector_are_bounded(basis: QuantisationBasis) -> None:
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (20, 60))
    # One large number makes the query's unit large. Its other numbers are rounded to zero, and the vectors have their
    # direction.
    numbers = 0.49 * signs
    numbers[:, 0] = 127
    vectors = of_codes(basis, signs * 36, basis.step)
    queries = of_codes(basis, numbers, 1.0)
    assert (bounds(encoded(basis, vectors), queries) >= exact(vectors, queries)).all()


def test_vectors_outside_of_the_basis_are_bounded_by_their_tails() -> None:
    vectors = np.zeros((4_000, 130), np.float32)
    vectors[:, :50] = np.random.default_rng(5).standard_normal((4_000, 50))
    vectors[:80] = np.eye(130, dtype=np.float32)[50:] * 7
    quantised = quantise(vectors)
    directions = quantised.basis.directions
    assert directions.shape == (130, 60)
    assert (bounds(quantised, vectors[:80]) >= exact(vectors, vectors[:80])).all()
    outside = vectors[:80] - vectors[:80] @ directions @ directions.T
    query = outside[np.linalg.norm(outside, axis=1).argmax()][None]
    shorter = query * np.linspace(0.01, 1, 400, dtype=np.float32)[:, None]
    assert (bounds(encoded(quantised.basis, shorter), query) >= exact(shorter, query)).all()


@pytest.mark.parametrize(("extent", "width"), [(0.9, 64), (0.985, 128), (1, 384)], ids=["narrow", "usual", "even"])
def test_the_width_of_codes_fits_the_vectors(extent: float, width: int) -> None:
    generator = np.random.default_rng(2)
    vectors = generator.standard_normal((8_000, 384), np.float32) * extent ** np.arange(384, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    quantised = quantise(vectors)
    assert quantised.codes.shape == (8_000, width)
    assert np.abs(quantised.codes).max() <= MAX_CODE
    over = bounds(quantised, vectors[:50]) - exact(vectors, vectors[:50])
    assert over.min() >= 0
    assert over.max() < 0.25


def test_written_files_are_mapped(tmp_path: Path) -> None:
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


def test_files_of_another_shape_and_scales_that_are_no_positive_numbers_are_refused(tmp_path: Path) -> None:
    QuantisedVectors.write(tmp_path, np.ones((20, 40), np.float32))
    for shape in ((19, 40, 64), (20, 41, 64), (20, 40, 128), (20, 40, 4)):
        with pytest.raises(IndexCorrupt, match="build the index again"):
            QuantisedVectors.open(tmp_path, *shape)
    for scales in ([0, 1, 1], [1, 1, np.nan], [np.inf, 1, 1]):
        np.save(tmp_path / SCALES, np.array(scales, np.float64))
        with pytest.raises(IndexCorrupt, match="in units of"):
            QuantisedVectors.open(tmp_path, 20, 40, 64)


# Rows that reach a threshold

CODES = nps.arrays(
    np.int8, st.tuples(st.integers(1, 300), st.just(64)), elements=st.sampled_from([-127, -3, 0, 1, 127])
)


def products_of(codes: Codes, queries: Codes) -> NDArray[np.int32]:
    """Return the products of codes `[rows, queries]`."""
    return codes.astype(np.int32) @ queries.astype(np.int32).T


@given(CODES, st.integers(1, 300), st.data())
def test_rows_that_reach_the_threshold_are_found(codes: Codes, num_queries: int, data: st.DataObject) -> None:
    queries = codes[:num_queries]
    expected = products_of(codes, queries)
    threshold = data.draw(nps.arrays(np.int32, len(queries), elements=st.sampled_from(expected[:, 0].tolist())))
    bounds = UpperBounds(codes, queries, Buffer())
    rows, owners = bounds.candidates(threshold)
    found_owners, found_rows = np.nonzero((expected >= threshold).T)
    assert (rows == found_rows).all()
    assert (owners == found_owners).all()
    k = data.draw(st.integers(1, len(codes)))
    assert ((expected >= bounds.reached_by_k(k)).sum(axis=0) >= k).all()


def test_many_blocks_in_a_buffer_that_was_used_before() -> None:
    buffer, generator = Buffer(), np.random.default_rng(3)
    for count, num_queries in ((MAX_BLOCK * 2 + 77, 1), (9_001, 65), (3_333, 2_000), (5, 1)):
        codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (count, num_queries))
        expected = products_of(codes, queries)
        threshold = np.partition(expected, count - 3, axis=0)[count - 3]
        rows, owners = UpperBounds(codes, queries, buffer).candidates(threshold)
        assert (expected[rows, owners] >= threshold[owners]).all()
        assert len(rows) == (expected >= threshold).sum()


def test_few_rows_reach_the_bound() -> None:
    generator = np.random.default_rng(4)
    codes, queries = (generator.integers(-127, 128, (n, 64), np.int8) for n in (100_000, 3))
    bounds = UpperBounds(codes, queries, Buffer())
    assert len(bounds.candidates(bounds.reached_by_k(10))[0]) < 3 * 15
