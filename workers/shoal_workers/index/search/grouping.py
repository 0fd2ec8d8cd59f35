"""Groups of hits: documents that have the same value in a field. A group stands where its best document does."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import NamedTuple

from shoal_workers.index.search.ranking import Place


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
