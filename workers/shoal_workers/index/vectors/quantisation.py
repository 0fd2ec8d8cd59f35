"""Vectors as int8 codes. The inner product of two codes, in a known unit, plus a slack, is an upper bound of a score.

A basis has the directions in which the vectors of an index extend most. The part of a vector x inside the basis is y;
the remainder outside the basis, called the tail, has the length t. For a query q, z is the part inside the basis and u
is the length of the tail. By the Cauchy-Schwarz inequality the inner product of the remainders is at most t·u, so

    x·q  <=  y·z + t·u

The right-hand side is one inner product: y with t appended, times z with u appended. Codes are the numbers of these
longer vectors in int8, with tails rounded up; the slack allows for the rounding of the other numbers. Bounds of this
kind, from a singular value decomposition, integers and the Cauchy-Schwarz inequality, are from Li, Chan, Yiu and
Mamoulis, "FEXIPRO: Fast and Exact Inner Product Retrieval in Recommender Systems", SIGMOD 2017.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array, save_array, write_header
from shoal_workers.index.files.manifest import BASIS, QUANTISED, SCALES

#: Least share of the vectors' squared length that the basis must keep. A larger share gives tighter bounds and longer
#: codes. For headlines, 252 of 384 dimensions keep 96 %.
MIN_SHARE = 0.92

#: The codes of a vector fill whole cache lines, which have this many bytes.
CACHE_LINE = 64

#: Number of equal codes that together represent the tail. One is not enough, because the product of two codes is at
#: most 127².
NUM_TAIL_CODES = 4

#: Largest code.
MAX_CODE = 127

#: Bounds of the relative float32 rounding errors of a squared length and of a score.
SQUARED_ERROR, SCORE_ERROR = 1e-5, 1e-4

#: Added to divisors, because they are zero for vectors of zeros.
TINY = 1e-30

#: Largest number of vectors from which a basis is computed, and number of vectors that are encoded at a time.
SAMPLE, CHUNK = 2**15, 2**13


@dataclass(frozen=True, slots=True)
class QuantisedQueries:
    """Queries as codes, int8 `[queries, width]`, with `units` and `slacks`, float64 `[queries]`.

    A vector's score is at most the product of its codes with the query's, times the unit, plus the slack.
    """

    codes: NDArray[np.int8]
    units: NDArray[np.float64]
    slacks: NDArray[np.float64]

    def thresholds(self, scores: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return, for each query, the lowest product of codes of a vector whose score reaches `scores`."""
        products = np.floor((scores - self.slacks) / self.units)
        limits = np.iinfo(np.int32)
        return np.clip(products, limits.min + 1, limits.max).astype(np.int32)


@dataclass(frozen=True, slots=True)
class QuantisationBasis:
    """The basis and the scales with which vectors and queries are encoded.

    `directions` is float32 `[dimension, kept]`, with orthonormal columns. The `width` codes of a vector are its part in
    the basis in units of `step`, its tail in units of `tail_step`, then zeros. `max_norm` is the length of the longest
    vector.
    """

    directions: NDArray[np.float32]
    step: float
    tail_step: float
    max_norm: float
    width: int

    @classmethod
    def fit(cls, vectors: NDArray[np.float32], report: Callable[[float], object] = lambda _: None) -> Self:
        """Compute the basis and the scales for vectors `[count, dimension]`, and report the fraction that is read."""
        directions, width = _main_directions(vectors[:: math.ceil(len(vectors) / SAMPLE)])
        largest = longest_tail = max_norm = TINY
        for n, chunk in enumerate(_chunks(vectors)):
            report(n * CHUNK / len(vectors))
            parts, tails = _split(chunk, directions)
            largest = max(largest, float(np.abs(parts).max(initial=0)))
            longest_tail = max(longest_tail, float(tails.max()))
            max_norm = max(max_norm, float(_norms(chunk).max()))
        # Tails are rounded up, so the longest tail may take only the second largest code before it is rounded.
        return cls(directions, largest / MAX_CODE, longest_tail / (MAX_CODE - 1), max_norm, width)

    @classmethod
    def open(cls, folder: Path, dimension: int, width: int) -> Self:
        """Read the files that `QuantisedVectors.write` wrote. Raises IndexCorrupt."""
        kept = _num_kept(dimension, width)
        scales = open_array(folder / SCALES, np.float64, (3,))
        if kept < min(1, dimension) or not (np.isfinite(scales) & (scales > 0)).all():
            raise IndexCorrupt(f"{folder} has codes of {width} bytes in units of {scales}: build the index again")
        step, tail_step, max_norm = scales.tolist()
        return cls(open_array(folder / BASIS, np.float32, (dimension, kept)), step, tail_step, max_norm, width)

    def encode(self, vectors: NDArray[np.float32]) -> Iterator[NDArray[np.int8]]:
        """Yield the codes of the vectors, int8 `[chunk, width]`, chunk by chunk."""
        for chunk in _chunks(vectors):
            parts, tails = _split(chunk, self.directions)
            yield self._codes(np.rint(parts / self.step), np.ceil(tails / self.tail_step))

    def encode_queries(self, queries: NDArray[np.float32]) -> QuantisedQueries:
        """Return queries `[queries, dimension]` as codes. Each query has its own unit."""
        parts, tails = _split(queries, self.directions)
        tails *= self.tail_step / (self.step * NUM_TAIL_CODES)
        # 1 % more than the tail leaves room to round it up.
        steps = np.maximum(np.abs(parts).max(axis=1), tails * 1.01) / MAX_CODE + TINY
        rounded = np.rint(parts / steps[:, None])
        codes = self._codes(rounded, np.ceil(tails / steps))
        rounded *= steps[:, None]
        # Let y' and z' be the rounded parts. Then y·z = y'·z' + (y-y')·z' + y·(z-z'). No code of a vector is off by
        # more than half a step, so the second product is at most |z'| √kept step/2; the third is at most |y||z-z'|.
        slacks = _norms(rounded) * (self.step / 2 * math.sqrt(parts.shape[1]))
        slacks += (_norms(parts - rounded) + _norms(queries) * SCORE_ERROR) * self.max_norm
        return QuantisedQueries(codes, steps * self.step, slacks)

    def _codes(self, parts: NDArray[np.float32], tails: NDArray[np.float64]) -> NDArray[np.int8]:
        codes = np.zeros((len(parts), self.width), np.int8)
        kept = parts.shape[1]
        codes[:, :kept] = parts
        codes[:, kept : kept + NUM_TAIL_CODES] = tails[:, None]
        return codes


