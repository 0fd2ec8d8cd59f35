"""A document, made of one record of a source."""

import json
from dataclasses import dataclass
from typing import Any

from shoal import wire
from shoal.errors import BadDocument
from shoal.excerpt import excerpt
from shoal.records.record import Record, listed

#: Names that a hit of a search has of its own.
RESERVED_NAMES = frozenset({"id", "text", "score"})


@dataclass(frozen=True, slots=True)
class Document:
    """A text to embed or to index, with the record's other columns as values that JSON can hold."""

    id: str
    text: str
    fields: dict[str, Any]


def make_document(where: str, record: Record, text_column: str, id_column: str | None, position: int) -> Document:
    """Return the document of a record; without `id_column` its id is `position`.

    Raises BadDocument, with `where` as the beginning of the message.
    """
    fields = {name: _json_value(value) for name, value in record.items() if name not in (text_column, id_column)}
    if taken := RESERVED_NAMES & fields.keys():
        raise BadDocument(f"{where}: a hit has its own {listed(sorted(taken))}; rename the column of that name")
    if deep := [name for name, value in fields.items() if not wire.is_json(value)]:
        raise BadDocument(f"{where}: {listed(deep)} is nested over {wire.MAX_DEPTH} levels deep; make it flatter")
    document_id = str(position) if id_column is None else _id(where, record, id_column)
    return Document(document_id, _text(where, record, text_column), fields)


def _text(where: str, record: Record, column: str) -> str:
    if column not in record:
        raise BadDocument(f"{where}: the text {excerpt(column)} is missing; every record needs one")
    text = record[column]
    if not isinstance(text, str):
        raise BadDocument(f"{where}: the text {excerpt(column)} is {excerpt(text)}; it must be a string")
    if not text.strip():
        raise BadDocument(f"{where}: the text in column {excerpt(column)} is empty; fill it in or leave the record out")
    return text


def _id(where: str, record: Record, column: str) -> str:
    value = _json_value(record.get(column))
    if value is None or not str(value).strip():
        raise BadDocument(f"{where}: the id {excerpt(column)} is missing or empty; every record needs one")
    return str(value)


def _json_value(value: Any) -> Any:
    """Return the value as JSON can hold it: dates and the like as strings, NaN and infinity as null."""
    if value is None or isinstance(value, str | int):
        return value
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
