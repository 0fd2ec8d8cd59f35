"""The vectors of texts: cut, normalised, and packed as maps of bytes (docs/protocol.md)."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.contract.options import Options
from shoal.errors import MalformedJob


class SparseVector(NamedTuple):
    """Ids of the vocabulary and their weights in a text: int32 and float32 `[n]`. Ids ascend; weights are positive."""

    indices: NDArray[np.int32]
    values: NDArray[np.float32]


def cut_and_normalise(vectors: Sequence[NDArray[np.float32]], options: Options) -> NDArray[np.float32]:
    """Return the rows in one array, cut and normalised as the options say, float32 `[rows, dimension]`.

    A row's result does not depend on the other rows.
    """
    stacked = np.concatenate(vectors)[:, : options.dimensions]
    if options.normalize:
        stacked = stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(stacked, dtype=np.float32)


def pack_vectors(vectors: NDArray[np.float32]) -> dict[str, Any]:
    """Return the vectors as a map of raw little-endian bytes with their dtype and shape."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return {"dtype": "float32", "shape": list(rows.shape), "data": rows.data.cast("B") if rows.size else b""}


def unpack_vectors(values: dict[str, Any]) -> NDArray[np.float32]:
    """Return the array in a map made by `pack_vectors`."""
    if (dtype := values["dtype"]) != "float32":
        raise MalformedJob(f"vectors have dtype {excerpt(dtype)}: this version knows float32")
    num_rows, dimension = values["shape"]
    return np.frombuffer(values["data"], dtype="<f4").reshape(max(0, num_rows), max(0, dimension))


def pack_sparse(vectors: Sequence[SparseVector]) -> dict[str, Any]:
    """Return the sparse vectors of texts as a map of bytes."""
    indices = np.concatenate([vector.indices for vector in vectors]).astype("<i4")
    values = np.concatenate([vector.values for vector in vectors]).astype("<f4")
    lengths = [len(vector.indices) for vector in vectors]
    return {"lengths": lengths, "indices": indices.tobytes(), "values": values.tobytes()}


def unpack_sparse(packed: dict[str, Any]) -> list[SparseVector]:
    """Return the sparse vectors in a map made by `pack_sparse`. Raises MalformedJob, ValueError and LookupError."""
    indices, values = np.frombuffer(packed["indices"], "<i4"), np.frombuffer(packed["values"], "<f4")
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("a sparse vector has a weight that is not positive")
    pairs = zip(_by_text(indices, packed["lengths"]), _by_text(values, packed["lengths"]), strict=True)
    vectors = [SparseVector(*pair) for pair in pairs]
    texts = np.repeat(np.arange(len(vectors)) << 32, packed["lengths"])  # for one check of all texts, which is faster
    if (indices < 0).any() or (np.diff(texts + indices) <= 0).any():
        raise ValueError("the ids of a sparse vector do not ascend")
    return vectors


def _pack_multivectors(vectors: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
    return {"lengths": [len(rows) for rows in vectors]} | pack_vectors(np.concatenate(vectors))


def _unpack_multivectors(packed: dict[str, Any]) -> list[NDArray[np.float32]]:
    rows = unpack_vectors(packed)
    if not rows.shape[1] or not np.isfinite(rows).all():
        raise ValueError("a multivector has vectors without numbers, or a number that is not finite")
    return _by_text(rows, packed["lengths"])


def are_counts(value: Any) -> bool:
    """Return True for a list of whole numbers from 0 to 2**31 - 1."""
    return type(value) is list and all([type(count) is int and 0 <= count < 2**31 for count in value])


def _by_text(rows: NDArray[Any], lengths: Any) -> list[NDArray[Any]]:
    """Return each text's part of the rows. Raises MalformedJob if the numbers of rows do not add up."""
    if not are_counts(lengths) or sum(lengths) != len(rows):
        raise MalformedJob(f"the reply has {len(rows):,} vectors or weights, and its lengths do not add up to that")
    return [rows[end - length : end] for length, end in zip(lengths, accumulate(lengths), strict=True)]


#: For each field of a reply with vectors, the function that packs it, and the function that unpacks it.
PACK: dict[str, Callable[[Any], dict[str, Any]]] = {
    "vectors": pack_vectors,
    "sparse": pack_sparse,
    "multivectors": _pack_multivectors,
}
UNPACK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "vectors": unpack_vectors,
    "sparse": unpack_sparse,
    "multivectors": _unpack_multivectors,
}
