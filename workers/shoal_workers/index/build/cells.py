"""The step of a build that puts rows into cells, for approximate search, and finds how much of them a search reads."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.manifest import CELL_BITS, CELL_ROWS, CELL_STARTS, CENTROIDS
from shoal_workers.index.vectors.inverted_file import WORD, InvertedFile, binary, expected_distance
from shoal_workers.index.vectors.quantisation import TINY, QuantisationBasis, QuantisedVectors
from shoal_workers.index.vectors.search import batch_top_k

#: Most cells, and the average rows of a cell in an index with fewer cells.
MAX_CELLS, ROWS_A_CELL = 4_096, 250

#: Rows that are sampled for each cell to find the centroids, and rounds of k-means in which these move.
SAMPLED_A_CELL, NUM_ROUNDS = 30, 6

#: Rows that are looked at at a time.
CHUNK = 2**12

#: Sampled documents that are searched for, then as many queries far from all documents; and neighbours of each query.
NUM_SAMPLED, NUM_NEIGHBOURS = 200, 10

#: Share of these neighbours that must lie in the cells that are read, and share whose bits must be near enough.
MIN_IN_CELLS, MIN_NEAR = 0.99, 0.998

#: Least margin of cells. Queries of another kind than the documents need as much (docs/indexes.md).
LEAST_MARGIN = 0.3


def write_cells(
    folder: Path, vectors: NDArray[np.float32], quantised: QuantisedVectors, report: Callable[[float], object]
) -> dict[str, Any]:
    """Write the cells of `vectors`, `[count, dimension]`, into the folder of a build.

    Returns what the manifest says of them. `report` is called with the part that is done.
    """
    file = write_inverted_file(folder, vectors, quantised, lambda part: report(part / 2))
    return about_cells(file, *find_margins(vectors, quantised, file, lambda part: report((1 + part) / 2)))


def about_cells(file: InvertedFile, cell_margin: float, bit_margin: float) -> dict[str, Any]:
    """Return what the manifest says of cells."""
    return {"num_cells": len(file.sizes), "cell_margin": cell_margin, "bit_margin": bit_margin}


def write_inverted_file(
    folder: Path, vectors: NDArray[np.float32], quantised: QuantisedVectors, report: Callable[[float], object]
) -> InvertedFile:
    """Put vectors, `[count, dimension]`, into cells, and write these into the folder of a build."""
    file = make_cells(vectors, quantised, report)
    for name, array in ((CENTROIDS, file.centroids), (CELL_STARTS, file.starts), (CELL_ROWS, file.rows)):
        save_array(folder / name, array)
    save_array(folder / CELL_BITS, file.words)
    return file


def make_cells(
    vectors: NDArray[np.float32], quantised: QuantisedVectors, report: Callable[[float], object] = lambda _: None
) -> InvertedFile:
    """Put vectors, `[count, dimension]`, into cells; report the part that is done. Equal vectors make equal cells.

    It holds 80 bytes a row in memory, for codes of 256 bytes, and the sample twice.
    """
    codes, basis = quantised.codes, quantised.basis
    count, num_cells = len(vectors), min(MAX_CELLS, math.ceil(len(vectors) / ROWS_A_CELL))
    every = slice(None, None, max(1, count // (num_cells * SAMPLED_A_CELL)))
    sample = np.array(vectors[every])
    directions = _moved(sample, np.array(codes[every]), num_cells, basis, lambda: report(0))
    centroids = _Centroids(directions, basis)
    cells, bits = np.empty(count, np.uint16), np.empty((codes.shape[1] // WORD, count), np.uint64)
    for start in range(0, count, CHUNK):
        report(start / count)
        part = slice(start, start + CHUNK)
        cells[part] = centroids.nearest(codes[part])
        bits[:, part] = binary(codes[part])
    rows = np.argsort(cells, kind="stable").astype(np.int32)
    for word in bits:
        word[:] = word[rows]
    sizes = np.bincount(cells, minlength=num_cells)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[sizes > 0])])
    return InvertedFile(centroids.vectors[sizes > 0], starts, rows, bits)


class _Centroids:
    """The directions of cells, float32 `[cells, dimension]`, to find the nearest ones of rows by their codes."""

    def __init__(self, vectors: NDArray[np.float32], basis: QuantisationBasis):
        self.vectors = vectors
        quantised = basis.encode_queries(vectors)
        quantised.codes[:, basis.directions.shape[1] :] = 0  # tails are for upper bounds; scores are estimated here
        self._codes = numkong.dots_pack(quantised.codes, dtype="int8")
        self._units = quantised.units.astype(np.float32)
        self._products: Any = numkong.empty(CHUNK * len(vectors), dtype="int32").reshape(CHUNK, len(vectors))

    def nearest(self, codes: NDArray[np.int8]) -> NDArray[np.intp]:
        """Return the cell of each of some rows, at most `CHUNK`: that whose direction scores highest."""
        products = self._products[: len(codes), :]
        numkong.dots_packed(codes, self._codes, out=products)
        cells: NDArray[np.intp] = np.argmax(np.asarray(products) * self._units, axis=1)
        return cells


def _moved(
    sample: NDArray[np.float32],
    codes: NDArray[np.int8],
    num_cells: int,
    basis: QuantisationBasis,
    going_on: Callable[[], object],
) -> NDArray[np.float32]:
    """Return the directions of cells: those of the means of the sampled rows that are nearest to each.

    They begin as rows of the sample at equal distances and are moved as Dhillon and Modha, "Concept Decompositions for
    Large Sparse Text Data Using Clustering", Machine Learning 2001, do it. `going_on` is called for each round.
    """
    directions = sample[np.linspace(0, len(sample) - 1, num_cells).astype(np.int64)]
    for _ in range(NUM_ROUNDS):
        going_on()
        centroids = _Centroids(directions, basis)
        starts = range(0, len(sample), CHUNK)
        cells = np.concatenate([centroids.nearest(codes[start : start + CHUNK]) for start in starts])
        order, sizes = np.argsort(cells, kind="stable"), np.bincount(cells, minlength=num_cells)
        has_rows = sizes > 0
        sums = np.add.reduceat(sample[order], (np.cumsum(sizes) - sizes)[has_rows], axis=0)
        directions[has_rows] = sums / (np.linalg.norm(sums, axis=1, keepdims=True) + TINY)
    return directions


def find_margins(
    vectors: NDArray[np.float32], quantised: QuantisedVectors, file: InvertedFile, report: Callable[[float], object]
) -> tuple[float, float]:
    """Return the margins of cells and of bits within which the nearest neighbours of sampled queries are.

    Half of the queries are documents, and half are far from all documents. All are searched for exactly, in one pass.
    """
    queries, basis = sampled_queries(vectors), quantised.basis
    near = batch_top_k(vectors, quantised, queries, NUM_NEIGHBOURS, report)
    cell_of = np.empty(len(vectors), np.int32)
    cell_of[file.rows] = np.repeat(np.arange(len(file.sizes), dtype=np.int32), file.sizes)
    scores = queries @ file.centroids.T
    margins = scores.max(axis=1, keepdims=True) - np.take_along_axis(scores, cell_of[near.rows], axis=1)
    bits, of_queries = binary(quantised.codes[near.rows.ravel()]), binary(basis.encode_queries(queries).codes)
    differing = np.bitwise_count(bits.reshape(len(bits), *near.rows.shape) ^ of_queries[:, :, None]).sum(axis=0)
    expected = [expected_distance(score, basis) for score in near.scores[:, -1].tolist()]
    excess = differing - np.array(expected)[:, None]
    return max(LEAST_MARGIN, float(np.quantile(margins, MIN_IN_CELLS))), max(0.0, float(np.quantile(excess, MIN_NEAR)))


def sampled_queries(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return documents at equal distances, and each again plus the difference of two others: far from all documents."""
    documents = np.array(vectors[np.linspace(0, len(vectors) - 1, NUM_SAMPLED).astype(np.int64)])
    far = documents + np.roll(documents, 1, axis=0) - np.roll(documents, 2, axis=0)
    return np.concatenate([documents, far / (np.linalg.norm(far, axis=1, keepdims=True) + TINY)])
