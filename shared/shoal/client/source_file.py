"""The files that long jobs read: where one is, and one that is written for texts of a program."""

import json
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from shoal.errors import DiskFull, InvalidRequest
from shoal.excerpt import excerpt

#: A text, or a document: a map with its text, and perhaps its id and further fields.
Item = str | Mapping[str, Any]


def place_of(path: str | PathLike[str]) -> str:
    """Return a path as an absolute one, and a URL as it is."""
    text = fspath(path)
    return text if "://" in text else str(Path(text).expanduser().absolute())


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write the items into a new file, one JSON object a line.

    Raises InvalidRequest if the file exists, and DiskFull.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            for number, item in enumerate(items):
                file.write(_line(number, item))
    except FileExistsError:
        raise InvalidRequest(f"{path} has the texts of an earlier call: name another `out`, or delete it") from None
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
            raise DiskFull(f"no room to write {path} ({error.strerror}): make some, try again") from error
        raise


def _line(number: int, item: Item) -> str:
    try:
        return json.dumps({"text": item} if isinstance(item, str) else dict(item)) + "\n"
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"text {number} is {excerpt(item)}: it takes a str, or a dict with a text that JSON can hold"
        ) from None
