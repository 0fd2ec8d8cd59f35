"""Documents and ids from a program or a request. The rules for documents are the rules for rows of a source."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest, InvalidText, TooLarge
from shoal.records.document import MAX_FIELD_DEPTH, RESERVED_NAMES, Document, DocumentColumns

#: A document, or a map with its `id`, its `text` and other fields that JSON can represent.
Given = Document | Mapping[str, Any]


def documents_of(
    given: Iterable[Given], most: int, max_text_chars: int, max_values: float = math.inf
) -> list[Document]:
    """Return the given documents in their order.

    Raises BadDocument or InvalidText, whose message names the document by its position, counted from 0, and its id.
    Raises TooLarge for more than `most` documents, or if their lists and maps have more than `max_values` values. A
    document is checked only after its values have been counted.
    """
    num_values = 0
    columns = DocumentColumns("text", "id", RESERVED_NAMES, max_text_chars)
    found: dict[str, Document] = {}
    for number, one in enumerate(given):
        _check_number(number, most, "documents")
        num_values += wire.num_values(one.fields if isinstance(one, Document) else one, max_values - num_values)
        if num_values > max_values:
            raise TooLarge(
                f"with document {number}, the documents have over {max_values:,} values: split the list, or send lists "
                "and maps as text"
            )
        document = _document(one, number, columns)
        if document.id in found:
            raise BadDocument(f"document {number} has the id {excerpt(document.id)}, sent before: send each id once")
        found[document.id] = document
    return list(found.values())


def ids_of(given: Iterable[str], most: int) -> list[str]:
    """Return the given ids in their order.

    Raises InvalidRequest or InvalidText, whose message names the id by its position, counted from 0, and TooLarge for
    more than `most` ids.
    """
    found: dict[str, None] = {}
    for number, one in enumerate(given):
        _check_number(number, most, "ids")
        if not isinstance(one, str) or not one.strip():
            raise InvalidRequest(f"id {number} is {excerpt(one)}: it takes a string that is not blank")
        if one in found:
            raise InvalidRequest(f"id {number} is {excerpt(one)}, which was sent before: send each id once")
        try:
            wire.pack({"id": one})
        except InvalidText as error:
            raise InvalidText(f"id {number}: {error}") from error
        found[str(one)] = None
    return list(found)


def _check_number(number: int, most: int, what: str) -> None:
    if number >= most:
        raise TooLarge(f"there are more than {most:,} {what}, the limit at a time: split the list, or build the index")


def _document(given: Given, number: int, columns: DocumentColumns) -> Document:
    where = f"document {number}"
    if isinstance(given, Document):
        given = {**given.fields, "id": given.id, "text": given.text}
    if not isinstance(given, Mapping):
        raise BadDocument(f"{where} is {excerpt(given)}: it takes a map with an id and a text")
    record = dict(given)
    if isinstance(record.get("id"), str):
        where = f"{where} (id {excerpt(record['id'])})"
    elif "id" in record:
        raise BadDocument(f"{where}: its id is {excerpt(record['id'])}: it takes a string")
    try:
        for name, value in record.items():
            _check_field(name, value)
        return columns.document(record, number + 1, number)
    except (BadDocument, InvalidText) as error:
        raise type(error)(f"{where}: {error}") from error


def _check_field(name: Any, value: Any) -> None:
    if not isinstance(name, str):
        raise BadDocument(f"{excerpt(name)} is no name of a field: it takes a string")
    try:
        is_sound = (
            wire.is_json(value, MAX_FIELD_DEPTH) and json.dumps(value, allow_nan=False) and wire.pack({name: value})
        )
    except (OverflowError, ValueError):  # for whole numbers of over 64 bits, infinity and NaN
        is_sound = False
    if not is_sound:
        raise BadDocument(
            f"{excerpt(name)} has a value that JSON with numbers of 64 bits cannot hold, or is nested over "
            f"{MAX_FIELD_DEPTH} levels deep: send it as text, or flatter"
        )
