"""Duplicates of a build: documents with the words of an earlier one, and rows whose vectors are nearly those of one.

Most bits of near vectors are equal. Rows are sorted by their bits several times, each time with other bits first, and
compared with the few that follow them: in some of these orders, near ones stand side by side. So Charikar, "Similarity
Estimation Techniques from Rounding Algorithms", STOC 2002, finds near neighbours. Some may be missed.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.documents import Documents, read_lines, to_line
from shoal_workers.index.files.hash_table import HashTable, hash_of
from shoal_workers.index.files.manifest import DUPLICATES, HASHES, IDS, NEAR_DUPLICATES
from shoal_workers.index.lexical.analyzer import normalised
from shoal_workers.index.vectors.inverted_file import WORD, binary

_WORDS = re.compile(r"\w+")

#: Least cosine of near duplicates.
LEAST_COSINE = 0.95

#: Rows are sorted several times by their bits. Each order begins this many bits after the one before.
STEP = 16

#: Rows that follow a row in an order and are compared with it.
NUM_FOLLOWING = 8

#: Standard deviations above the mean: of rows with the least cosine, nearly none differ in more bits than that.
NUM_DEVIATIONS = 4

#: Rows whose bits are compared at a time, and pairs whose vectors are.
BLOCK, MAX_PAIRS = 2**16, 2**10


def word_hash(text: str) -> bytes:
    """Return a hash of the words of a text: the same whatever their case, their spaces and the signs between them.

    A text without words has that of its signs.
    """
    found = _WORDS.findall(normalised(text))
    return hash_of(" ".join(found) or text.strip())


def write_duplicates(folder: Path, word_hashes: bytes | bytearray, is_first: NDArray[np.bool_]) -> int:
    """List the duplicates of a build in a file, each with the first document that has its words; return their number.

    A line has the `id` and, as `same_as`, the id of that document. `is_first`, `[count]`, is True for the first row of
    each document, and `word_hashes` are those of the rows.
    """
    first_rows = HashTable.of(word_hashes).first_rows()
    rows = np.flatnonzero(is_first & (first_rows != np.arange(len(first_rows))))
    documents = Documents(folder, len(first_rows), has_ids=True)
    with (folder / DUPLICATES).open("wb") as file:
        for row, first in zip(rows.tolist(), first_rows[rows].tolist(), strict=True):
            file.write(to_line({"id": documents.document(row)["id"], "same_as": documents.document(first)["id"]}))
    return len(rows)


def write_near_duplicates(
    folder: Path, vectors: NDArray[np.float32], codes: NDArray[np.int8], report: Callable[[float], object]
) -> int:
    """List the near duplicates of a build in a file, each with the nearest earlier one found; return their number.

    A line has the `id`, as `near` the id of the earlier document, and the `cosine`. In an index of chunks, a document
    has a line for each of its chunks that is near to one of an earlier document. Rows with the text or the words of an
    earlier one are left out. `report` is called with the part that is done.
    """
    documents = Documents(folder, len(vectors), has_ids=True)
    is_compared = HashTable.open(folder, HASHES, len(vectors)).first_rows() == np.arange(len(vectors))
    is_compared[documents.rows_of([line["id"] for line in read_lines(folder / DUPLICATES)])] = False
    rows = np.flatnonzero(is_compared)
    owners = HashTable.open(folder, IDS, len(vectors)).first_rows()
    pairs = NearestEarlier(vectors, owners)
    for left, right in near_by_bits(codes, rows, report):
        pairs.compare(left, right)
    found = np.flatnonzero(pairs.cosines >= LEAST_COSINE)
    with (folder / NEAR_DUPLICATES).open("wb") as file:
        nearest, cosines = pairs.rows[found].tolist(), pairs.cosines[found].tolist()
        for row, near, cosine in zip(found.tolist(), nearest, cosines, strict=True):
            ids = documents.document(row)["id"], documents.document(near)["id"]
            file.write(to_line({"id": ids[0], "near": ids[1], "cosine": round(cosine, 4)}))
    return len(found)


def near_by_bits(
    codes: NDArray[np.int8], rows: NDArray[np.int64], report: Callable[[float], object]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of some rows of codes, int8 `[count, width]`, few of whose bits differ.

    No row is twice on the same side of what is yielded at a time.
    """
    bits = np.empty((codes.shape[1] // WORD, len(rows)), np.uint64)
    for start in range(0, len(rows), BLOCK):
        bits[:, start : start + BLOCK] = binary(codes[rows[start : start + BLOCK]])
    num_bits, share = WORD * len(bits), math.acos(LEAST_COSINE) / math.pi
    most = num_bits * share + NUM_DEVIATIONS * math.sqrt(num_bits * share * (1 - share))
    for first_bit in range(0, num_bits, STEP):
        order = np.argsort(_leading_bits(bits, first_bit), kind="stable")
        for start in range(0, len(order), BLOCK):
            report((first_bit + STEP * start / len(order)) / num_bits)
            places = order[start : start + BLOCK + NUM_FOLLOWING]
            block = bits[:, places]
            for step in range(1, min(NUM_FOLLOWING, len(places) - 1) + 1):
                differing = np.bitwise_count(block[:, step:] ^ block[:, :-step]).sum(axis=0, dtype=np.uint16)
                near = np.flatnonzero(differing <= most)
                yield rows[places[near]], rows[places[near + step]]


def _leading_bits(bits: NDArray[np.uint64], first_bit: int) -> NDArray[np.uint64]:
    """Return a word of the bits of each row that begins with another one, uint64 `[rows]`."""
    place, shift = divmod(first_bit, WORD)
    following = bits[(place + 1) % len(bits)] >> np.uint64(WORD - shift) if shift else np.uint64(0)
    return np.asarray((bits[place] << np.uint64(shift)) | following)


class NearestEarlier:
    """The nearest earlier row of each that was compared: its place, int64 `[count]`, and their cosine, -1 without any.

    `vectors` are float32 `[count, dimension]`. Rows of one document, which have the same `owners`, are not compared.
    """

    def __init__(self, vectors: NDArray[np.float32], owners: NDArray[np.int64]):
        self._vectors = vectors
        self._owners = owners
        self.rows = np.full(len(vectors), -1)
        self.cosines = np.full(len(vectors), -1, np.float32)

    def compare(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
        """Compare pairs of rows. No row is twice in `left`, nor in `right`."""
        later, earlier = np.maximum(left, right), np.minimum(left, right)
        is_asked = (self._owners[left] != self._owners[right]) & (self.rows[later] != earlier)
        for is_side in (left == later, right == later):
            self._compare(later[is_asked & is_side], earlier[is_asked & is_side])

    def _compare(self, later: NDArray[np.int64], earlier: NDArray[np.int64]) -> None:
        """Compare different rows with an earlier one each."""
        for start in range(0, len(later), MAX_PAIRS):
            rows, others = later[start : start + MAX_PAIRS], earlier[start : start + MAX_PAIRS]
            cosines = np.vecdot(self._vectors[rows], self._vectors[others])
            known = self.cosines[rows]
            is_nearer = (cosines > known) | ((cosines == known) & (others < self.rows[rows]))
            self.cosines[rows[is_nearer]] = cosines[is_nearer]
            self.rows[rows[is_nearer]] = others[is_nearer]
