"""The sources of long jobs: a local file, a file of the server, or the program's own texts."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from shoal.contract.excerpt import excerpt
from shoal.errors import DiskFull, InvalidRequest
from shoal.process.allowed_path import local_path

#: A text, or a document: a map with its text and, optionally, its id and further fields.
Item: TypeAlias = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerFile:
    """A file that the runner already has below one of its roots. A relative path begins in the first root."""

    path: str


#: The path of a file, or a file of the server.
File: TypeAlias = str | PathLike[str] | ServerFile


def place_of(file: File) -> str:
    """Return the absolute path of a local file, or the path of a server's file. Raises InvalidRequest for a URL."""
    if isinstance(file, ServerFile):
        return file.path
    return str(Path(local_path(fspath(file))).expanduser().absolute())


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write one item a line, as JSON; raise InvalidRequest for an item that JSON cannot express, and DiskFull."""
    try:
        with path.open("w", encoding="utf-8") as file:
            for number, item in enumerate(items):
                try:
                    file.write(json.dumps({"text": item} if isinstance(item, str) else dict(item)) + "\n")
                except (TypeError, ValueError):
                    raise InvalidRequest(
                        f"text {number} is {excerpt(item)}: it takes a str, or a dict with a text that JSON can hold"
                    ) from None
    except OSError as error:
        if error.errno in DiskFull.ERRNOS:
            raise DiskFull(f"no room to write {path} ({error.strerror}): make some, try again") from error
        raise
