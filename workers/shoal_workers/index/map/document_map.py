"""The map of a version: the place of each document, and of those that were added since it was built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.operations.map_options import MapOptions
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.manifest import MAP_PLACES
from shoal_workers.index.map.field_codes import field_codes
from shoal_workers.index.map.map_axes import PLACES_PER_UNIT, MapAxes
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.live_documents import LiveDocuments


class DocumentMap:
    """The places of the documents of a version, int16 `[count, 2]`, and the axes by which others have theirs."""

    def __init__(self, places: NDArray[np.int16], axes: MapAxes):
        self._places = places
        self._axes = axes

    @classmethod
    def open(cls, folder: Path, count: int, dimension: int) -> Self:
        """Map the files of a version with `count` documents into memory. Raises IndexCorrupt."""
        return cls(open_array(folder / MAP_PLACES, np.int16, (count, 2)), MapAxes.open(folder, dimension))

    def points(self, options: MapOptions, live: LiveDocuments, read_fields: Callable[[], Fields]) -> dict[str, Any]:
        """Return the points of the map, as a worker answers them: places, rows and the codes of a field.

        They are of at most `max_points` documents, evenly spread and always the same; those that were deleted are left
        out. The `rows` are numbers by which documents are asked for, and which stay those of the same documents also
        if some are changed: the rows of the version, and after those the numbers of added documents. Raises
        InvalidRequest for a field that the index has not.
        """
        num_rows = len(self._places) + len(live.ids)
        num_points = min(options.max_points, num_rows)
        rows = np.setdiff1d(np.arange(num_points) * num_rows // num_points, live.hidden_rows, assume_unique=True)
        field = None
        if options.field is not None:
            codes, legend = field_codes(options.field, read_fields(), rows)
            field = {**legend, "codes": _packed(codes, "uint8")}
        numbers, is_added = rows.copy(), rows >= len(self._places)
        numbers[is_added] = len(self._places) + live.numbers[rows[is_added] - len(self._places)]
        return {
            "places_per_unit": PLACES_PER_UNIT,
            "rows": _packed(numbers, "uint32"),
            "places": _packed(self.places_at(rows, live), "int16"),
            "field": field,
        }

    def rows_of(self, numbers: NDArray[np.int64], live: LiveDocuments) -> NDArray[np.int64]:
        """Return the rows of documents by these numbers; -1 for those that are gone."""
        rows, is_added = numbers.copy(), numbers >= len(self._places)
        known = live.numbers + len(self._places)
        rows[is_added] = len(self._places) + np.searchsorted(known, numbers[is_added])
        is_gone = np.isin(numbers, live.hidden_rows) | (is_added & ~np.isin(numbers, known))
        rows[is_gone] = -1
        return rows

    def places_at(self, rows: NDArray[np.int64], live: LiveDocuments) -> NDArray[np.int16]:
        """Return the places of documents by their rows, int16 `[rows, 2]`; added ones follow those of the version."""
        is_added = rows >= len(self._places)
        places = np.empty((len(rows), 2), np.int16)
        places[~is_added] = self._places[rows[~is_added]]
        places[is_added] = self._axes.places(live.vectors[rows[is_added] - len(self._places)])
        return places

    def place(self, row: int, live: LiveDocuments) -> list[float]:
        """Return the place of one document, in units."""
        return in_units(self.places_at(np.array([row]), live))[0]

    def places_of(self, vectors: NDArray[np.float32]) -> list[list[float]]:
        """Return the places of other vectors, `[vectors, dimension]`, in units."""
        return in_units(self._axes.places(vectors))


def in_units(places: NDArray[np.int16]) -> list[list[float]]:
    """Return places in units, as plain numbers: vectors of length 1 are at most 2 of them from the centre."""
    numbers: list[list[float]] = (places / np.float64(PLACES_PER_UNIT)).round(5).tolist()
    return numbers


def _packed(array: NDArray[Any], dtype: str) -> dict[str, Any]:
    """Return a map of the raw little-endian bytes with their dtype and shape."""
    numbers = array.astype(np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "shape": list(numbers.shape), "data": numbers.tobytes()}
