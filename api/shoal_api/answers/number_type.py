"""Number types of vectors in responses: the arrays into which float32 vectors are converted."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

#: Arrays by their names: `embeddings` with a row for each vector, and what else is needed to read them.
Arrays = dict[str, NDArray[Any]]

NumberType = Literal["float32", "float16", "int8", "binary", "ubinary"]

#: All number types; the first is the default.
NUMBER_TYPES: tuple[str, ...] = get_args(NumberType)

_MAX_INT8 = 127
_MAX_FLOAT16 = float(np.finfo(np.float16).max)


def convert(vectors: NDArray[np.float32], number_type: str) -> Arrays:
    """Return the vectors, float32 `[rows, dimension]`, as little-endian arrays of the number type.

    `embeddings` is `[rows, dimension]`, and for packed bits `[rows, dimension / 8]`, rounded up. `int8` has the array
    `scales` too, float32 `[rows]`, by which its rows are multiplied to restore the vectors.
    """
    return _CONVERSIONS[number_type](vectors)


def _float32(vectors: NDArray[np.float32]) -> Arrays:
    return {"embeddings": vectors.astype("<f4", copy=False)}


def _float16(vectors: NDArray[np.float32]) -> Arrays:
    return {"embeddings": np.clip(vectors, -_MAX_FLOAT16, _MAX_FLOAT16).astype("<f2")}


def _int8(vectors: NDArray[np.float32]) -> Arrays:
    """Scale each vector so that its largest number, without the sign, is 127; zeros have the scale 0."""
    scales = np.abs(vectors).max(axis=1) / np.float32(_MAX_INT8)
    rows = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])
    within = np.clip(rows, -_MAX_INT8, _MAX_INT8)  # scales near 0 are rounded much
    return {"embeddings": within.astype("i1"), "scales": scales.astype("<f4", copy=False)}


def _ubinary(vectors: NDArray[np.float32]) -> Arrays:
    """Keep one bit of each number, 1 if it is over 0: the first is the highest bit of the first byte."""
    return {"embeddings": np.packbits(vectors > 0, axis=1)}


def _binary(vectors: NDArray[np.float32]) -> Arrays:
    """Pack bits, and subtract 128 from each byte, as other services do that answer signed bytes."""
    bits = _ubinary(vectors)["embeddings"]
    return {"embeddings": (bits ^ np.uint8(128)).view("i1")}


_CONVERSIONS: dict[str, Callable[[NDArray[np.float32]], Arrays]] = {
    "float32": _float32,
    "float16": _float16,
    "int8": _int8,
    "binary": _binary,
    "ubinary": _ubinary,
}
