"""Groups of hits: documents that have the same value in a field. A group stands where its best document does."""

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from shoal_workers.index.files.columns import Column
from shoal_workers.index.search.fields import Fields, Selection
from shoal_workers.index.vectors.ranking import Place


class TermKey(NamedTuple):
    """The key of the documents with one value: its code in the version, or in the documents that were added since."""

    is_added: bool
    code: int


class GroupKeys:
    """The keys of documents by the field that groups them, which is the same for equal values.

    Values are equal as filters compare them. A document without one is a group by itself, whose key is its row. `read`
    returns the document of a row: values that no column has, such as several at a time, are compared as JSON.
    """

    def __init__(self, name: str, fields: Fields, read: Callable[[int], Mapping[str, Any]]):
        self._name = name
        self._fields = fields
        self._version, self._added = fields.version.get(name), fields.added.get(name)
        self._read = read
        self._of_added: dict[int, TermKey] = {}

    def key(self, row: int) -> Hashable:
        """Return the key of a document; the rows of those that were added follow those of the version."""
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
        return self._key_of_added(column, code) if is_added else TermKey(False, code)

    def members(self, keys: Iterable[Hashable]) -> Selection | None:
        """Return the documents that have one of the keys, and perhaps others; None if columns cannot tell them."""
        found = Selection(np.zeros(self._fields.count, bool), np.zeros(self._fields.num_added, bool))
        for key in keys:
            match key:
                case TermKey():
                    self._mark(key, found)
                case int():
                    is_added = key >= len(found.rows)
                    found[is_added][key - len(found.rows) * is_added] = True
                case _:
                    return None
        return found

    def _mark(self, key: TermKey, found: Selection) -> None:
        of_added: int | None = key.code
        if not key.is_added and self._version is not None:
            found.rows[self._version.rows_between(key.code, key.code + 1)] = True
            of_added = self._added.code(self._version.value(key.code)) if self._added is not None else None
        if self._added is not None and of_added is not None:
            found.added[self._added.rows_between(of_added, of_added + 1)] = True

    def _key_of_added(self, column: Column, code: int) -> TermKey:
        """Return the key of a value of an added document: that of the version, if this has the value."""
        if code not in self._of_added:
            of_version = self._version.code(column.value(code)) if self._version is not None else None
            self._of_added[code] = TermKey(of_version is None, code if of_version is None else of_version)
        return self._of_added[code]

    def _key_of_document(self, row: int) -> Hashable:
        value = self._read(row).get(self._name)
        return row if value is None else json.dumps(value, sort_keys=True)


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
    """Return the best documents of the groups with these keys, at most `size` of each, best first."""
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
