"""Excerpts of values from outside, for error messages. They are always short, and written as JSON."""

import json
import reprlib
from typing import Any

#: Largest number of characters in an excerpt, not counting the mark at the end of a cut excerpt.
MAX_CHARS = 80


def excerpt(value: Any) -> str:
    """Return the value as JSON, cut to `MAX_CHARS` characters. Bytes are shown in hex."""
    text = _writer.repr(value)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


class _JsonWriter(reprlib.Repr):
    """A writer of JSON that visits only the first few parts of a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxother = 3, MAX_CHARS

    def repr_str(self, value: str, level: int) -> str:
        """Return the first characters in double quotes, with escapes if any of them is not printable."""
        quoted = json.dumps(value[:MAX_CHARS], ensure_ascii=False)
        return quoted if quoted.isprintable() else json.dumps(value[:MAX_CHARS])

    def repr_bytes(self, value: bytes, level: int) -> str:
        """Return the first bytes as hex digits."""
        return f"bytes {value[: MAX_CHARS // 2].hex()}"

    def repr_bool(self, value: bool, level: int) -> str:
        """Return true or false."""
        return "true" if value else "false"

    def repr_NoneType(self, value: None, level: int) -> str:
        """Return null."""
        return "null"

    def repr_Timestamp(self, value: Any, level: int) -> str:
        """Return the kind of a timestamp of msgpack, which JSON cannot express."""
        return "a timestamp"


_writer = _JsonWriter()

_KINDS = {
    "NoneType": "null",
    "bool": "a boolean",
    "bytes": "a byte string",
    "dict": "a map",
    "float": "a number",
    "int": "a number",
    "list": "an array",
    "str": "a string",
}


def kind(value: Any) -> str:
    """Return the type of a decoded value in words, for messages that must not contain the value."""
    return _KINDS.get(type(value).__name__, "of another type")
