"""The description of a route that several protocols share: all that they take and answer."""

from collections.abc import Mapping
from typing import Any

from flask_openapi3.models.media_type import MediaType
from flask_openapi3.models.operation import Operation
from flask_openapi3.models.path_item import PathItem
from flask_openapi3.models.request_body import RequestBody
from flask_openapi3.models.schema import Schema

_Content = Mapping[str, MediaType]


def joined(earlier: PathItem, later: PathItem, own: PathItem | None) -> PathItem:
    """Return the operations of both; of two for a method, an own one as it is, else one that has all of both."""
    methods = dict.fromkeys((*earlier.model_fields_set, *later.model_fields_set))
    operations = {method: (getattr(earlier, method), getattr(later, method)) for method in methods}
    kept = {method: first or second for method, (first, second) in operations.items()}
    shared = {
        method: _merged(*both) for method, both in operations.items() if all(both) and not getattr(own, method, None)
    }
    return later.model_copy(update=kept | shared)


def _merged(first: Operation, second: Operation) -> Operation:
    """Return the operation that takes and answers what either does."""
    bodies = [_content(operation.requestBody) for operation in (first, second)]
    responses = dict(first.responses or {})
    for status, response in (second.responses or {}).items():
        known = responses.setdefault(status, response)
        content = _either(known.content or {}, response.content or {})
        names = (known.headers or {}) | (response.headers or {})
        responses[status] = known.model_copy(update={"content": content, "headers": names or None})
    words = f"{', '.join(second.tags or ())}: {second.summary}"
    update: dict[str, Any] = {
        "tags": [*(first.tags or ()), *(second.tags or ())],
        "description": "\n\n".join(filter(None, (first.description, words, second.description))),
        "parameters": [*(first.parameters or ()), *(second.parameters or ())] or None,
        "requestBody": RequestBody(content=_either(*bodies)) if any(bodies) else None,
        "responses": responses,
    }
    return first.model_copy(update={name: value for name, value in update.items() if value})


def _content(body: Any) -> _Content:
    return body.content if isinstance(body, RequestBody) else {}


def _either(first: _Content, second: _Content) -> dict[str, MediaType]:
    """Return the content of which each media type has the schema of one or the other."""
    found = dict(first)
    for name, media in second.items():
        known = _schemas(found[name]) if name in found else []
        schemas = [*known, *(schema for schema in _schemas(media) if schema not in known)]
        found[name] = media if len(schemas) == 1 else MediaType(schema=Schema(anyOf=schemas))
    return found


def _schemas(media: MediaType) -> list[Any]:
    """Return the schemas of which a value of the media type has one."""
    schema = media.media_type_schema
    if isinstance(schema, Schema) and schema.anyOf:
        return list(schema.anyOf)
    return [] if schema is None else [schema]
