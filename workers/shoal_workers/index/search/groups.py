"""Groups of documents in a list of hits.

A group consists of all documents with the same value in a field. It has the rank of its best document.
"""

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.places import Place


class TermKey(NamedTuple):
    """The key of a group of documents with one value in a column."""

    value: Any


class GroupKeys:
    """Finds the group keys of documents in the field `name`. Documents with equal values have equal keys.

    Values are equal if filters treat them as equal. A document without a value is a group by itself, and its key is its
    row. Values that no column has, such as several in one document, are compared as JSON; `read` returns the document
    of a row.
    """

    def __init__(self, name: str, fields: Fields, read: Callable[[int], Mapping[str, Any]]):
        self._name = name
        self._fields = fields
        self._version, self._added = fields.version.get(name), fields.added.get(name)
        self._read = read

    def key(self, row: int) -> Hashable:
        """Return the key of a document; rows of added documents follow the rows of the version."""
        is_added = row >= self._fields.count
        column = self._added if is_added else self._version
        if column is None:
            num_left_out = (self._fields.added if is_added else self._fields.version).num_left_out
            return self._key_of_document(row) if num_left_out else row
        place = row - self._fields.count * is_added
        code = int(column.lowest[place])
        if code < 0:
            return row
        if column.kind == "stored" or code != column.highest[place]:
            return self._key_of_document(row)
        return TermKey(column.value(code))

    def _key_of_document(self, row: int) -> Hashable:
        value = self._read(row).get(self._name)
        return row if value in (None, "", []) else json.dumps(value, sort_keys=True)

    def members(self, keys: Iterable[Hashable]) -> NDArray[np.bool_] | None:
        """Return a mask of the documents with one of the keys, and possibly others; None if a key is in no column."""
        found = np.zeros(self._fields.count + self._fields.num_added, bool)
        parts = (self._version, found[: self._fields.count]), (self._added, found[self._fields.count :])
        for key in keys:
            match key:
                case TermKey(value):
                    for column, part in parts:
                        if column is not None:
                            part[column.rows_between(*column.span(value))] = True
                case int():
                    found[key] = True
                case _:
                    return None
        return found


class Lead(NamedTuple):
    """The best document of a group, and the key that the documents of the group share."""

    key: Hashable
    place: Place


def leads_of(places: Iterable[Place], key_of: Callable[[int], Hashable]) -> Iterator[Lead]:
    """Yield the best document of each group of ranked documents; `key_of` returns the key of a row."""
    seen = set()
    for place in places:
        if (key := key_of(place.row)) not in seen:
            seen.add(key)
            yield Lead(key, place)


def members_of(
    places: Iterable[Place], key_of: Callable[[int], Hashable], keys: Collection[Hashable], size: int
) -> list[list[Place]]:
    """Return the best documents of the groups with these keys, at most `size` for each group, best first."""
    groups: dict[Hashable, list[Place]] = {key: [] for key in keys}
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
