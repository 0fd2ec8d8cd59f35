"""The answer to a job for the map of an index: its points, or the documents at some of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.operations import Map
from shoal_workers.index.map.document_map import points_of
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.search.live_documents import LiveDocuments

if TYPE_CHECKING:
    from shoal_workers.index.index import Index


def answer_map(index: "Index", job: Map) -> SearchAnswer:
    """Return the answer to a job for the map. Raises InvalidRequest for a field or a row that the index has not."""
    live = index.live
    rows = job.map.map_rows
    if rows is None:
        return SearchAnswer([], map=points_of(index.map, job.map, live, lambda: index.fields_at(live)))
    if job.map.index_version != index.manifest.version:
        raise InvalidRequest(
            f"map_rows are of version {excerpt(job.map.index_version)}, and {index.manifest.version} is served: "
            "ask for the map again"
        )
    return SearchAnswer([_documents_at(index, rows, live)])


def _documents_at(index: "Index", map_rows: Sequence[int], live: LiveDocuments) -> list[dict[str, Any]]:
    """Return the documents at rows of the map, without those that were replaced or deleted since."""
    num_rows = index.manifest.count + live.num_ever_added
    for number, map_row in enumerate(map_rows):
        if map_row >= num_rows:
            raise InvalidRequest(f"map_rows[{number}] is {map_row:,}: the map has rows from 0 to {num_rows - 1:,}")
    found = zip(map_rows, index.map.rows_of(np.array(map_rows), live).tolist(), strict=True)
    return [index.document_of(row, live) | {"map_row": map_row} for map_row, row in found if row >= 0]
