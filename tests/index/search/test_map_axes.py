"""The axes of a map: those of a singular value decomposition, and the same ones in each build."""

from pathlib import Path

import numpy as np
import pytest
from changes import unit_vectors
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.manifest import MAP_AXES, MAP_PLACES
from shoal_workers.index.map.map_axes import CHUNK, PLACES_PER_UNIT, SAMPLE, MapAxes, main_directions, write_map


def clustered(count: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    """Return vectors of length 1 around a few others, as those of texts are."""
    centres = unit_vectors(6, dimension, seed)
    vectors = centres[np.arange(count) % 6] + 0.4 * unit_vectors(count, dimension, seed + 1)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def of_svd(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first two right singular vectors of centred vectors, as rows."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    return np.asarray(np.linalg.svd(centred, full_matrices=False)[2][:2])


@pytest.mark.parametrize(("count", "dimension"), [(50, 8), (CHUNK + 7, 24), (300, 384)])
def test_they_are_those_of_a_singular_value_decomposition(count: int, dimension: int) -> None:
    vectors = clustered(count, dimension)
    axes, expected = MapAxes.fit(vectors), of_svd(vectors)
    np.testing.assert_allclose(np.abs((axes.directions * expected).sum(axis=1)), 1, atol=1e-5)
    np.testing.assert_allclose(axes.directions @ axes.directions.T, np.eye(2), atol=1e-6)
    centred = (vectors - vectors.mean(axis=0)) @ axes.directions.T
    np.testing.assert_allclose(axes.places(vectors) / PLACES_PER_UNIT, centred, atol=1 / PLACES_PER_UNIT)


def test_a_large_index_has_those_of_a_sample_of_it() -> None:
    vectors = clustered(2 * SAMPLE + 3, 4)
    np.testing.assert_array_equal(MapAxes.fit(vectors).directions, MapAxes.fit(vectors[::3]).directions)


def test_a_direction_does_not_depend_on_its_sign_or_the_last_bits() -> None:
    vectors = clustered(500, 16)
    axes = MapAxes.fit(vectors)
    # The same numbers in another order have sums that differ by rounding.
    shuffled = MapAxes.fit(vectors[np.random.default_rng(0).permutation(len(vectors))])
    np.testing.assert_allclose(shuffled.directions, axes.directions, atol=1e-6)
    for row in axes.directions:
        assert row[np.abs(row).argmax()] > 0


@pytest.mark.parametrize("seed", range(20))
def test_where_variances_are_equal_the_first_numbers_decide(seed: int) -> None:
    turned, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((5, 5)))
    space = turned[:, :3] @ turned[:, :3].T  # three directions of the same variance, whichever are chosen
    noise = np.random.default_rng(seed + 100).uniform(-1e-12, 1e-12, (5, 5))
    found = main_directions(3 * space + noise + noise.T)
    np.testing.assert_allclose(found, main_directions(3 * space), atol=1e-6)
    np.testing.assert_allclose(found @ found.T, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(found @ space, found, atol=1e-9)


def test_with_equal_variances_everywhere_they_are_the_first_two_numbers() -> None:
    np.testing.assert_allclose(main_directions(np.eye(4)), np.eye(4)[:2], atol=1e-12)


def test_a_second_direction_across_the_first_one() -> None:
    np.testing.assert_allclose(main_directions(np.diag([1.0, 4.0, 2.0])), [[0, 1, 0], [0, 0, 1]], atol=1e-12)


@pytest.mark.parametrize("vectors", [[[1.0]], [[1.0, 0.0]], [[0.6, 0.8]] * 9, [[1.0], [-1.0], [1.0]]])
def test_few_or_equal_vectors_have_places(vectors: list[list[float]]) -> None:
    rows = np.array(vectors, np.float32)
    places = MapAxes.fit(rows).places(rows)
    assert places.shape == (len(rows), 2)
    assert len({tuple(place) for place in places.tolist()}) == len({tuple(vector) for vector in vectors})
    assert (places[:, 1] == 0).all()


def test_no_place_is_beyond_the_numbers_of_the_file() -> None:
    axes = MapAxes.fit(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32))
    assert np.abs(axes.places(np.array([[9.0, 0.0], [-9.0, 0.0]], np.float32))).max() == np.iinfo(np.int16).max


def test_a_build_writes_the_places_of_all_in_parts(tmp_path: Path) -> None:
    vectors, parts = clustered(CHUNK + 5, 8), list[float]()
    write_map(tmp_path, vectors, parts.append)
    assert parts == [0, CHUNK / (CHUNK + 5)]
    axes = MapAxes.open(tmp_path, 8)
    places = open_array(tmp_path / MAP_PLACES, np.int16, (len(vectors), 2))
    np.testing.assert_array_equal(places, axes.places(vectors))
    np.testing.assert_array_equal(places[7:8], axes.places(vectors[7:8]))
    with pytest.raises(IndexCorrupt, match=MAP_AXES):
        MapAxes.open(tmp_path, 9)
