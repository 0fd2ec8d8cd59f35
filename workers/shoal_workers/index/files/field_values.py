"""The values of documents' fields while documents are read, before they become columns."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument
from shoal_workers.index.files.columns import TERM_TYPES, Column, Keywords
from shoal_workers.index.files.field_kinds import CONVERTERS, MAX_DATE_S, SECOND_US, kind_of, to_keyword

#: Parts of a document that have no column: its text, and its id, which has its own file.
OTHER_FIELDS = ("id", "text")

#: Largest number of fields that have a column. Fields that appear first in the documents have precedence.
MAX_COLUMNS = 256

#: Longest keyword in characters. A field with a longer string gets the kind "stored", unless its kind is given.
MAX_KEYWORD_CHARS = 256

#: Largest memory for the distinct strings of all fields, and approximate memory of a string besides its characters, in
#: bytes. A field that would exceed it gets the kind "stored".
MAX_TERMS_BYTES, STRING_BYTES = 2**31, 150


class DocumentFields:
    """The fields of documents. Documents are added in the order of their rows.

    `kinds` are the given kinds of fields. A value of another kind raises BadDocument, or is ignored if `is_lenient`.
    """

    def __init__(self, kinds: Mapping[str, str], is_lenient: bool = False):
        self._kinds, self._is_lenient = kinds, is_lenient
        self._fields = {name: _FieldValues(kind) for name, kind in kinds.items()}
        self._count = self._num_bytes = 0

    def add(self, document: Mapping[str, Any]) -> None:
        """Add the fields of the next document."""
        for name, value in document.items():
            if value is None or name in OTHER_FIELDS:
                continue
            if (field := self._fields.get(name)) is None:
                if len(self._fields) >= MAX_COLUMNS:
                    continue
                field = self._fields[name] = _FieldValues()
            self._num_bytes -= field.num_bytes
            field.add(self._count, value)
            self._num_bytes += field.num_bytes
            # Lenient fields are fields of changes, which are small because their size in Redis is limited.
            if self._num_bytes > MAX_TERMS_BYTES and not self._is_lenient:
                if name in self._kinds:
                    raise BadDocument(
                        f"document {self._count + 1}: the distinct values of all fields take over {MAX_TERMS_BYTES:,} "
                        f"bytes of memory with {excerpt(name)}: leave its kind out, or give it the kind stored"
                    )
                self._num_bytes -= field.num_bytes
                field.become_stored()
        self._count += 1

    def kinds_found(self) -> dict[str, str]:
        """Return the kind of each field, keyed by its name."""
        return {name: self._fields[name].kind() for name in sorted(self._fields)}

    def columns(self) -> Iterator[Column]:
        """Yield the column of each field, sorted by field name, and forget the field's values.

        Raises BadDocument for a value that is not of the given kind.
        """
        for name in sorted(self._fields):
            yield self._fields.pop(name).column(name, self._count, self._is_lenient)


class _FieldValues:
    """The values of one field, each with its row. Distinct strings are numbered, and each string is kept as its number.

    A stored field keeps only the rows that have a value. `num_bytes` is the approximate memory of its strings.
    """

    def __init__(self, given: str | None = None):
        self._given = given
        self._is_stored = given == "stored"
        self.num_bytes = 0
        self._numbers, self._number_rows = array("d"), array("i")
        self._strings: dict[str, int] = {}
        self._string_codes, self._string_rows = array("i"), array("i")
        self._bad: tuple[int, Any] | None = None

    def add(self, row: int, value: Any) -> None:
        """Add a value of a row, or each value of a list."""
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, bool):
                self._add_string(row, "true" if one else "false")
            elif isinstance(one, str):
                self._add_string(row, one)
            elif isinstance(one, int) and (abs(one) >= 2**63 or float(one) != one):
                self._add_string(row, str(one))
            elif isinstance(one, int | float):
                if self._is_stored:
                    self._string_rows.append(row)
                else:
                    self._numbers.append(one)
                    self._number_rows.append(row)
            elif one is not None and self._given in (None, "stored"):  # a map, or a list inside a list
                self.become_stored()
                self._string_rows.append(row)
            elif one is not None:
                self._bad = self._bad or (row, one)

    def _add_string(self, row: int, value: str) -> None:
        if not value:
            return
        if not self._is_stored and value not in self._strings:
            self._strings[value] = len(self._strings)
            self.num_bytes += len(value) + STRING_BYTES
            if not self._given and len(value) > MAX_KEYWORD_CHARS:
                self.become_stored()
        if not self._is_stored:
            self._string_codes.append(self._strings[value])
        self._string_rows.append(row)

    def become_stored(self) -> None:
        """Forget the values, and keep the rows that have one."""
        self._is_stored, self.num_bytes = True, 0
        self._strings, self._string_codes = {}, array("i")

    def kind(self) -> str:
        """Return the given kind, or the first kind that all values have."""
        if self._is_stored or self._given:
            return self._given or "stored"
        kind = kind_of(self._strings) if self._strings else "number"
        return "keyword" if len(self._numbers) and kind in ("boolean", "date") else kind

    def column(self, name: str, count: int, is_lenient: bool) -> Column:
        """Return the column of the field for the documents of `count` rows.

        Raises BadDocument for a value that is not of the given kind, unless `is_lenient`.
        """
        if (kind := self.kind()) == "stored":
            rows = np.concatenate([_ints(self._string_rows), _ints(self._number_rows)])
            return _column(name, kind, np.zeros(1, np.uint8), rows, np.zeros(len(rows), np.int64), count)
        if kind == "keyword":
            for row, number in zip(self._number_rows, self._numbers, strict=True):
                self._add_string(row, to_keyword(number).decode())
            self._numbers, self._number_rows = array("d"), array("i")
        converted: list[Any] = []  # the value for each distinct string, or None
        for text in self._strings:
            try:
                converted.append(CONVERTERS[kind](text))
            except ValueError:
                converted.append(None)
        numbers = np.array(self._numbers)
        is_good_number = np.abs(numbers) <= MAX_DATE_S if kind == "date" else np.full(len(numbers), kind == "number")
        if not is_lenient and (bad := self._first_bad(converted, is_good_number)):
            raise BadDocument(
                f"document {bad[0] + 1}: {excerpt(name)} is {excerpt(bad[1])}, but --field {name}={kind} "
                f"says that it is a {kind}: give it another kind, or none"
            )
        string_codes = _ints(self._string_codes)
        is_good = np.array([term is not None for term in converted], bool)[string_codes]
        string_codes, string_rows = string_codes[is_good], _ints(self._string_rows)[is_good]
        if kind == "keyword":
            ordered = sorted(term for term in converted if term is not None)
            places = {term: place for place, term in enumerate(ordered)}
            codes = np.array([places.get(term, -1) for term in converted], np.int64)[string_codes]
            return _column(name, kind, Keywords.of(ordered), string_rows, codes, count)
        dtype = np.dtype(TERM_TYPES[kind])
        of_strings = np.array([0 if term is None else term for term in converted], dtype)[string_codes]
        numbers = numbers[is_good_number]
        if kind == "date":
            numbers = np.rint(numbers * SECOND_US)
        rows = np.concatenate([string_rows, _ints(self._number_rows)[is_good_number]])
        distinct, inverse = np.unique(np.concatenate([of_strings, numbers.astype(dtype)]), return_inverse=True)
        return _column(name, kind, distinct, rows, inverse, count)

    def _first_bad(self, converted: list[Any], is_good_number: NDArray[np.bool_]) -> tuple[int, Any] | None:
        if self._bad:
            return self._bad
        if None in converted:
            code = converted.index(None)
            return self._string_rows[self._string_codes.index(code)], list(self._strings)[code]
        if is_good_number.all():
            return None
        place = int(np.argmin(is_good_number))
        return self._number_rows[place], self._numbers[place]


def _column(
    name: str, kind: str, terms: Any, rows: NDArray[np.integer[Any]], codes: NDArray[np.integer[Any]], count: int
) -> Column:
    """Return the column that has these codes in these rows. Pairs may be in any order and may repeat."""
    order = np.lexsort((rows, codes))
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (np.diff(rows[order]) != 0) | (np.diff(codes[order]) != 0)
    distinct_rows, distinct_codes = rows[order][is_new].astype(np.int32), codes[order][is_new].astype(np.int32)
    starts = np.searchsorted(distinct_codes, np.arange(len(terms) + 1)).astype(np.int64)
    ends = np.full((2, count), -1, np.int32)
    ends[0, distinct_rows[::-1]] = distinct_codes[::-1]  # numpy keeps the last of several codes of a row
    ends[1, distinct_rows] = distinct_codes
    return Column(name, kind, terms, starts, distinct_rows, ends if (ends[0] != ends[1]).any() else ends[:1])


def _ints(values: "array[int]") -> NDArray[np.int64]:
    return np.array(values, np.int64)