@dataclass(frozen=True, slots=True)
class QuantisedVectors:
    """The vectors of an index as `codes`, int8 `[count, width]`, and the basis that they were encoded with."""

    codes: NDArray[np.int8]
    basis: QuantisationBasis

    @staticmethod
    def write(folder: Path, vectors: NDArray[np.float32], report: Callable[[float], object] = lambda _: None) -> int:
        """Quantise vectors `[count, dimension]` into files in `folder`, and return the width of their codes.

        The vectors are read twice. `report` is called before each chunk with the fraction of the work that is done; an
        error that it raises ends the work.
        """
        basis = QuantisationBasis.fit(vectors, lambda part: report(part / 2))
        save_array(folder / BASIS, basis.directions)
        save_array(folder / SCALES, np.array([basis.step, basis.tail_step, basis.max_norm]))
        with (folder / QUANTISED).open("wb") as file:
            write_header(file, np.int8, (len(vectors), basis.width))
            for n, codes in enumerate(basis.encode(vectors)):
                report(0.5 + n * CHUNK / len(vectors) / 2)
                file.write(codes.tobytes())
        return basis.width

    @classmethod
    def open(cls, folder: Path, count: int, dimension: int, width: int) -> Self:
        """Memory-map the files that `write` wrote. Raises IndexCorrupt."""
        codes = open_array(folder / QUANTISED, np.int8, (count, width))
        return cls(codes, QuantisationBasis.open(folder, dimension, width))


def _main_directions(sample: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Return an orthonormal basis `[dimension, kept]` that keeps `MIN_SHARE` of the lengths, and the width of codes.

    The basis is the first right singular vectors, rotated at random within the space that they span. So the numbers of
    a vector are of similar size, and one step suits all of them.
    """
    values, directions = np.linalg.eigh((sample.T @ sample).astype(np.float64))
    shares = np.cumsum(values[::-1]) / (values.sum() + TINY)
    dimension = len(values)
    width = CACHE_LINE if dimension else 0
    while (kept := _num_kept(dimension, width)) < dimension and shares[kept - 1] < MIN_SHARE:
        width += CACHE_LINE
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((kept, kept)))
    return (directions[:, ::-1][:, :kept] @ rotation).astype(np.float32), width


def _num_kept(dimension: int, width: int) -> int:
    return max(0, min(width - NUM_TAIL_CODES, dimension))


def _split(
    vectors: NDArray[np.float32], directions: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the part of each vector in the basis, and an upper bound of the length of its tail."""
    parts = vectors @ directions
    squared = np.vecdot(vectors, vectors).astype(np.float64)
    rest = np.maximum(squared - np.vecdot(parts, parts), 0) + SQUARED_ERROR * squared
    return parts, np.sqrt(rest)


def _norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.vecdot(vectors, vectors, dtype=np.float64)))


def _chunks(vectors: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    return (vectors[start : start + CHUNK] for start in range(0, len(vectors), CHUNK))
