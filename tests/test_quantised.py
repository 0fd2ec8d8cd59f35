"""No score is higher than a sketch says, and what is written is what was made."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray
from safetensors.numpy import load_file

from shoal.errors import IndexCorrupt
from shoal_workers.index.quantised import MAX_CODE, Sketch

Vectors = NDArray[np.float32]

ELEMENTS = st.sampled_from([0.0, 1.0, -1.0]) | st.floats(-1, 1, width=16)


def bounds(sketch: Sketch, queries: Vectors) -> NDArray[np.float64]:
    """The bound of every vector's score for every query: `[vectors, queries]`."""
    projection = sketch.project(queries)
    products = sketch.codes.astype(np.int32) @ projection.codes.astype(np.int32).T
    return products * projection.units + projection.slacks


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.float64]:
    """The scores without the rounding of float32."""
    return vectors.astype(np.float64) @ queries.astype(np.float64).T


@settings(deadline=None)
@given(st.data())
def test_no_score_is_over_its_bound(data: st.DataObject) -> None:
    dimension = data.draw(st.sampled_from([1, 2, 59, 60, 61, 200]))
    vectors, queries = (
        data.draw(nps.arrays(np.float32, (data.draw(st.integers(1, most)), dimension), elements=ELEMENTS))
        for most in (60, 6)
    )
    sketch = Sketch.of(vectors)
    assert (bounds(sketch, queries) >= exact(vectors, queries)).all()
    least = sketch.project(queries).bounds_of(vectors[0] @ queries.T)
    assert (sketch.codes[0].astype(np.int32) @ sketch.project(queries).codes.astype(np.int32).T >= least).all()


@pytest.mark.parametrize(("extent", "width"), [(0.9, 64), (0.985, 128), (1, 384)], ids=["narrow", "usual", "even"])
def test_its_width_fits_the_vectors(extent: float, width: int) -> None:
    generator = np.random.default_rng(2)
    vectors = generator.standard_normal((20_000, 384), np.float32) * extent ** np.arange(384, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sketch = Sketch.of(vectors)
    assert sketch.codes.shape == (20_000, width)
    assert np.abs(sketch.codes).max() <= MAX_CODE
    over = bounds(sketch, vectors[:50]) - exact(vectors, vectors[:50])
    assert over.min() >= 0
    assert over.max() < 0.25


def test_all_dimensions_of_short_vectors_are_kept() -> None:
    vectors = np.eye(20, dtype=np.float32)
    sketch = Sketch.of(vectors)
    assert sketch.basis.shape == (20, 20)
    assert sketch.codes.shape == (20, 64)
    assert (bounds(sketch, vectors) - exact(vectors, vectors)).max() < 0.05


def test_what_was_written_is_mapped(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((20_000, 40), np.float32)
    made, path = Sketch.of(vectors), tmp_path / "sketch.safetensors"
    assert Sketch.write(path, vectors) == 64
    opened = Sketch.open(path, 20_000, 40, 64)
    assert (opened.codes == made.codes).all()
    assert (opened.basis == made.basis).all()
    assert (opened.step, opened.tail_step, opened.max_norm) == (made.step, made.tail_step, made.max_norm)
    assert not opened.codes.flags.writeable
    tensors = load_file(path)
    assert (tensors["codes"] == made.codes).all()
    assert set(tensors) == {"codes", "basis", "scales"}


@pytest.mark.parametrize("shape", [(19, 40, 64), (20, 41, 64), (20, 40, 128)])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    Sketch.write(tmp_path / "sketch.safetensors", np.ones((20, 40), np.float32))
    with pytest.raises(IndexCorrupt, match=r"sketch\.safetensors"):
        Sketch.open(tmp_path / "sketch.safetensors", *shape)
