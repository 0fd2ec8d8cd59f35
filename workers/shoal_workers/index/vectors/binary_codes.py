"""Vectors as one bit for each of their codes: its sign. Few bits of near vectors differ.

Of two vectors, the share of the bits that differ estimates the angle between them, as Charikar, "Similarity Estimation
Techniques from Rounding Algorithms", STOC 2002, says; the directions of codes are turned at random for that.
"""

import math
import threading
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shoal_workers.avx512.kernel import count_differing, load_if_it_runs
from shoal_workers.index.vectors.quantisation import QuantisationBasis

#: Bits of a word.
WORD = 64


def binary(codes: NDArray[np.int8]) -> NDArray[np.uint64]:
    """Return the bits of codes, int8 `[rows, width]`: uint64 `[width / 64, rows]`."""
    return np.ascontiguousarray(np.packbits(codes > 0, axis=1).view("<u8").T)


def expected_distance(score: float, basis: QuantisationBasis) -> float:
    """Return how many bits of two vectors of length one with this score differ, about."""
    num_bits: int = basis.directions.shape[1]
    return num_bits * math.acos(min(1, max(-1, score))) / math.pi


class _Scratch(threading.local):
    """Memory for the distances of a block, one for each thread: new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._differing = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.uint8)

    def of(self, num_rows: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return memory for `num_rows` rows."""
        if len(self._counts) < num_rows:
            self._differing, self._counts = np.empty(num_rows, np.uint64), np.empty(num_rows, np.uint8)
        return self._differing[:num_rows], self._counts[:num_rows]


_scratch = _Scratch()


def hamming(
    words: NDArray[np.uint64], query: NDArray[np.uint64], spans: NDArray[np.int64], out: NDArray[np.uint16]
) -> None:
    """Write into `out`, `[rows]`, how many bits of some rows of `[words, count]` differ from those of a query.

    The rows are those of the spans, `[spans, 2]`, from the first to before the second. The query is `[words]`.
    """
    if kernel := _kernel():
        count_differing(kernel, words, np.ascontiguousarray(query), spans, out)
    else:
        hamming_in_numpy(words, query, spans, out)


#: The compiled kernel, which reads rows once and is six times as quick, or None.
_kernel = cache(load_if_it_runs)


def hamming_in_numpy(
    words: NDArray[np.uint64], query: NDArray[np.uint64], spans: NDArray[np.int64], out: NDArray[np.uint16]
) -> None:
    """Do what `hamming` does, on any machine."""
    differing, counts = _scratch.of(len(out))
    ends = np.cumsum(spans[:, 1] - spans[:, 0]).tolist()
    places = [differing[start:end] for start, end in pairwise([0, *ends])]
    out[:] = 0
    for word, of_query in zip(words, query, strict=True):
        for (start, end), place in zip(spans.tolist(), places, strict=True):
            np.bitwise_xor(word[start:end], of_query, out=place)
        np.bitwise_count(differing, out=counts)
        out += counts
