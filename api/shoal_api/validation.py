"""The check of values against their shapes, and the messages for values that pydantic refuses."""

from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest

#: Descriptions of the values that a field accepts, keyed by the type of pydantic's error.
_ACCEPTED = {
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "string_too_long": "a string of at most {max_length:,} characters",
    "list_type": "a list",
    "too_short": "a list with {min_length} or more items",
    "too_long": "a list with {max_length} or fewer items",
    "dict_type": "an object",
    "model_type": "an object",
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

#: Names of types, which pydantic puts between the names of fields in the path to an error.
_KINDS = {"str", "int", "bool", "float"}

_Shape = TypeVar("_Shape", bound=BaseModel)


def checked(shape: type[_Shape], value: Any) -> _Shape:
    """Return the value as an instance of the shape. Raises InvalidRequest if the value does not fit."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        refuse(error)


def refuse(error: ValidationError) -> NoReturn:
    """Raise InvalidRequest. The message names the first wrong field, its value, and the values that it accepts."""
    details = error.errors(include_url=False)
    first = [detail for detail in details if detail["loc"][0] == details[0]["loc"][0]]
    depths = [sum(isinstance(part, int) for part in detail["loc"]) for detail in first]
    deepest = [detail for detail, depth in zip(first, depths, strict=True) if depth == max(depths)]
    detail = deepest[0]
    name = ""
    for part in detail["loc"]:  # written as in JavaScript: `documents[0].text`
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in _KINDS:
            name += f".{part}" if name else part
    if detail["type"] == "missing":
        raise InvalidRequest(f"{name} is missing: it is required") from None
    kinds = []
    for each in deepest:  # pydantic reports one error for each type that the field accepts
        words = _ACCEPTED.get(each["type"])
        kinds.append(each["msg"] if words is None else words.format_map(each.get("ctx", {})))
    takes = " or ".join(dict.fromkeys(kinds)).replace("False", "false")
    raise InvalidRequest(f"{name} is {excerpt(detail['input'])}: it takes {takes}") from None
