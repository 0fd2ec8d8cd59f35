"""The sources of long jobs: local files and files of the server."""

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias

from shoal.errors import InvalidRequest
from shoal.process.allowed_path import local_path


@dataclass(frozen=True, slots=True)
class ServerFile:
    """A file that the runner already has below one of its roots. A relative path begins in the first root."""

    path: str


#: The path of a file, or a file of the server.
File: TypeAlias = str | PathLike[str] | ServerFile


def place_of(file: File) -> str:
    """Return the absolute path of a local file, or the path of a server's file. Raises InvalidRequest otherwise."""
    if isinstance(file, ServerFile):
        return file.path
    if not isinstance(file, str | PathLike):
        raise InvalidRequest("the source is no path: write texts into a file, such as .jsonl, and give its path")
    return str(Path(local_path(fspath(file))).expanduser().absolute())
