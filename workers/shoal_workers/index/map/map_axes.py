"""The two axes of a map: the directions in which the vectors of an index differ most (principal component analysis).

Documents that are alike lie near each other on the map, as far as two directions out of hundreds can show that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array, save_array, write_header
from shoal_workers.index.files.manifest import MAP_AXES, MAP_PLACES

#: The places of a map are whole numbers of this many to a unit: no vector of length 1 is over 2 from the centre.
PLACES_PER_UNIT = 2**14 - 1

#: Most vectors from which the axes are found, and vectors that are read at a time.
SAMPLE, CHUNK = 2**15, 2**13

#: Share of the largest variance up to which two variances are taken for equal, and of a length for two lengths.
NEAR = 1e-6


@dataclass(frozen=True, slots=True)
class MapAxes:
    """The `directions` of the two axes, float32 `[2, dimension]`, orthonormal, and the `mean` of all vectors."""

    directions: NDArray[np.float32]
    mean: NDArray[np.float32]

    @classmethod
    def fit(cls, vectors: NDArray[np.float32]) -> Self:
        """Find the axes of vectors `[count, dimension]` from a sample of at most `SAMPLE`, which is always the same."""
        sample = vectors[:: math.ceil(len(vectors) / SAMPLE)]
        chunks = [sample[start : start + CHUNK] for start in range(0, len(sample), CHUNK)]
        mean = np.sum([chunk.sum(axis=0, dtype=np.float64) for chunk in chunks], axis=0) / len(sample)
        covariance = np.zeros((len(mean), len(mean)))
        for chunk in chunks:
            covariance += (chunk - mean).T @ (chunk - mean)
        return cls(main_directions(covariance).astype(np.float32), mean.astype(np.float32))

    @classmethod
    def open(cls, folder: Path, dimension: int) -> Self:
        """Read the file that `save` wrote. Raises IndexCorrupt."""
        rows = np.array(open_array(folder / MAP_AXES, np.float32, (3, dimension)))
        if not (np.abs(rows) <= 1 + NEAR).all():  # which NaN is not either
            raise IndexCorrupt(f"{folder / MAP_AXES} holds no directions of length 1: build the index again")
        return cls(rows[:2], rows[2])

    def save(self, folder: Path) -> None:
        """Write the directions and the mean into the folder of a version."""
        save_array(folder / MAP_AXES, np.concatenate([self.directions, self.mean[None]]))

    def places(self, vectors: NDArray[np.float32]) -> NDArray[np.int16]:
        """Return the places of vectors `[count, dimension]` on the map, int16 `[count, 2]`.

        A vector has the same place with any others.
        """
        centred = np.vecdot(vectors[:, None], self.directions) - np.vecdot(self.directions, self.mean)
        limit = np.iinfo(np.int16).max
        places: NDArray[np.int16] = np.clip(np.rint(centred * PLACES_PER_UNIT), -limit, limit).astype(np.int16)
        return places


def main_directions(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two directions of largest variance as rows `[2, dimension]`, the first one first.

    With one dimension, the second row is zeros. A direction may as well point the other way, and where variances are
    equal, any directions that span the same space would do. So that the same vectors always have the same map, each is
    the one nearest to that of a single number of the vectors: the number to which one is nearest, and of several the
    first.
    """
    dimension = len(covariance)
    variances, vectors = np.linalg.eigh(covariance)
    directions = np.zeros((2, dimension))
    for n in range(min(2, dimension)):
        is_equal = np.abs(variances - variances[-1 - n]) <= NEAR * max(float(variances[-1]), 0.0)
        space = vectors[:, is_equal] @ vectors[:, is_equal].T
        if n and is_equal[-1]:
            space -= np.outer(directions[0], directions[0])
        shares = np.diagonal(space)
        nearest = int(np.argmax(shares >= shares.max() - NEAR))
        directions[n] = space[nearest] / math.sqrt(shares[nearest])
    return directions


def write_map(folder: Path, vectors: NDArray[np.float32], report: Callable[[float], object]) -> None:
    """Write the axes of the map and the places of `vectors`, `[count, dimension]`, into the folder of a build.

    The vectors are read once. `report` is called with the part that is done.
    """
    axes = MapAxes.fit(vectors)
    axes.save(folder)
    with (folder / MAP_PLACES).open("wb") as file:
        write_header(file, np.int16, (len(vectors), 2))
        for start in range(0, len(vectors), CHUNK):
            report(start / len(vectors))
            file.write(axes.places(vectors[start : start + CHUNK]).tobytes())
