"""Error messages for requests that pydantic refuses."""

from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, MalformedJob

#: The value that a field takes, by pydantic's type of error.
_TAKES = {
    "string_type": "a string",
    "string_too_long": "a string of at most {max_length:,} characters",
    "list_type": "a list",
    "too_short": "a list with {min_length} or more items",
    "too_long": "a list with {max_length} or fewer items",
    "dict_type": "an object",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge:.10g}",
    "less_than_equal": "at most {le:.10g}",
    "union_tag_not_found": "a string, a list of strings, or token ids",
}


#: Most errors of one field that go into a message: pydantic has one for each kind of value that the field takes.
_MAX_KINDS = 8

#: Names of kinds of values, which pydantic puts among the names of fields in the place of an error.
_KINDS = {"str", "int", "bool", "float"}

_Shape = TypeVar("_Shape", bound=BaseModel)


def checked(shape: type[_Shape], value: Any) -> _Shape:
    """Return the value in its shape; raises InvalidRequest."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        refuse(error)


def as_answered(shape: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values in a worker's answer that the shape knows; raise MalformedJob if they do not fit it."""
    try:
        return shape.model_validate(values).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise MalformedJob("the reply is not of the documented shape: are all workers of this release?") from error


def refuse(error: ValidationError) -> NoReturn:
    """Raise InvalidRequest, naming the first field that is wrong, its value, and the value that it takes."""
    details = error.errors(include_url=False)
    first = [detail for detail in details if detail["loc"][0] == details[0]["loc"][0]]
    depth = max(len(_indexes(detail)) for detail in first)
    raise InvalidRequest(_sentence([detail for detail in first if len(_indexes(detail)) == depth])) from None


def _sentence(details: list[ErrorDetails]) -> str:
    detail = details[0]
    name = "".join(map(_step, detail["loc"])).removeprefix(".")
    takes = " or ".join(dict.fromkeys(map(_takes, details[:_MAX_KINDS])))
    if detail["type"] == "missing":
        return f"{name} is missing: it is required"
    return f"{name} is {excerpt(detail['input'])}: it takes {takes}"


def _step(part: int | str) -> str:
    """Return a part of the place of an error as JavaScript would write it; nothing for the kind of a value."""
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() and part not in _KINDS else ""


def _indexes(detail: ErrorDetails) -> list[int]:
    return [part for part in detail["loc"] if isinstance(part, int)]


def _takes(detail: ErrorDetails) -> str:
    words = _TAKES.get(detail["type"])
    return detail["msg"] if words is None else words.format_map(detail.get("ctx", {}))
