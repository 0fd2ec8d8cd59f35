"""The sources of long jobs: files, which a program, a server or the web has, and texts of a program."""

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

#: A text, or a document: a map with its text, and perhaps its id and further fields.
Item: TypeAlias = str | Mapping[str, Any]

#: Texts or documents of a program.
Items: TypeAlias = Iterable[Item] | AsyncIterable[Item]


@dataclass(frozen=True, slots=True)
class ServerFile:
    """A file that the runner has, for the source of a long job. It is not uploaded.

    `path` is a path below the runner's roots; a relative one begins in the first root that is a folder.
    """

    path: str


#: A file by its path, by its URL, or on the server.
File: TypeAlias = str | PathLike[str] | ServerFile


def place_of(file: File) -> str:
    """Return the path of a local file as an absolute one, and a URL or the path of a server's file as it is."""
    if isinstance(file, ServerFile):
        return file.path
    text = fspath(file)
    return text if "://" in text else str(Path(text).expanduser().absolute())
