"""The sources of long jobs: a local file, a file of the server, or the program's own texts."""

import json
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from filecmp import cmp
from hashlib import blake2b
from os import SEEK_END, PathLike, fspath
from pathlib import Path
from secrets import token_hex
from typing import Any, Self, TypeAlias

from shoal.client.parts import batches
from shoal.contract.excerpt import excerpt
from shoal.errors import DiskFull, InvalidRequest, ShoalError, Unavailable
from shoal.process.allowed_path import local_path

#: A text, or a document: a map with its text and, optionally, its id and further fields.
Item: TypeAlias = str | Mapping[str, Any]

#: Texts or documents of a program.
Items: TypeAlias = Iterable[Item] | AsyncIterable[Item]

#: Number of items that are written into a file at a time.
BATCH = 256


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


class ItemFile:
    """A new file with one item a line, as JSON.

    A `with` block creates the file, and deletes it if the block fails and no job can need the file. With an idempotency
    key, items go into a temporary file first, and an existing file with equal contents is used again. The methods
    block, and only one thread at a time may call them.
    """

    def __init__(self, path: Path, key: str | None = None):
        self.path = path
        self._scratch = path.with_name(f"{path.name}.{token_hex(4)}") if key else path
        self._num_items = 0
        self._is_kept = False

    @classmethod
    def beside(cls, out: str, key: str | None) -> Self:
        """Return the file for the texts of a call that writes to `out` and may have an idempotency key."""
        name = f".{blake2b(key.encode(errors='surrogatepass'), digest_size=8).hexdigest()}" if key else ""
        return cls(Path(f"{out}{name}.jsonl"), key)

    def __enter__(self) -> Self:
        """Create an empty file; raise InvalidRequest if it exists, and DiskFull if there is no room."""
        with _room(self.path):
            self._scratch.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._scratch.open("x").close()
            except FileExistsError:
                raise _taken(self.path) from None
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_refusal = isinstance(error, ShoalError) and not isinstance(error, Unavailable)
        if error is not None and (is_refusal or not self._is_kept):  # in other cases the job may have been put
            self._scratch.unlink(missing_ok=True)

    def append(self, items: Sequence[Item]) -> None:
        """Append items; raise InvalidRequest for an item that JSON cannot express, and DiskFull if there is no room."""
        lines = []
        for number, item in enumerate(items, self._num_items):
            try:
                lines.append(json.dumps({"text": item} if isinstance(item, str) else dict(item)) + "\n")
            except (TypeError, ValueError):
                raise InvalidRequest(
                    f"text {number} is {excerpt(item)}: it takes a str, or a dict with a text that JSON can hold"
                ) from None
        self._num_items += len(items)
        with _room(self.path), self._scratch.open("r+", encoding="utf-8") as file:  # "a" would recreate a deleted file
            file.seek(0, SEEK_END)
            file.writelines(lines)

    def keep(self) -> None:
        """Give the file its final name; raise InvalidRequest if a file of that name has other contents."""
        self._is_kept = True
        if self._scratch == self.path:
            return
        if not self.path.exists():
            self._scratch.replace(self.path)
            self._scratch = self.path
        elif cmp(self._scratch, self.path, shallow=False):
            self._scratch.unlink()
        else:
            raise _taken(self.path)

    def write(self, items: Iterable[Item]) -> None:
        """Write the items, and keep the file."""
        for batch in batches(items, BATCH):
            self.append(batch)
        self.keep()


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Raise DiskFull if an operation in the block fails because the disk has no room."""
    try:
        yield
    except OSError as error:
        if error.errno in DiskFull.ERRNOS:
            raise DiskFull(f"no room to write {path} ({error.strerror}): make some, try again") from error
        raise


def _taken(path: Path) -> InvalidRequest:
    return InvalidRequest(f"{path} has the texts of an earlier call: name another `out`, or delete it")
