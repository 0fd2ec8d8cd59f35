"""A document, made of one record of a source."""

import json
from dataclasses import dataclass, field
from typing import Any

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument
from shoal.records.record import Record, listed

#: Names that a hit of a search has of its own.
RESERVED_NAMES = frozenset({"id", "text", "score"})

#: Most levels of a field: the document that holds it is one more.
MAX_FIELD_DEPTH = wire.MAX_DEPTH - 1


@dataclass(frozen=True, slots=True)
class Document:
    """A text to embed or to index, with the record's other columns as values that JSON can hold.

    `number` is that of its line or row in the source, from 1.
    """

    id: str
    text: str
    fields: dict[str, Any]
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that gives no document: the number of its line or row, from 1, and the reason, as "file, line 17: …"."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """The columns of a record that are the text and the id, and those that it may not have.

    Without `id_column` the id is the position of the record. Texts have at most `max_text_chars` characters.
    """

    text_column: str
    id_column: str | None
    reserved: frozenset[str]
    max_text_chars: int

    def document(self, record: Record, number: int, position: int) -> Document:
        """Return the document of the record with that number and position.

        Raises BadDocument, whose message does not say where.
        """
        others = {name: value for name, value in record.items() if name not in (self.text_column, self.id_column)}
        if taken := self.reserved & others.keys():
            raise BadDocument(f"a hit has its own {listed(sorted(taken))}; rename the column of that name")
        fields = {name: _json_value(value) for name, value in others.items()}
        if deep := [name for name, value in fields.items() if not wire.is_json(value, MAX_FIELD_DEPTH)]:
            raise BadDocument(f"{listed(deep)} is nested over {MAX_FIELD_DEPTH} levels deep; make it flatter")
        document_id = str(position) if self.id_column is None else _id(record, self.id_column)
        return Document(document_id, self._text(record), fields, number)

    def _text(self, record: Record) -> str:
        column = self.text_column
        if column not in record:
            raise BadDocument(f"the text {excerpt(column)} is missing; every record needs one")
        text = record[column]
        if not isinstance(text, str):
            raise BadDocument(f"the text {excerpt(column)} is {excerpt(text)}; it must be a string")
        if not text.strip():
            raise BadDocument(f"the text in column {excerpt(column)} is empty; fill it in or leave the record out")
        if len(text) > self.max_text_chars:
            limit = f"may have {self.max_text_chars:,} (SHOAL_MAX_TEXT_CHARS)"
            raise BadDocument(f"the text has {len(text):,} characters and {limit}; cut it into passages")
        return text


def _id(record: Record, column: str) -> str:
    value = _json_value(record.get(column))
    if value is None or not str(value).strip():
        raise BadDocument(f"the id {excerpt(column)} is missing or empty; every record needs one")
    return str(value)


def _json_value(value: Any) -> Any:
    """Return the value as JSON can hold it: dates and the like as strings, NaN and infinity as null."""
    if value is None or isinstance(value, str | int):
        return value
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
