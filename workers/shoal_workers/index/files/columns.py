"""The values of documents' fields, in columns: by them a search filters, sorts, boosts and counts.

A column has the distinct values of a field, its terms, in their order; a code is the place of one. `rows` are the rows
with each term, one term after the other, and `codes` the lowest and the highest code of each row.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array, write_header
from shoal_workers.index.files.field_kinds import KINDS
from shoal_workers.index.files.manifest import COLUMNS, FIELDS

#: Each array begins at a multiple of this many bytes.
ALIGNMENT = 64

#: How the terms of each kind but keywords are stored.
TERM_TYPES: Mapping[str, DTypeLike] = {
    "number": np.dtype("<f8"),
    "date": np.dtype("<i8"),
    "boolean": np.dtype("u1"),
    "stored": np.dtype("u1"),
}


class Keywords:
    """Distinct strings in the order of their bytes: one after the other, with the place where each begins.

    `bytes_` is uint8 `[size]` and `starts` int64 `[count + 1]`.
    """

    def __init__(self, bytes_: NDArray[np.uint8], starts: NDArray[np.int64]):
        self.bytes_ = bytes_
        self.starts = starts

    @classmethod
    def of(cls, terms: Sequence[bytes]) -> Self:
        """Return the terms, which are in order already."""
        starts = np.cumsum([0, *map(len, terms)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(terms), np.uint8), starts)

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self.starts) - 1

    def __getitem__(self, code: int) -> bytes:
        """Return the bytes of a term."""
        return self.bytes_[self.starts[code] : self.starts[code + 1]].tobytes()

    def find(self, term: bytes) -> tuple[int, int]:
        """Return the code of a term and the one after it, or twice the code that it would have."""
        code = bisect_left(range(len(self)), term, key=self.__getitem__)
        return code, code + (code < len(self) and self[code] == term)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of one field, in the documents of `count` rows.

    `terms` are of the type that `TERM_TYPES` has for the `kind`, in ascending order. The rows with term n are
    `rows[starts[n]:starts[n + 1]]`, int32 in ascending order. `codes`, int32 `[1 or 2, count]`, has the lowest code of
    each row, and the highest if a row has several; -1 stands for none.
    """

    name: str
    kind: str
    terms: Any
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    codes: NDArray[np.int32]

    @property
    def is_list(self) -> bool:
        """True if a document has several values."""
        return len(self.codes) == 2

    @property
    def lowest(self) -> NDArray[np.int32]:
        """The lowest code of each row, or -1."""
        return np.asarray(self.codes[0])

    @property
    def highest(self) -> NDArray[np.int32]:
        """The highest code of each row, or -1."""
        return np.asarray(self.codes[-1])

    def value(self, code: int) -> Any:
        """Return a term as a value that is equal to the same term of another column."""
        return self.terms[code] if isinstance(self.terms, Keywords) else self.terms[code].item()

    def values(self, codes: NDArray[np.int32]) -> list[Any]:
        """Return the values of some codes, of which -1 stands for any."""
        return list(map(self.value, codes.tolist())) if isinstance(self.terms, Keywords) else self.terms[codes].tolist()

    def code(self, value: Any) -> int | None:
        """Return the code of a value, which is of the kind of the terms; None if the column has it not."""
        if isinstance(self.terms, Keywords):
            code, end = self.terms.find(value)
            return code if end > code else None
        code = int(np.searchsorted(self.terms, value))
        return code if code < len(self.terms) and self.terms[code] == value else None

    def rows_between(self, first: int, last: int) -> NDArray[np.int32]:
        """Return the rows with a term from code `first` to before code `last`; one with several of them comes again."""
        return self.rows[self.starts[first] : self.starts[last]]

    def num_between(self, first: int, last: int) -> int:
        """Return the number of those rows."""
        return int(self.starts[last] - self.starts[first])

    def to_map(self) -> dict[str, Any]:
        """Return what the file of fields says of the column."""
        size = len(self.terms.bytes_) if isinstance(self.terms, Keywords) else 0
        numbers = {"num_terms": len(self.terms), "num_postings": len(self.rows), "num_bytes": size}
        return {"name": self.name, "kind": self.kind, "is_list": self.is_list, **numbers}

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the arrays of the column, in the order of the file."""
        yield from (self.terms.starts, self.terms.bytes_) if isinstance(self.terms, Keywords) else (self.terms,)
        yield from (self.starts, self.rows, self.codes)


class Columns(Mapping[str, Column]):
    """The columns of an index by the names of the fields, in the documents of `count` rows.

    `num_left_out` fields have no column, because there are too many.
    """

    def __init__(self, columns: Mapping[str, Column], num_left_out: int = 0):
        self._columns = columns
        self.num_left_out = num_left_out

    def __getitem__(self, name: str) -> Column:
        """Return the column of a field."""
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names of the fields."""
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._columns)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each field."""
        return {name: column.kind for name, column in self._columns.items()}

    @classmethod
    def open(cls, folder: Path, count: int) -> Self:
        """Map the files that `save_columns` wrote into memory.

        Raises IndexCorrupt.
        """
        shapes, num_left_out = _read_shapes(folder, count)
        size = ALIGNMENT + sum(shape.size for shape in shapes)
        memory, place, columns = open_array(folder / COLUMNS, np.uint8, (size,)), ALIGNMENT, {}
        for shape in shapes:
            columns[shape.name] = shape.column(memory[place : place + shape.size])
            place += shape.size
            if not _fits(columns[shape.name]):
                raise IndexCorrupt(f"{folder / COLUMNS} does not fit {FIELDS}: build the index again")
        return cls(columns, num_left_out)


def read_kinds(folder: Path) -> dict[str, str]:
    """Return the kind of each field that has a column, in the order of their names. Raises IndexCorrupt."""
    return {shape.name: shape.kind for shape in _read_shapes(folder, 0)[0]}


@dataclass(frozen=True, slots=True)
class _Shape:
    """The numbers by which the arrays of a column are found."""

    name: str
    kind: str
    is_list: bool
    num_terms: int
    num_postings: int
    num_bytes: int
    count: int

    def check(self) -> None:
        """Raise ValueError for what no build wrote."""
        numbers = (self.num_terms, self.num_postings, self.num_bytes)
        if type(self.name) is not str or self.kind not in KINDS or type(self.is_list) is not bool:
            raise ValueError("a field has no name, an unknown kind, or no is_list")
        self.name.encode()  # a heartbeat tells it, and cannot hold a lone surrogate
        if any(type(number) is not int or not 0 <= number < 2**48 for number in numbers):
            raise ValueError(f"the numbers of a field are {numbers!r:.200}")

    @property
    def arrays(self) -> list[tuple["np.dtype[Any]", tuple[int, ...]]]:
        """The types and shapes of the arrays, in the order of the file."""
        starts, codes = (np.dtype("<i8"), (self.num_terms + 1,)), (1 + self.is_list, self.count)
        terms: list[Any] = [starts, (np.dtype("u1"), (self.num_bytes,))]
        if self.kind != "keyword":
            terms = [(np.dtype(TERM_TYPES[self.kind]), (self.num_terms,))]
        return [*terms, starts, (np.dtype("<i4"), (self.num_postings,)), (np.dtype("<i4"), codes)]

    @property
    def size(self) -> int:
        """The bytes of the column in the file."""
        return sum(aligned(dtype.itemsize * math.prod(shape)) for dtype, shape in self.arrays)

    def column(self, memory: NDArray[np.uint8]) -> Column:
        """Return the column that lies in this memory."""
        found, place = [], 0
        for dtype, shape in self.arrays:
            size = dtype.itemsize * math.prod(shape)
            found.append(memory[place : place + size].view(dtype).reshape(shape))
            place += aligned(size)
        *terms, starts, rows, codes = found
        kept = Keywords(terms[1], terms[0]) if self.kind == "keyword" else terms[0]
        return Column(self.name, self.kind, kept, starts, rows, codes)


def _read_shapes(folder: Path, count: int) -> tuple[list[_Shape], int]:
    """Return the shapes of all columns, and the number of fields that have none. Raises IndexCorrupt."""
    try:
        values = json.loads((folder / FIELDS).read_text("utf-8"))
        shapes = [_Shape(**fields, count=count) for fields in values["fields"]]
        for shape in shapes:
            shape.check()
        if len({shape.name for shape in shapes}) < len(shapes) or type(values["num_left_out"]) is not int:
            raise ValueError("a field comes twice, or num_left_out is no number")
        return shapes, values["num_left_out"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise IndexCorrupt(f"{folder / FIELDS} cannot be read ({error!s:.200}): build the index again") from error


def save_columns(folder: Path, columns: Iterable[Column], num_left_out: int) -> None:
    """Write columns, one after the other, so that one is in memory at a time, and the file that says which they are."""
    fields = []
    with (folder / COLUMNS).open("wb") as file:
        write_header(file, np.uint8, (0,))
        start = file.tell()
        _write_aligned(file, np.zeros(ALIGNMENT, np.uint8))
        for column in columns:
            fields.append(column.to_map())
            for array in column.arrays():
                _write_aligned(file, array)
        size = file.tell() - start
        file.seek(0)
        write_header(file, np.uint8, (size,))  # as long as the first one: numpy leaves room for the digits
    (folder / FIELDS).write_text(json.dumps({"fields": fields, "num_left_out": num_left_out}, indent=1) + "\n", "utf-8")


def _fits(column: Column) -> bool:
    """Return False for a column whose arrays do not end where they should."""
    ends = [(column.starts, len(column.rows))]
    if isinstance(column.terms, Keywords):
        ends.append((column.terms.starts, len(column.terms.bytes_)))
    return all(starts[0] == 0 and starts[-1] == end for starts, end in ends)


def aligned(size: int) -> int:
    """Return the bytes that an array of this size takes in the file."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _write_aligned(file: BinaryIO, array: NDArray[Any]) -> None:
    file.write(data := array.tobytes())
    file.write(bytes(aligned(len(data)) - len(data)))
