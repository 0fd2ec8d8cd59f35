"""Vectors as one bit for each of their codes: its sign. Few bits of near vectors differ.

Of two vectors, the share of the bits that differ estimates the angle between them, as Charikar, "Similarity Estimation
Techniques from Rounding Algorithms", STOC 2002, says; the directions of codes are turned at random for that.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: Bits of a word.
WORD = 64


def binary(codes: NDArray[np.int8]) -> NDArray[np.uint64]:
    """Return the bits of codes, int8 `[rows, width]`: uint64 `[width / 64, rows]`."""
    return np.ascontiguousarray(np.packbits(codes > 0, axis=1).view("<u8").T)


class _Scratch(threading.local):
    """Memory for the distances of a block, one for each thread: new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._differing = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.uint8)

    def of(self, num_rows: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return memory for so many rows."""
        if len(self._counts) < num_rows:
            self._differing, self._counts = np.empty(num_rows, np.uint64), np.empty(num_rows, np.uint8)
        return self._differing[:num_rows], self._counts[:num_rows]


_scratch = _Scratch()


def hamming(
    words: NDArray[np.uint64], query: NDArray[np.uint64], spans: Sequence[slice], out: NDArray[np.uint16]
) -> None:
    """Write into `out`, `[rows]`, how many bits of some spans of `[words, count]` differ from those of a query.

    The rows of all spans follow each other there. The query is `[words]`.
    """
    differing, counts = _scratch.of(len(out))
    ends = np.cumsum([span.stop - span.start for span in spans]).tolist()
    places = [differing[start:end] for start, end in pairwise([0, *ends])]
    out[:] = 0
    for word, of_query in zip(words, query, strict=True):
        for span, place in zip(spans, places, strict=True):
            np.bitwise_xor(word[span], of_query, out=place)
        np.bitwise_count(differing, out=counts)
        out += counts
