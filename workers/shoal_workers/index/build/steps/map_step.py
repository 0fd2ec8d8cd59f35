"""The step of a build that gives each document its place on the map."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.array_file import write_header
from shoal_workers.index.files.manifest import MAP_PLACES
from shoal_workers.index.map.map_axes import CHUNK, MapAxes


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
