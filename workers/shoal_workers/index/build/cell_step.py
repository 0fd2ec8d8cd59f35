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
from shoal_workers.index.search.binary_codes import WORD, binary
from shoal_workers.index.search.inverted_file import InvertedFile
from shoal_workers.index.search.quantisation import TINY, QuantisationBasis, QuantisedVectors
from shoal_workers.index.search.search import ExactSearch
from shoal_workers.index.search.search_threads import ONE_THREAD

#: Most cells, and rows of each where there are fewer cells.
MAX_CELLS, ROWS_A_CELL = 4_096, 250

#: Rows for each cell from which the centroids are found, and times that they are moved.
SAMPLED_A_CELL, NUM_ROUNDS = 30, 6

#: Rows that are looked at at a time.
CHUNK = 2**12

#: Documents whose nearest neighbours are looked for, and the neighbours of each.
NUM_SAMPLED, NUM_NEIGHBOURS = 200, 10

#: Part of these neighbours that is to be in the cells that are read, and part that is to be among the candidates.
MIN_IN_CELLS, MIN_AMONG_CANDIDATES = 0.98, 0.998

#: Least margin, and part of the rows that are read which are candidates. Queries of another kind than the documents
#: need as much (docs/large-indexes.md).
LEAST_MARGIN, LEAST_SHARE = 0.3, 1 / 50


def write_cells(
    folder: Path, vectors: NDArray[np.float32], quantised: QuantisedVectors, report: Callable[[float], object]
) -> dict[str, Any]:
    """Write the cells of `vectors`, `[count, dimension]`, into the folder of a build.

    Returns what the manifest says of them. `report` is called with the part that is done.
    """
    file = make_cells(vectors, quantised, lambda part: report(part / 2))
    for name, array in ((CENTROIDS, file.centroids), (CELL_STARTS, file.starts), (CELL_ROWS, file.rows)):
        save_array(folder / name, array)
    save_array(folder / CELL_BITS, file.words)
    margin, share = find_margin_and_share(vectors, quantised, file, lambda part: report((1 + part) / 2))
    return {"num_cells": len(file.centroids), "cell_margin": margin, "candidate_share": share}


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


def find_margin_and_share(
    vectors: NDArray[np.float32], quantised: QuantisedVectors, file: InvertedFile, report: Callable[[float], object]
) -> tuple[float, float]:
    """Return the margin of the cells and the share of their rows that have the nearest neighbours of some documents."""
    if len(vectors) == 1:  # it has no neighbour
        return LEAST_MARGIN, LEAST_SHARE
    search, cell_of = ExactSearch(vectors, quantised), np.empty(len(vectors), np.int32)
    cell_of[file.rows] = np.repeat(np.arange(len(file.sizes), dtype=np.int32), file.sizes)
    margins, shares, num_steps = list[float](), list[float](), 2 * NUM_SAMPLED
    sample, neighbours = np.linspace(0, len(vectors) - 1, NUM_SAMPLED).astype(np.int64), list[NDArray[np.intp]]()
    for row in sample.tolist():
        report(len(neighbours) / num_steps)
        found = search.top_k(vectors[row : row + 1], NUM_NEIGHBOURS + 1).rows[0]
        neighbours.append(found[found != row][:NUM_NEIGHBOURS])
        scores = file.centroids @ vectors[row]
        margins += (scores.max() - scores[cell_of[neighbours[-1]]]).tolist()
    margin = max(LEAST_MARGIN, float(np.quantile(margins, MIN_IN_CELLS)))
    bits = binary(quantised.basis.encode_queries(vectors[sample]).codes).T
    for done, (row, query, near) in enumerate(zip(sample.tolist(), bits, neighbours, strict=True), NUM_SAMPLED):
        report(done / num_steps)
        rows, distances = file.read(file.near(vectors[row], margin, 1, None), query, None, ONE_THREAD)
        farther = np.searchsorted(np.sort(distances), distances[np.isin(rows, near)], side="right")
        shares += (farther / len(rows)).tolist()
    return margin, max(LEAST_SHARE, float(np.quantile(shares, MIN_AMONG_CANDIDATES)))
