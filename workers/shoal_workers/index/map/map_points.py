"""The points of a map as a worker answers them: places, rows and the codes of a field, in plain values."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.operations.map_options import MapOptions
from shoal_workers.index.map.document_map import DocumentMap
from shoal_workers.index.map.field_codes import field_codes
from shoal_workers.index.map.map_axes import PLACES_PER_UNIT
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.live_documents import LiveDocuments


def points_of(
    document_map: DocumentMap, options: MapOptions, live: LiveDocuments, read_fields: Callable[[], Fields]
) -> dict[str, Any]:
    """Return the points of a map. Raises InvalidRequest for a field that the index has not."""
    rows = document_map.sample(options.max_points, live)
    field = None
    if options.field is not None:
        codes, legend = field_codes(options.field, read_fields(), rows)
        field = {**legend, "codes": _packed(codes, "uint8")}
    return {
        "places_per_unit": PLACES_PER_UNIT,
        "rows": _packed(document_map.numbers_of(rows, live), "uint32"),
        "places": _packed(document_map.places_at(rows, live), "int16"),
        "field": field,
    }


def _packed(array: NDArray[Any], dtype: str) -> dict[str, Any]:
    """Return a map of the raw little-endian bytes with their dtype and shape."""
    numbers = array.astype(np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "shape": list(numbers.shape), "data": numbers.tobytes()}
