"""Excerpts of values from outside, for error messages: short however long or deep the value is, and in JSON's words."""

import reprlib
from typing import Any

#: Most characters of a string, or bytes, that a message repeats.
MAX_CHARS = 100

_KINDS = {
    "NoneType": "null",
    "bool": "a boolean",
    "bytes": "a byte string",
    "dict": "a map",
    "float": "a number",
    "int": "a number",
    "str": "a string",
}


class _Excerpt(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MAX_CHARS

    def repr_bytes(self, value: bytes, level: int) -> str:
        """Cut before writing it out, which makes four characters of a byte."""
        return repr(value[:MAX_CHARS])

    def repr_NoneType(self, value: None, level: int) -> str:
        """Write JSON's word."""
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        """Write JSON's word."""
        return "true" if value else "false"


#: Return an excerpt of any value, a string in quotes.
excerpt = _Excerpt().repr


def kind(value: Any) -> str:
    """Return the type of a decoded value in words, for messages that must not repeat the value itself."""
    name = type(value).__name__
    return _KINDS.get(name, f"a {name}")
