"""The file of a source, on this machine, on a web server or in a store that fsspec opens, and rules for its place."""

import io
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, FileError, InvalidRequest, MissingExtra, PathNotAllowed, ShoalError
from shoal.job_folders import JOBS
from shoal.process.extra import install_command
from shoal.process.private_network import without_query
from shoal.records.web_file import WebFile
from shoal.settings import Settings

#: Number of bytes that are read at a time.
BLOCK_BYTES = 256 * 1024

#: Beyond the first `FREE_BYTES` of rows, each byte of a file may unpack to at most `MAX_EXPANSION` bytes of rows: a KiB
#: of Arrow can unpack to a TiB. Each row counts `ROW_BYTES` more than its values.
MAX_EXPANSION, FREE_BYTES, ROW_BYTES = 250, 2**30, 150


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules for the place of a source, from the settings of the process that opens it.

    A web address in a private network is refused if its host is not one of `private_hosts`. A redirect from a URL below
    the `root_urls` must lead below one of the `root_urls`, and a link below the `root_folders` must lead below one of
    the `root_folders`. The folder of `uploads` and all folders below it are refused.
    """

    private_hosts: Collection[str] = ()
    root_urls: Collection[str] = ()
    root_folders: Collection[Path] = ()
    uploads: Path | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rules in the settings. Raises BadSetting for a root that is neither a folder nor a URL."""
        uploads = settings.files_folder / JOBS
        return cls(settings.private_host_names(), settings.root_urls(), settings.root_folders(), uploads.resolve())

    def is_closed(self, folder: Path | str) -> bool:
        """Return True for the folder of uploads, and for any folder below it."""
        return self.uploads is not None and Path(folder).resolve().is_relative_to(self.uploads)


class SourceFile:
    """An open file, with its bytes as they are stored.

    `size_bytes` is None if the size is unknown. `modified` is a time in nanoseconds, a string from the server, or "".
    `fraction` returns the share that was read. A reader that does not read from beginning to end replaces this
    function.
    """

    def __init__(self, stream: "io.BufferedReader[Any]", size_bytes: int | None, modified: int | str):
        self.stream = stream
        self.size_bytes = size_bytes
        self.modified = modified
        self.fraction: Callable[[], float | None] = self._fraction_of_bytes
        self._num_unpacked = 0

    def count_unpacked(self, num_rows: int, num_bytes: int, where: str) -> None:
        """Count rows that a reader has unpacked. Raises BadDocument if all rows are too large for the file's size."""
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
        return min(self.stream.tell() / self.size_bytes, 1.0) if self.size_bytes else None


def is_url(path: str) -> bool:
    """Return True for any URL except file://."""
    return "://" in path and not path.startswith("file://")


def path_of(name: str) -> str:
    """Return the path in a file:// URL. Any other name is returned unchanged."""
    return unquote(name.removeprefix("file://")) if name.startswith("file://") else name


def name_of(path: str) -> str:
    """Return the name of the file at a path or URL, without folders."""
    return shown(path).rpartition("/")[2]


def shown(path: str) -> str:
    """Return a path as a message shows it: a URL without its query, which may have secrets."""
    return without_query(path) if is_url(path) else path


@contextmanager
def open_file(path: str, rules: SourceRules) -> Iterator[SourceFile]:
    """Open a file for reading.

    Raises InvalidRequest or FileError if it cannot be read, AddressNotAllowed if the web address is in a private
    network and the rules do not name its host, PathNotAllowed if a redirect or a link leads from below a root to a
    place outside the roots, and MissingExtra for a URL that needs a package which is not installed.
    """
    if is_url(path) and path.partition("://")[0].lower() in ("http", "https"):
        with closing(WebFile(path, rules.private_hosts, rules.root_urls)) as web:
            yield SourceFile(io.BufferedReader(web, BLOCK_BYTES), web.size_bytes, web.modified)
        return
    if is_url(path):
        with closing(_StoredFile(path)) as stored:
            yield SourceFile(io.BufferedReader(stored, BLOCK_BYTES), stored.size_bytes, stored.modified)
        return
    try:
        with io.BufferedReader(io.FileIO(path), BLOCK_BYTES) as stream:
            named, roots = Path(os.path.abspath(path)), [folder.resolve() for folder in rules.root_folders]
            # Someone may put a link below a root at any time. Only Linux shows where an open file is.
            if sys.platform == "linux" and any(named.is_relative_to(root) for root in roots):
                found = Path(os.readlink(f"/proc/self/fd/{stream.fileno()}"))
                if not any(found.is_relative_to(root) for root in roots):
                    raise PathNotAllowed(
                        f"{path} is a link to a file that is below none of the folders that long jobs may use: name "
                        "that file itself, or add its folder to SHOAL_ROOTS"
                    )
            about = os.fstat(stream.fileno())
            yield SourceFile(stream, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read ({error.strerror or error}): check its name and permissions"
        ) from error


class _StoredFile(io.RawIOBase):
    """A file in a store that fsspec opens. The store may raise any error, which this class turns into FileError."""

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
        """Go to a position and return it."""
        self._file.seek(offset, whence)
        return self.tell()  # over SFTP, the `seek` of the store returns None

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer and return the number of bytes, which is 0 at the end of the file."""
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
