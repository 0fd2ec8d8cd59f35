"""The fields of all documents in an index at one moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal_workers.index.files.columns import Columns
from shoal_workers.index.files.field_values import MAX_COLUMNS, DocumentFields
from shoal_workers.index.search.live_documents import LiveDocuments

#: Largest number of field names that a message lists.
MAX_LISTED = 10

#: Advice about the parts of a hit that are not fields, keyed by the part's name.
_NOT_FIELDS = {
    "score": "score is not a field of the documents: use min_score to leave out hits of a low score",
    "text": "text is not a field with values: search for its words",
    "id": "id is not a field with values: give the documents a field with the same value",
}


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The columns of the `count` rows of a version, and of the `num_added` documents that were added since.

    In an array with a number or a flag for each document, added documents follow the rows of the version. A field has
    the kind that it has in the version; an added document's value of another kind is ignored.
    """

    version: Columns
    added: Columns
    count: int
    num_added: int
    _spans: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, version: Columns, count: int, live: LiveDocuments) -> "Fields":
        """Return the fields of a version and of the documents that were added to it."""
        found = DocumentFields(version.kinds, is_lenient=True)
        for packed in live.packed:
            found.add(wire.unpack(packed))
        added = Columns({column.name: column for column in found.columns()})
        return cls(version, added, count, len(live.packed))

    @property
    def parts(self) -> Iterator[tuple[Columns, slice]]:
        """The columns of the version and of the added documents, each with the slice of their rows among all rows."""
        yield self.version, slice(self.count)
        yield self.added, slice(self.count, None)

    def spans(self, name: str) -> NDArray[np.int64]:
        """Return the spans of a field's added terms in the version, int64 `[2, terms]`; they are looked up once."""
        if (found := self._spans.get(name)) is None:  # two threads may do this at once, with equal results
            version, terms = self.version.get(name), self.added[name].terms
            found = np.zeros((2, len(terms)), np.int64) if version is None else version.spans(terms)
            self._spans[name] = found
        return found

    def kind(self, name: str, place: str) -> str:
        """Return the kind of a field. Raises InvalidRequest for an unknown field."""
        column = self.version.get(name) or self.added.get(name)
        if column is not None:
            return column.kind
        names = [*self.version, *(other for other in self.added if other not in self.version)]
        listed = ", ".join(excerpt(other) for other in names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
        reason = _NOT_FIELDS.get(name) or f"the index has {listed or 'no fields'}"
        if len(self.version) >= MAX_COLUMNS:
            reason += f"; further fields than the first {MAX_COLUMNS} have no column"
        raise InvalidRequest(f"{place}: there is no field {excerpt(name)}: {reason}")

    def check_hits(self, names: Sequence[str] | None) -> None:
        """Raise InvalidRequest for a field of hits that no document has, unless some fields may have no column."""
        if max(len(self.version), len(self.added)) < MAX_COLUMNS:
            for number, name in enumerate(names or ()):
                if name not in _NOT_FIELDS:
                    self.kind(name, f"fields[{number}]")

    def check_values(self, name: str, place: str) -> None:
        """Raise InvalidRequest for an unknown field, and for a field that is only `stored`."""
        if self.kind(name, place) == "stored":
            raise InvalidRequest(
                f"{place}: {excerpt(name)} holds long texts, maps or lists of lists, so only exists applies to it; "
                f"--field {name}=keyword at a build makes long texts keywords"
            )
