"""The file of a source: on this machine, at a web address, or in a store that fsspec opens."""

import hashlib
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, FileError, InvalidRequest, MissingExtra, PathNotAllowed, ShoalError
from shoal.process.extra import install_command
from shoal.process.private_network import without_query
from shoal.records.files.web_file import WebFile
from shoal.records.source_rules import SourceRules

#: Bytes that are read at a time.
BLOCK_BYTES = 256 * 1024

#: Bytes from the beginning of a file by which a change of it is noticed.
FINGERPRINT_BYTES = 2**20

#: Most bytes that a file gives for each of its own, after the first `FREE_BYTES`. A KiB of Arrow can give a TiB.
#: A row counts as `ROW_BYTES` by itself.
MAX_EXPANSION, FREE_BYTES, ROW_BYTES = 250, 2**30, 150

_WEB = ("http", "https")


class SourceFile:
    """An open file, as its bytes are stored. `size_bytes` is None if it is not known; `modified` is "" then.

    `fraction` is the part of it that was read; a reader that does not go from the beginning to the end replaces the
    function that computes it.
    """

    def __init__(self, stream: "io.BufferedReader[Any]", size_bytes: int | None, modified: int | str):
        self.stream = stream
        self.size_bytes = size_bytes
        self.modified = modified
        self.fraction: Callable[[], float | None] = self._fraction_of_bytes
        self._num_unpacked = 0

    def count_unpacked(self, num_rows: int, num_bytes: int, where: str) -> None:
        """Count rows that the file has given. Raises BadDocument if they are too many for its size."""
        self._num_unpacked += num_rows * ROW_BYTES + num_bytes
        if self._num_unpacked > FREE_BYTES:
            size_bytes = self.size_bytes or self.stream.tell()
            if self._num_unpacked > MAX_EXPANSION * size_bytes:
                raise BadDocument(
                    f"{where}: the {size_bytes:,} bytes of the file give rows of over {self._num_unpacked:,}, more "
                    f"than {MAX_EXPANSION} times as many: if they are right, unpack the file, or cut it into several"
                )

    def _fraction_of_bytes(self) -> float | None:
        if self.stream.closed:
            return 1.0
        if not self.size_bytes:
            return None
        return min(self.stream.tell() / self.size_bytes, 1.0)


def is_url(path: str) -> bool:
    """Return True for a URL of any kind but file://."""
    return "://" in path and not path.startswith("file://")


def path_of(name: str) -> str:
    """Return the path of a file:// URL, and any other name as it is."""
    return unquote(name.removeprefix("file://")) if name.startswith("file://") else name


def name_of(path: str) -> str:
    """Return the name of the file at a path or URL, without folders."""
    return shown(path).rpartition("/")[2]


def shown(path: str) -> str:
    """Return a path for a message: a URL without its query."""
    return without_query(path) if is_url(path) else path


@contextmanager
def open_file(path: str, rules: SourceRules) -> Iterator[SourceFile]:
    """Open a file for reading.

    Raises InvalidRequest or FileError if it cannot be read, AddressNotAllowed for a web address in a private network
    that the rules do not name, PathNotAllowed if a redirect or a link leads from below a root out of the roots, and
    MissingExtra for a URL that needs a package which is not installed.
    """
    if not is_url(path):
        with _local(path, rules.root_folders) as file:
            yield file
    elif path.partition("://")[0].lower() in _WEB:
        with closing(WebFile(path, rules.private_hosts, rules.root_urls)) as web:
            yield SourceFile(io.BufferedReader(web, BLOCK_BYTES), web.size_bytes, web.modified)
    else:
        with closing(_StoredFile(path)) as stored:
            yield SourceFile(io.BufferedReader(stored, BLOCK_BYTES), stored.size_bytes, stored.modified)


def fingerprint(path: str, rules: SourceRules) -> dict[str, int | str]:
    """Return the `name`, `size_bytes` (-1 if not known), `modified` and `sha256` by which a change is noticed.

    `modified` is in nanoseconds for a file of this machine, else a word of the server, "" if there is none. The digest
    is that of the first MiB. Raises as `open_file` does.
    """
    with open_file(path, rules) as file:
        return {
            "name": name_of(path),
            "size_bytes": -1 if file.size_bytes is None else file.size_bytes,
            "modified": file.modified,
            "sha256": hashlib.sha256(file.stream.read(FINGERPRINT_BYTES)).hexdigest(),
        }


@contextmanager
def _local(path: str, root_folders: Collection[Path]) -> Iterator[SourceFile]:
    try:
        with io.BufferedReader(io.FileIO(path), BLOCK_BYTES) as stream:
            _check_place(path, stream.fileno(), [folder.resolve() for folder in root_folders])
            about = os.fstat(stream.fileno())
            yield SourceFile(stream, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read ({error.strerror or error}): check its name and permissions"
        ) from error


def _check_place(path: str, descriptor: int, roots: Sequence[Path]) -> None:
    """Raise PathNotAllowed if a file that is named below a root lies elsewhere, as a link may be put there at any time.

    Only Linux tells the place of an open file.
    """
    named = Path(os.path.abspath(path))
    if sys.platform != "linux" or not any(named.is_relative_to(root) for root in roots):
        return
    found = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    if not any(found.is_relative_to(root) for root in roots):
        raise PathNotAllowed(
            f"{path} is a link to a file that is below none of the folders that long jobs may use: name that file "
            "itself, or add its folder to SHOAL_ROOTS"
        )


class _StoredFile(io.RawIOBase):
    """A file in a store that fsspec opens, whose errors are of any kind: here they become FileError."""

    def __init__(self, url: str):
        self._name = excerpt(shown(url))
        if "::" in url:
            raise InvalidRequest(f"{self._name} has a double colon: name one file, not a chain of them")
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingExtra(f"reading {self._name} needs fsspec; run: {install_command('remote')}") from error
        try:
            store, place = url_to_fs(url)
            about = store.info(place)
            self._file: Any = store.open(place, "rb", block_size=4 * BLOCK_BYTES)
        except ImportError as error:
            raise MissingExtra(f"{self._name} cannot be read: {error}") from error
        except FileNotFoundError as error:
            raise InvalidRequest(f"there is no file {self._name}: check its name") from error
        except Exception as error:
            raise self._failure(error) from error
        self.size_bytes: int | None = about.get("size")
        self.modified = str(about.get("ETag") or about.get("LastModified") or about.get("mtime") or "")

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True if the store can go to a position."""
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position, which `seek` does not for a file over SFTP."""
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer and return the number of bytes; 0 at the end of the file."""
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise self._failure(error) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    def _failure(self, error: Exception) -> ShoalError:
        reason = f"{type(error).__name__}: {error}"
        return FileError(f"{self._name} cannot be read ({reason:.200}): check its name and your access")
