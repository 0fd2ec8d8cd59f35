"""The vectors that a client must get, made by Sentence Transformers with the same model."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: A function that returns Sentence Transformers' vectors of texts.
Reference = Callable[[Sequence[str]], NDArray[np.float32]]

#: Least cosine of two vectors that differ only by rounding.
MIN_COSINE = 0.9999


def check_same(found: ArrayLike, expected: NDArray[np.float32]) -> None:
    """Fail the test unless each row has the direction of the expected row."""
    rows = np.asarray(found, np.float32)
    assert rows.shape == expected.shape
    cosines = (rows * expected).sum(-1) / np.linalg.norm(rows, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() >= MIN_COSINE
