"""No score is higher than its upper bound, and what is written is what was made."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.manifest import BASIS, QUANTISED, SCALES
from shoal_workers.index.quantisation import MAX_CODE, QuantisationBasis, QuantisedVectors

Vectors = NDArray[np.float32]

ELEMENTS = st.sampled_from([0.0, 1.0, -1.0]) | st.floats(-1, 1, width=16)


def products(quantised: QuantisedVectors, queries: Vectors) -> NDArray[np.int32]:
    """Multiply the codes of every vector with those of every query: `[vectors, queries]`."""
    return quantised.codes.astype(np.int32) @ quantised.basis.encode_queries(queries).codes.astype(np.int32).T


def bounds(quantised: QuantisedVectors, queries: Vectors) -> NDArray[np.float64]:
    """Return the upper bound of every vector's score for every query: `[vectors, queries]`."""
    encoded = quantised.basis.encode_queries(queries)
    return products(quantised, queries) * encoded.units + encoded.slacks


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.float64]:
    """Return the scores without the rounding of float32."""
    return vectors.astype(np.float64) @ queries.astype(np.float64).T


@settings(deadline=None)
@given(st.data())
def test_no_score_is_over_its_bound(data: st.DataObject) -> None:
    dimension = data.draw(st.sampled_from([1, 2, 59, 60, 61, 200]))
    vectors, queries = (
        data.draw(nps.arrays(np.float32, (data.draw(st.integers(1, most)), dimension), elements=ELEMENTS))
        for most in (60, 6)
    )
    quantised = QuantisedVectors.of(vectors)
    assert (bounds(quantised, queries) >= exact(vectors, queries)).all()
    thresholds = quantised.basis.encode_queries(queries).thresholds(vectors[0] @ queries.T)
    assert (products(quantised, queries)[0] >= thresholds).all()


@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
@pytest.mark.parametrize("dimension", [8, 60, 130])
def test_no_part_of_the_slack_can_be_left_out(dimension: int, scale: float) -> None:
    """A vector that rounding moved away from its query, or a query that it moved from a vector, is still bounded."""
    generator = np.random.default_rng(dimension)
    vectors = generator.standard_normal((2_000, dimension), np.float32)
    quantised = QuantisedVectors.of(vectors * np.float32(scale))
    basis = quantised.basis
    kept = basis.directions.shape[1]
    # Queries along what rounding took from vectors, and vectors' neighbours along what it takes from queries.
    lost = vectors @ basis.directions * scale - quantised.codes[:, :kept] * basis.step
    queries = np.concatenate([lost[:50] @ basis.directions.T, vectors[:50], generator.permuted(vectors[:50], axis=1)])
    queries = np.concatenate([queries * np.float32(factor) for factor in (1e-4, 1, 1e4)]).astype(np.float32)
    scores = exact(vectors * np.float32(scale), queries)
    assert (bounds(quantised, queries) >= scores).all()


def test_vectors_outside_of_the_basis_are_bounded_by_their_tails() -> None:
    vectors = np.zeros((4_000, 130), np.float32)
    vectors[:, :50] = np.random.default_rng(5).standard_normal((4_000, 50))
    vectors[:80] = np.eye(130, dtype=np.float32)[50:] * 7
    quantised = QuantisedVectors.of(vectors)
    assert quantised.basis.directions.shape == (130, 60)
    assert (bounds(quantised, vectors[:80]) >= exact(vectors, vectors[:80])).all()


@pytest.mark.parametrize(("extent", "width"), [(0.9, 64), (0.985, 128), (1, 384)], ids=["narrow", "usual", "even"])
def test_its_width_fits_the_vectors(extent: float, width: int) -> None:
    generator = np.random.default_rng(2)
    vectors = generator.standard_normal((20_000, 384), np.float32) * extent ** np.arange(384, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    quantised = QuantisedVectors.of(vectors)
    assert quantised.codes.shape == (20_000, width)
    assert np.abs(quantised.codes).max() <= MAX_CODE
    over = bounds(quantised, vectors[:50]) - exact(vectors, vectors[:50])
    assert over.min() >= 0
    assert over.max() < 0.25


def test_all_dimensions_of_short_vectors_are_kept() -> None:
    vectors = np.eye(20, dtype=np.float32)
    quantised = QuantisedVectors.of(vectors)
    assert quantised.basis.directions.shape == (20, 20)
    assert quantised.codes.shape == (20, 64)
    assert (bounds(quantised, vectors) - exact(vectors, vectors)).max() < 0.05


def test_what_was_written_is_mapped(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((20_000, 40), np.float32)
    made = QuantisedVectors.of(vectors)
    assert QuantisedVectors.write(tmp_path, vectors) == 64
    assert {path.name for path in tmp_path.iterdir()} == {QUANTISED, BASIS, SCALES}
    opened = QuantisedVectors.open(tmp_path, 20_000, 40, 64)
    assert (opened.codes == made.codes).all()
    assert (opened.basis.directions == made.basis.directions).all()
    assert scales(opened.basis) == scales(made.basis)
    assert isinstance(opened.codes.base, np.memmap)
    assert not opened.codes.flags.writeable


def scales(basis: QuantisationBasis) -> tuple[float, float, float, int]:
    """Return the numbers of a basis."""
    return basis.step, basis.tail_step, basis.max_norm, basis.width


@pytest.mark.parametrize("shape", [(19, 40, 64), (20, 41, 64), (20, 40, 128), (20, 40, 4), (20, 40, 1)])
def test_files_of_another_shape_are_refused(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    QuantisedVectors.write(tmp_path, np.ones((20, 40), np.float32))
    with pytest.raises(IndexCorrupt, match="build the index again"):
        QuantisedVectors.open(tmp_path, *shape)


@pytest.mark.parametrize("values", [[0, 1, 1], [1, -1, 1], [1, 1, np.nan], [np.inf, 1, 1]])
def test_scales_that_are_no_positive_numbers_are_refused(tmp_path: Path, values: list[float]) -> None:
    QuantisedVectors.write(tmp_path, np.ones((20, 40), np.float32))
    np.save(tmp_path / SCALES, np.array(values, np.float64))
    with pytest.raises(IndexCorrupt, match="in units of"):
        QuantisedVectors.open(tmp_path, 20, 40, 64)
