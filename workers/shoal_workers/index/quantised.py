"""A sketch of an index: a small copy of its vectors, in int8, that bounds every score from above.

A vector x is its part y in a basis of the directions in which the vectors extend most, and a tail t across them. For a
query with the parts z and u, the score is z·y + u·t, and so at most z·y + |u||t| (Cauchy-Schwarz). That is a product
itself: of y with |t| appended and z with |u| appended. The sketch holds the former in int8, with |t| rounded up.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index import tensorfile

#: Share of the vectors' squared length that the basis holds at least. The more, the tighter the bounds and the larger
#: the sketch: for headlines, 252 of 384 dimensions hold 96 %.
MIN_SHARE = 0.92

#: A row of codes fills whole cache lines of so many bytes.
CACHE_LINE = 64

#: Codes that hold the length of the tail, all the same: one would not do, for the product of two codes is at most 127².
NUM_TAILS = 4

#: Largest code.
MAX_CODE = 127

#: What the squared length of a part may be off by, and what a score may, because of rounding in float32.
ROUNDING_SQUARED, ROUNDING = 1e-5, 1e-4

#: Keeps vectors of zeros from being divided by their length.
TINY = 1e-30

#: Most vectors from which the basis is found, and vectors at a time.
SAMPLE, CHUNK = 2**15, 2**13


@dataclass(frozen=True, slots=True)
class Projection:
    """Queries as the sketch sees them. `units` times the product of codes, plus `slacks`, bounds the score."""

    codes: NDArray[np.int8]
    units: NDArray[np.float64]
    slacks: NDArray[np.float64]

    def bounds_of(self, scores: NDArray[np.float32]) -> NDArray[np.int32]:
        """The least product of codes that a vector of each query's score in `scores` may have."""
        least = np.floor((scores - self.slacks) / self.units)
        limits = np.iinfo(np.int32)
        return np.clip(least, limits.min + 1, limits.max).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Sketch:
    """`codes` int8 `[count, width]`; `basis` float32 `[dimension, kept]`, its columns orthonormal.

    A row of codes is the part in the basis in units of `step`, the tail in units of `tail_step`, then zeros.
    """

    codes: NDArray[np.int8]
    basis: NDArray[np.float32]
    step: float
    tail_step: float
    max_norm: float

    @classmethod
    def of(cls, vectors: NDArray[np.float32]) -> Self:
        """A sketch in memory."""
        frame = cls._frame(vectors)
        return cls(np.concatenate(list(frame._encode(vectors))), *frame._scales())

    @classmethod
    def write(cls, path: Path, vectors: NDArray[np.float32]) -> int:
        """Writes a sketch and returns its width."""
        frame = cls._frame(vectors)
        width: int = frame.codes.shape[1]
        scales = np.array(frame._scales()[1:])
        with path.open("wb") as file:
            tensors = {"codes": (np.int8, (len(vectors), width)), "basis": (np.float32, frame.basis.shape)}
            file.write(tensorfile.header(tensors | {"scales": (np.float64, scales.shape)}))
            for codes in frame._encode(vectors):
                file.write(codes.tobytes())
            file.write(frame.basis.tobytes() + scales.tobytes())
        return width

    @classmethod
    def open(cls, path: Path, count: int, dimension: int, width: int) -> Self:
        """The sketch that was written, mapped into memory.

        Raises IndexCorrupt.
        """
        codes = tensorfile.mapped(path, "codes", np.int8, (count, width))
        basis = tensorfile.mapped(path, "basis", np.float32, (dimension, -1))
        scales = tensorfile.mapped(path, "scales", np.float64, (3,))
        kept = basis.shape[1]
        if not 0 < kept <= min(dimension, width - NUM_TAILS) or not (np.isfinite(scales) & (scales > 0)).all():
            raise IndexCorrupt(f"{path} holds no sketch ({kept} directions, scales {scales}): build the index again")
        return cls(codes, basis, *scales.tolist())

    def project(self, queries: NDArray[np.float32]) -> Projection:
        """What the codes are to be multiplied with for each of `[queries, dimension]`."""
        parts, tails = _split(queries, self.basis)
        tails *= self.tail_step / (self.step * NUM_TAILS)
        steps = np.maximum(np.abs(parts).max(axis=1), tails * 1.01) / MAX_CODE + TINY
        rounded = np.rint(parts / steps[:, None])
        codes = _coded(rounded, np.ceil(tails / steps), self.codes.shape[1])
        rounded *= steps[:, None]
        # Rounding moves each of a vector's codes by half a step at most, and the query's by what is seen here.
        slacks = _norms(rounded) * (self.step / 2 * math.sqrt(parts.shape[1]))
        slacks += (_norms(parts - rounded) + _norms(queries) * ROUNDING) * self.max_norm
        return Projection(codes, steps * self.step, slacks)

    @classmethod
    def _frame(cls, vectors: NDArray[np.float32]) -> Self:
        """The basis and the scales for the vectors, without codes."""
        basis, width = _basis(vectors[:: -(-len(vectors) // SAMPLE)])
        part = tail = norm = TINY
        for chunk in _chunks(vectors):
            parts, tails = _split(chunk, basis)
            part, tail = max(part, float(np.abs(parts).max())), max(tail, float(tails.max()))
            norm = max(norm, float(_norms(chunk).max()))
        # The tail is rounded up, and so must not need the largest code itself.
        return cls(np.empty((0, width), np.int8), basis, part / MAX_CODE, tail / (MAX_CODE - 1), norm)

    def _scales(self) -> tuple[NDArray[np.float32], float, float, float]:
        return self.basis, self.step, self.tail_step, self.max_norm

    def _encode(self, vectors: NDArray[np.float32]) -> Iterator[NDArray[np.int8]]:
        for chunk in _chunks(vectors):
            parts, tails = _split(chunk, self.basis)
            yield _coded(np.rint(parts / self.step), np.ceil(tails / self.tail_step), self.codes.shape[1])


def _basis(sample: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """An orthonormal basis `[dimension, kept]` that holds enough of the vectors, and the width of a row of codes.

    Within the space it spans it is turned at random: so all its numbers are about as large, and one step fits them.
    """
    values, directions = np.linalg.eigh((sample.T @ sample).astype(np.float64))
    shares = np.cumsum(values[::-1]) / (values.sum() + TINY)
    dimension = len(values)
    width = CACHE_LINE
    while (kept := min(width - NUM_TAILS, dimension)) < dimension and shares[kept - 1] < MIN_SHARE:
        width += CACHE_LINE
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((kept, kept)))
    return (directions[:, ::-1][:, :kept] @ turn).astype(np.float32), width


def _split(vectors: NDArray[np.float32], basis: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The part of each vector in the basis, and the most that its tail can be long."""
    parts = vectors @ basis
    squared = np.vecdot(vectors, vectors).astype(np.float64)
    rest = np.maximum(squared - np.vecdot(parts, parts), 0) + ROUNDING_SQUARED * squared
    return parts, np.sqrt(rest)


def _norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.vecdot(vectors, vectors, dtype=np.float64)))


def _coded(parts: NDArray[np.float32], tails: NDArray[np.float64], width: int) -> NDArray[np.int8]:
    codes = np.zeros((len(parts), width), np.int8)
    kept = parts.shape[1]
    codes[:, :kept] = parts
    codes[:, kept : kept + NUM_TAILS] = tails[:, None]
    return codes


def _chunks(vectors: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    return (vectors[start : start + CHUNK] for start in range(0, len(vectors), CHUNK))
