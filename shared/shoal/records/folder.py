"""The files of a folder that is a source."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, PathNotAllowed
from shoal.extraction.kinds import KINDS
from shoal.records.source_rules import SourceRules

#: The kind of each file of a folder that is read, by the ending of its name. A .txt file is one document there.
FOLDER_KINDS = {**KINDS, ".txt": "text"}

#: Most files of a folder.
MAX_FILES = 1_000_000


class FoundFile(NamedTuple):
    """A file of a folder: its path below it, with slashes; its kind and its size.

    `modified_ns` and `changed_ns` are when its content was changed last, and when anything about it was.
    """

    path: str
    kind: str
    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int


def list_files(folder: Path, rules: SourceRules, most: int = MAX_FILES) -> list[FoundFile]:
    """Return the files of a folder and of those in it that are of a known kind, ordered by their paths.

    Hidden ones are left out, and links to folders are not followed. Raises PathNotAllowed for a folder of uploads, and
    InvalidRequest for a folder that cannot be read, or that has too many files.
    """
    if rules.is_closed(folder):
        raise PathNotAllowed(f"{folder} is a folder of files that clients have sent: name one file, or another folder")
    found: list[FoundFile] = []
    for file in _walk(folder, rules):
        found.append(file)
        if len(found) > most:
            raise InvalidRequest(f"{folder} has over {most:,} files, the most of a source: index parts of it")
    return sorted(found)


def folder_fingerprint(folder: Path, rules: SourceRules) -> dict[str, int | str]:
    """Return that by which a change of any file is noticed, in the shape of `source_file.fingerprint`."""
    files, digest = list_files(folder, rules), hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.size_bytes}\0{file.modified_ns}\n".encode(errors="surrogateescape"))
    return {
        "name": folder.name,
        "size_bytes": sum(file.size_bytes for file in files),
        "modified": max((file.modified_ns for file in files), default=0),
        "sha256": digest.hexdigest(),
    }


def kind_of(name: str, kinds: dict[str, str] = KINDS) -> str | None:
    """Return the kind of a file by the ending of its name; None if it is of none of them."""
    return kinds.get(os.path.splitext(name.lower())[1])


def _walk(folder: Path, rules: SourceRules) -> Iterator[FoundFile]:
    for here, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not rules.is_closed(os.path.join(here, name))
        ]
        for name in names:
            kind = kind_of(name, FOLDER_KINDS)
            if kind is None or name.startswith("."):
                continue
            path = os.path.join(here, name)
            try:
                about = os.stat(path)
            except OSError:  # removed meanwhile, or a link to nothing
                continue
            if os.path.isfile(path):
                times = about.st_mtime_ns, about.st_ctime_ns
                yield FoundFile(os.path.relpath(path, folder), kind, about.st_size, *times, about.st_ino)


def _raise(error: OSError) -> NoReturn:
    raise InvalidRequest(
        f"{excerpt(error.filename)} cannot be read ({error.strerror}): check its name and permissions"
    ) from error
