"""The terms of documents, as they are counted for an index."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Postings(NamedTuple):
    """Which document has which term, and how often: ordered by term, then by row.

    `terms` is uint64, `rows` int32 and `counts` int32, all `[postings]`.
    """

    terms: NDArray[np.uint64]
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]


def count_terms(terms: NDArray[np.uint64], lengths: NDArray[np.int64], first_row: int) -> Postings:
    """Count the terms of documents with `lengths` terms each, which come one after the other from `first_row` on."""
    rows = np.repeat(np.arange(first_row, first_row + len(lengths), dtype=np.int32), lengths)
    order = np.argsort(terms, kind="stable")
    terms, rows = terms[order], rows[order]
    is_first = np.ones(len(terms), bool)
    is_first[1:] = (terms[1:] != terms[:-1]) | (rows[1:] != rows[:-1])
    firsts = np.flatnonzero(is_first)
    counts = np.diff(np.append(firsts, len(terms))).astype(np.int32)
    return Postings(terms[firsts], rows[firsts], counts)
