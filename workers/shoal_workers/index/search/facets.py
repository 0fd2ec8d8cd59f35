"""Facets: the number of documents with each value of a field, among the documents that a search may find."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.columns import Column
from shoal_workers.index.files.field_kinds import shown
from shoal_workers.index.search.fields import Fields

#: Largest number of values that an answer lists for a field. It lists the most frequent values.
MAX_FACET_VALUES = 100


def count_facet(name: str, fields: Fields, selected: NDArray[np.bool_]) -> dict[str, Any]:
    """Return, as plain values, how many selected documents have each value of a field, and how many have any value.

    `selected` is bool `[count + added]`. The most frequent values come first; values with equal counts are in ascending
    order. Raises InvalidRequest for an unknown field, and for a field that is only `stored`.
    """
    fields.check_values(name, "facets")
    parts = [(column, selected[part]) for columns, part in fields.parts if (column := columns.get(name)) is not None]
    num_documents = sum(int(np.count_nonzero(mask & (column.lowest >= 0))) for column, mask in parts)
    counts = [_counts(column, mask) for column, mask in parts]
    if len(parts) == 2:  # add up the counts of terms that both parts have
        places, ends = fields.spans(name)
        is_known = ends > places
        counts[0][places[is_known]] += counts[1][is_known]
        counts[1][is_known] = 0
    found = [pair for (column, _), numbers in zip(parts, counts, strict=True) for pair in _most(column, numbers)]
    best = sorted(found, key=lambda pair: (-pair[1], pair[0]))[:MAX_FACET_VALUES]
    return {
        "num_documents": num_documents,
        "values": [{"value": shown(parts[0][0].kind, term), "count": count} for term, count in best],
    }


def _counts(column: Column, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for each term, the number of documents in the mask that have it."""
    if not column.is_list:
        return np.bincount(column.lowest[mask] + 1, minlength=len(column.terms) + 1)[1:]
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask[column.rows])])
    return np.asarray(np.diff(sums[column.starts]))


def _most(column: Column, counts: NDArray[np.int64]) -> list[tuple[Any, int]]:
    """Return the most frequent terms of a column, and the count of each; if counts are equal, the first terms."""
    codes = np.flatnonzero(counts)
    if len(codes) > MAX_FACET_VALUES:
        counted = counts[codes]
        least = np.partition(counted, -MAX_FACET_VALUES)[-MAX_FACET_VALUES]
        more = codes[counted > least]
        codes = np.concatenate([more, codes[counted == least][: MAX_FACET_VALUES - len(more)]])
    return [(column.value(code), int(counts[code])) for code in codes.tolist()]
