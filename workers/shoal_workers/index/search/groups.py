"""Groups of documents in a list of hits.

A group consists of all documents with the same lowest value in a field. It has the rank of its best document.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.paging import Place


class TermKey(NamedTuple):
    """The key of a group of documents with the same lowest value in a field."""

    value: Any


#: The key of a group; a document without a value is a group by itself, and its key is its row.
Key = TermKey | int


class GroupKeys:
    """Finds the group keys of documents in the field `name`. Documents with equal lowest values have equal keys.

    Values are equal if filters treat them as equal.
    """

    def __init__(self, name: str, fields: Fields):
        self._name, self._fields = name, fields

    def key(self, row: int) -> Key:
        """Return the key of a document; rows of added documents follow the rows of the version."""
        is_added = row >= self._fields.count
        column = (self._fields.added if is_added else self._fields.version).get(self._name)
        code = -1 if column is None else int(column.lowest[row - self._fields.count * is_added])
        return row if column is None or code < 0 else TermKey(column.value(code))

    def members(self, keys: Iterable[Key]) -> NDArray[np.bool_]:
        """Return a mask of the documents with one of the keys, and possibly others."""
        found = np.zeros(self._fields.count + self._fields.num_added, bool)
        for key in keys:
            if not isinstance(key, TermKey):
                found[key] = True
                continue
            for columns, part in self._fields.parts:
                if (column := columns.get(self._name)) is not None:
                    found[part][column.rows_between(*column.span(key.value))] = True
        return found


class Lead(NamedTuple):
    """The best document of a group, and the key that the documents of the group share."""

    key: Key
    place: Place


def leads_of(places: Iterable[Place], key_of: Callable[[int], Key]) -> Iterator[Lead]:
    """Yield the best document of each group of ranked documents; `key_of` returns the key of a row."""
    seen = set()
    for place in places:
        if (key := key_of(place.row)) not in seen:
            seen.add(key)
            yield Lead(key, place)


def members_of(
    places: Iterable[Place], key_of: Callable[[int], Key], keys: Collection[Key], size: int
) -> list[list[Place]]:
    """Return the best documents of the groups with these keys, at most `size` for each group, best first."""
    groups: dict[Key, list[Place]] = {key: [] for key in keys}
    num_open = len(groups)
    for place in places if num_open else ():
        group = groups.get(key_of(place.row))
        if group is None or len(group) == size:
            continue
        group.append(place)
        num_open -= len(group) == size
        if not num_open:
            break
    return list(groups.values())
