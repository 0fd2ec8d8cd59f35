"""The values of documents' fields, in columns, for filtering, sorting, boosting and counting.

A column has the distinct values of a field, called terms, in ascending order; a code is the position of a term.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array, write_header
from shoal_workers.index.files.field_kinds import KINDS
from shoal_workers.index.files.manifest import COLUMNS, FIELDS

#: Each array begins at a multiple of this many bytes.
ALIGNMENT = 64

#: The type in which the terms of each kind are stored. Keywords are stored as bytes.
TERM_TYPES: Mapping[str, DTypeLike] = {
    "number": np.dtype("<f8"),
    "date": np.dtype("<i8"),
    "boolean": np.dtype("u1"),
    "stored": np.dtype("u1"),
}

#: The entries of a column in the file of fields, and their types.
_ENTRIES = {"name": str, "kind": str, "is_list": bool, "num_terms": int, "num_postings": int, "num_bytes": int}


class Keywords:
    """Distinct strings, stored one after the other in the order of their bytes, and the offset of each.

    `bytes_` is uint8 `[size]` and `starts` int64 `[count + 1]`.
    """

    def __init__(self, bytes_: NDArray[np.uint8], starts: NDArray[np.int64]):
        self.bytes_ = bytes_
        self.starts = starts

    @classmethod
    def of(cls, terms: Sequence[bytes]) -> Self:
        """Return the terms as keywords. The terms must be in order already."""
        return cls(np.frombuffer(b"".join(terms), np.uint8), np.cumsum([0, *map(len, terms)], dtype=np.int64))

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self.starts) - 1

    def __getitem__(self, code: int) -> bytes:
        """Return the bytes of a term."""
        return self.bytes_[self.starts[code] : self.starts[code + 1]].tobytes()

    def find(self, term: bytes) -> tuple[int, int]:
        """Return the code of a term and the code after it. For a missing term, both are the code of the next term."""
        code = bisect_left(range(len(self)), term, key=self.__getitem__)
        return code, code + (code < len(self) and self[code] == term)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of one field, in the documents of `count` rows.

    `terms` have the type of their `kind` in `TERM_TYPES`, in ascending order. The rows with term n are
    `rows[starts[n]:starts[n + 1]]`, int32 in ascending order. `codes`, int32 `[1 or 2, count]`, has the lowest code of
    each row, and the highest too if some row has several. The code -1 means no value.
    """

    name: str
    kind: str
    terms: Any
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    codes: NDArray[np.int32]

    @property
    def is_list(self) -> bool:
        """True if some document has several values."""
        return len(self.codes) == 2

    @property
    def lowest(self) -> NDArray[np.int32]:
        """The lowest code of each row; -1 for a row without a value."""
        return np.asarray(self.codes[0])

    @property
    def highest(self) -> NDArray[np.int32]:
        """The highest code of each row; -1 for a row without a value."""
        return np.asarray(self.codes[-1])

    def value(self, code: int) -> Any:
        """Return the term that has a code, as a value that can be compared with terms of other columns."""
        return self.terms[code] if isinstance(self.terms, Keywords) else self.terms[code].item()

    def span(self, value: Any) -> tuple[int, int]:
        """Return the code of a value and the code after it. For a missing value, both are the next value's code."""
        if isinstance(self.terms, Keywords):
            return self.terms.find(value)
        return int(self.terms.searchsorted(value)), int(self.terms.searchsorted(value, "right"))

    def spans(self, terms: Any) -> NDArray[np.int64]:
        """Return the `span` of each term of another column of the same kind, int64 `[2, terms]`."""
        if isinstance(self.terms, Keywords):
            found = [self.terms.find(terms[code]) for code in range(len(terms))]
            return np.array(found, np.int64).reshape(-1, 2).T
        return np.stack([self.terms.searchsorted(terms, side) for side in ("left", "right")])

    def rows_between(self, first: int, last: int) -> NDArray[np.int32]:
        """Return the rows that have a term from code `first` up to, but not including, code `last`, term by term."""
        return self.rows[self.starts[first] : self.starts[last]]

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays of the column in the order that they have in the file."""
        others: list[NDArray[Any]] = [self.starts, self.rows, self.codes]
        if isinstance(self.terms, Keywords):
            return [self.terms.starts, self.terms.bytes_, *others]
        return [self.terms, *others]


class Columns(dict[str, Column]):
    """The columns of an index, keyed by field name."""

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each field."""
        return {name: column.kind for name, column in self.items()}

    @classmethod
    def open(cls, folder: Path, count: int) -> Self:
        """Memory-map the files that `save_columns` wrote for `count` rows. Raises IndexCorrupt."""
        fields = _read_fields(folder)
        shapes = [_shapes(about, count) for about in fields]
        size = ALIGNMENT + sum(_aligned(dtype, shape) for column in shapes for dtype, shape in column)
        memory, place, columns = open_array(folder / COLUMNS, np.uint8, (size,)), ALIGNMENT, {}
        for about, column_shapes in zip(fields, shapes, strict=True):
            arrays: list[Any] = []
            for dtype, shape in column_shapes:
                end = place + dtype.itemsize * math.prod(shape)
                arrays.append(memory[place:end].view(dtype).reshape(shape))
                place += _aligned(dtype, shape)
            terms, (starts, rows, codes) = arrays[0], arrays[-3:]
            ends = [(starts, len(rows))]
            if about["kind"] == "keyword":
                ends.append((terms, len(arrays[1])))
                terms = Keywords(arrays[1], terms)
            if any(found[0] != 0 or found[-1] != end for found, end in ends):
                raise IndexCorrupt(f"{folder / COLUMNS} does not fit {FIELDS}: build the index again")
            columns[about["name"]] = Column(about["name"], about["kind"], terms, starts, rows, codes)
        return cls(columns)

    @classmethod
    def without_rows(cls, folder: Path) -> Self:
        """Return the names and kinds of the columns in a folder, with no values. Raises IndexCorrupt."""
        columns = {}
        for one in _read_fields(folder):
            codes = np.empty((1 + one["is_list"], 0), np.int32)  # of a list, one row for each value
            terms, starts = Keywords.of([]), np.zeros(1, np.int64)
            columns[one["name"]] = Column(one["name"], one["kind"], terms, starts, codes[0], codes)
        return cls(columns)


