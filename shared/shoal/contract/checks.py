"""Checks of single values from outside. An error names the field, the wrong value and the allowed values."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest

#: Largest absolute value of a number. It keeps sums and products of a few numbers finite in float32.
MAX_NUMBER = 1e15

#: Largest number of characters in the name of a field, a prompt, an index, a version or a model.
MAX_NAME_CHARS = 1_024

#: Largest number of characters in an id, a path, a URL, or a value that is compared with values of documents.
MAX_VALUE_CHARS = 4_096


def check_type(name: str, value: Any, type_: type, words: str) -> None:
    """Raise InvalidRequest if the value has another type; `words` describe the right type."""
    if not isinstance(value, type_):
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes {words}")


def check_string(name: str, value: Any, words: str, most: int = MAX_NAME_CHARS) -> None:
    """Raise InvalidRequest unless the value is a string of at most `most` characters; `words` say what is allowed."""
    check_type(name, value, str, words)
    if len(value) > most:
        raise InvalidRequest(f"{name} has {len(value):,} characters: it takes {words} of at most {most:,}")


def is_header_text(value: str) -> bool:
    """Return True for printable ASCII, which an HTTP header can contain."""
    return value.isascii() and value.isprintable()


def check_range(name: str, value: Any, least: int, most: int) -> None:
    """Raise InvalidRequest unless the value is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a whole number from {least} to {most:,}")


def check_number(name: str, value: Any, least: float = -MAX_NUMBER, most: float = MAX_NUMBER) -> None:
    """Raise InvalidRequest unless the value is a number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a number from {least:,.15g} to {most:,.15g}")


def check_strings(name: str, value: Any, most: int, most_chars: int) -> None:
    """Raise InvalidRequest unless the value is a list of at most `most` strings of 1 to `most_chars` characters."""
    if not isinstance(value, list) or len(value) > most:
        found = f"a list of {len(value):,}" if isinstance(value, list) else excerpt(value)
        raise InvalidRequest(f"{name} is {found}: it takes a list of at most {most:,} strings")
    for number, item in enumerate(value):
        if not item:
            raise InvalidRequest(f"{name}[{number}] is {excerpt(item)}: it takes a string that is not empty")
        check_string(f"{name}[{number}]", item, "a string", most_chars)


def check_names(name: str, value: Any, known: tuple[str, ...], required: tuple[str, ...] = ()) -> None:
    """Raise InvalidRequest unless the value is a map that has all required names and only known names."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a map with {', '.join(known)}")
    if unknown := [key for key in value if key not in known]:
        raise InvalidRequest(f"{name} has {excerpt(unknown[0])}: it takes {', '.join(known)}")
    if missing := [key for key in required if key not in value]:
        raise InvalidRequest(f"{name}.{missing[0]} is missing: add it")


def check_known(kind: str, names: Iterable[str | bytes], known: Collection[str]) -> None:
    """Raise InvalidRequest for the first unknown name, and suggest a known one; `kind` is "field", for example."""
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InvalidRequest(f"unknown {kind} {excerpt(unknown)}: {_advice(unknown, known)}")


def _advice(name: str | bytes, known: Collection[str]) -> str:
    if not known:
        return "there are none here"
    if isinstance(name, str) and len(name) <= 40:  # a longer name is no misspelling
        for similar in get_close_matches(name.lower(), known, n=1):
            return f"did you mean {similar}?"
    return f"the known ones are {', '.join(known)}"
