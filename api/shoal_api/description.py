"""The description of routes: the ids of operations, what bodies take, and a route that several protocols share."""

import re
from collections.abc import Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.media_type import MediaType
from flask_openapi3.models.operation import Operation
from flask_openapi3.models.path_item import PathItem
from flask_openapi3.models.request_body import RequestBody
from flask_openapi3.models.schema import Schema
from flask_openapi3.models.tag import Tag

from shoal_api.request import json_request
from shoal_api.validation import checked

_Content = Mapping[str, MediaType]

#: A reference to a schema, which has its name.
_REFERENCE = re.compile(r"#/components/schemas/([\w.-]+)")


#: The place of the body among the models of a view's arguments, as flask_openapi3 has them.
_BODY = 5


class Blueprint(APIBlueprint):
    """The routes of one subject, which have the `tag` and tell of errors in the shape `errors`.

    The id of an operation is the name of its view, after the protocol's if it has one.
    """

    def __init__(self, name: str, import_name: str, tag: str, errors: Any):
        protocol = name if ".protocols." in import_name else ""

        def operation_id(*, name: str, **_: str) -> str:
            first, *others = (name if name == protocol else f"{protocol}_{name}").strip("_").split("_")
            return first + "".join(map(str.capitalize, others))

        responses: dict[Any, Any] = {"4XX": errors, "5XX": errors}
        super().__init__(
            name, import_name, abp_tags=[Tag(name=tag)], abp_responses=responses, operation_id_callback=operation_id
        )
        self.errors = errors

    @staticmethod
    def create_view_func(func: Any, *arguments: Any, **options: Any) -> Any:
        """Return the view with its arguments checked; a body alone is checked without flask_openapi3's detours."""
        body = arguments[_BODY]
        if list(filter(None, arguments)) != [body] or not iscoroutinefunction(func):
            return APIBlueprint.create_view_func(func, *arguments, **options)
        if not hasattr(func, "view"):

            @wraps(func)
            async def view() -> Any:
                return await func(body=checked(body, json_request().get_json()))

            func.view = view
        return func.view


def describe_defaults(schemas: dict[str, Any], bodies: list[Any]) -> None:
    """Say the defaults of bodies' fields in words: generators of clients take a field with `default` for required."""
    names = {ref for body in bodies for ref in _REFERENCE.findall(str(body))}
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        names |= set(_REFERENCE.findall(str(schemas[name])))
        for field in schemas[name].get("properties", {}).values():
            if (default := field.pop("default", None)) is not None:
                field["description"] = f"{field.get('description', '')}. Default: {default}".lstrip(". ")


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