def save_columns(folder: Path, columns: Iterable[Column]) -> None:
    """Write columns, with only one at a time in memory, and the file of fields that describes them."""
    fields = []
    with (folder / COLUMNS).open("wb") as file:
        write_header(file, np.uint8, (0,))
        start = file.tell()
        file.write(bytes(ALIGNMENT))
        for column in columns:
            num_bytes = len(column.terms.bytes_) if isinstance(column.terms, Keywords) else 0
            numbers = {"num_terms": len(column.terms), "num_postings": len(column.rows), "num_bytes": num_bytes}
            fields.append({"name": column.name, "kind": column.kind, "is_list": column.is_list, **numbers})
            for array in column.arrays():
                file.write(array.tobytes())
                file.write(bytes(_aligned(array.dtype, array.shape) - array.nbytes))
        size = file.tell() - start
        file.seek(0)
        write_header(file, np.uint8, (size,))  # as long as the first header, because numpy leaves room for the digits
    (folder / FIELDS).write_text(json.dumps({"fields": fields}, indent=1) + "\n", "utf-8")


def _read_fields(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the file of fields. Raises IndexCorrupt."""
    try:
        fields: list[dict[str, Any]] = json.loads((folder / FIELDS).read_text("utf-8"))["fields"]
        for about in fields:
            if {name: type(value) for name, value in about.items()} != _ENTRIES or about["kind"] not in KINDS:
                raise ValueError("a field has other entries than a build writes, or an unknown kind")
            about["name"].encode()  # fails for a lone surrogate, which heartbeats cannot contain
            numbers = (about["num_terms"], about["num_postings"], about["num_bytes"])
            if not 0 <= min(numbers) <= max(numbers) < 2**48:
                raise ValueError(f"the numbers of a field are {numbers!r:.200}")
        return fields
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise IndexCorrupt(f"{folder / FIELDS} cannot be read ({error!s:.200}): build the index again") from error


def _shapes(about: Mapping[str, Any], count: int) -> list[tuple["np.dtype[Any]", tuple[int, ...]]]:
    """Return the types and shapes of a column's arrays, in the order that they have in the file."""
    starts = np.dtype("<i8"), (about["num_terms"] + 1,)
    terms: list[Any] = [starts, (np.dtype("u1"), (about["num_bytes"],))]
    if about["kind"] != "keyword":
        terms = [(np.dtype(TERM_TYPES[about["kind"]]), (about["num_terms"],))]
    codes = 1 + about["is_list"], count
    return [*terms, starts, (np.dtype("<i4"), (about["num_postings"],)), (np.dtype("<i4"), codes)]


def _aligned(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> int:
    """Return the number of bytes that an array takes in the file, with padding."""
    return -(-dtype.itemsize * math.prod(shape) // ALIGNMENT) * ALIGNMENT
