"""The order of documents by their fields, instead of by their scores."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.operations.search_fields import Sort
from shoal_workers.index.files.columns import Column
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.vectors.exact_search import TopK

#: Limit of sort keys. If the next field could make keys exceed it, the keys are first replaced by their ranks.
_MAX_KEY = 2**62

#: Factor by which the number of examined documents grows from step to step while too few are found.
_GROWTH = 4

#: A function that returns the given number of best documents among the selected ones, bool `[count + added]`. It may
#: leave out documents of a low score.
Rank = Callable[[NDArray[np.bool_], int], TopK]


class FieldOrder:
    """The documents of an index in the order of some fields. Documents with equal values are ordered by score.

    If a document has several values, its lowest value counts in an ascending order, and its highest value in a
    descending order. Documents without a value come last. Raises InvalidRequest for an unknown field, and for a stored
    field, whose values no column has.
    """

    def __init__(self, sorts: Sequence[Sort], fields: Fields):
        for sort in sorts:
            fields.check_values(sort.field, f"{sort.place}.field")
        keys = np.zeros(fields.count + fields.num_added, np.int64)
        for sort in sorts:
            ranks = _ranks(sort, fields)
            num_ranks = int(ranks.max(initial=0)) + 1
            if int(keys.max(initial=0)) >= _MAX_KEY // num_ranks:
                keys, ranks = (np.unique(values, return_inverse=True)[1] for values in (keys, ranks))
                num_ranks = int(ranks.max(initial=0)) + 1
            keys = keys * num_ranks + ranks
        self._keys = keys

    def top(self, selected: NDArray[np.bool_], num: int, rank: Rank) -> TopK:
        """Return the first `num` selected documents that `rank` does not leave out.

        Few other documents are scored: documents with equal values, and replacements for documents that `rank` leaves
        out.
        """
        rows = np.flatnonzero(selected)
        found = [rank(self._only(rows[:0]), 0)]
        num_left, num_looked_at = num, num
        while num_left > 0 and len(rows):
            keys, place = self._keys[rows], min(num_looked_at, len(rows)) - 1
            last = np.partition(keys, place)[place]
            first, ties = rows[keys < last], rows[keys == last]
            found.append(rank(self._only(first), len(first)))
            if (num_left := num_left - len(found[-1][0])) > 0:
                found.append(rank(self._only(ties), num_left))
                num_left -= len(found[-1][0])
            rows, num_looked_at = rows[keys > last], _GROWTH * num_looked_at
        ranked, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((ranked, -scores, self._keys[ranked]))[:num]
        return TopK(ranked[order], scores[order])

    def _only(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        mask = np.zeros(len(self._keys), bool)
        mask[rows] = True
        return mask


def _ranks(sort: Sort, fields: Fields) -> NDArray[np.int64]:
    """Return each document's rank in the order of one field, int64 `[count + added]`; equal values have equal ranks."""
    version, added = fields.version.get(sort.field), fields.added[sort.field]
    # An added term that the version has too gets the version's rank. Any other added term gets a rank between two terms
    # of the version.
    step = 1 + len(added.terms)
    parts = [_codes(version, sort, fields.count), _codes(added, sort, fields.num_added)]
    places, ends = fields.spans(sort.field)
    of_terms = 2 * places * step + np.where(ends > places, step, np.arange(1, step))
    ranks = [(2 * parts[0] + 1) * step, np.append(of_terms, 0)[parts[1]]]
    found, has_value = np.concatenate(ranks), np.concatenate(parts) >= 0
    most = int(found.max(initial=0))
    return np.where(has_value, most - found if sort.is_descending else found, most + 1)


def _codes(column: Column | None, sort: Sort, count: int) -> NDArray[np.int64]:
    if column is None:
        return np.full(count, -1, np.int64)
    return (column.highest if sort.is_descending else column.lowest).astype(np.int64)
