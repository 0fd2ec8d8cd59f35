"""Facets: the number of documents with each value of a field, among the documents that a search may find."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.columns import Column
from shoal_workers.index.files.field_kinds import shown
from shoal_workers.index.search.fields import Fields

#: Largest number of values that an answer lists for a field. It lists the most frequent ones.
MAX_FACET_VALUES = 100


def count_facet(name: str, fields: Fields, selected: NDArray[np.bool_]) -> dict[str, Any]:
    """Return, as plain values, how many selected documents have each value of a field, and how many have any value.

    `selected` is bool `[count + added]`. The most frequent values come first; values with equal counts are in ascending
    order. Raises InvalidRequest for an unknown field, and for a stored field, whose values are not known.
    """
    fields.check_values(name, "facets")
    counts: dict[Any, int] = {}
    num_documents = 0
    version, added = fields.version.get(name), fields.added.get(name)
    of_version, of_added = selected[: fields.count], selected[fields.count :]
    if added is not None:
        by_code = _counts(added, of_added)
        counts = {added.value(code): int(by_code[code]) for code in np.flatnonzero(by_code).tolist()}
        num_documents += int(np.count_nonzero(of_added & (added.lowest >= 0)))
    if version is not None:
        counts = _most(version, _counts(version, of_version), counts)
        num_documents += int(np.count_nonzero(of_version & (version.lowest >= 0)))
    kind = fields.kind(name, "facets")
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_FACET_VALUES]
    return {
        "num_documents": num_documents,
        "values": [{"value": shown(kind, term), "count": count} for term, count in best],
    }


def _counts(column: Column, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each term the number of documents in the mask that have it."""
    if not column.is_list:
        return np.bincount(column.lowest[mask] + 1, minlength=len(column.terms) + 1)[1:]
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask[column.rows])])
    return np.asarray(np.diff(sums[column.starts]))


def _most(column: Column, by_code: NDArray[np.int64], added: dict[Any, int]) -> dict[Any, int]:
    """Return the counts of all terms that may be among the most frequent ones, including the counts in `added`."""
    found = dict(added)
    for term, count in added.items():
        if (code := column.code(term)) is not None:
            found[term] = count + int(by_code[code])
            by_code[code] = 0
    num_terms = int(np.count_nonzero(by_code))
    if num_terms > MAX_FACET_VALUES:
        least = np.partition(by_code, len(by_code) - MAX_FACET_VALUES)[len(by_code) - MAX_FACET_VALUES]
        more = np.flatnonzero(by_code > least)
        codes = np.concatenate([more, np.flatnonzero(by_code == least)[: MAX_FACET_VALUES - len(more)]])
    else:
        codes = np.flatnonzero(by_code)
    return found | {column.value(code): int(by_code[code]) for code in codes.tolist()}
