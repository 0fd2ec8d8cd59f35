"""The store of indexes: a folder at a URL that fsspec opens, as in S3."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, Self

from shoal.contract.excerpt import excerpt
from shoal.errors import BadSetting, FileError, MissingExtra, ShoalError, Unavailable
from shoal.process.extra import install_command

#: Bytes that are read or written at a time. A file in S3 has at most 10,000 parts of that size.
PIECE_BYTES = 2**24

#: The store in messages, which do not have its address.
STORE = "the store of indexes"


class IndexStore:
    """A folder in a store, and the files below it, which are named by their paths from there.

    Every error is a ShoalError, without the address and the text of the store's own error, which may have a password.
    """

    def __init__(self, filesystem: Any, root: str):
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the folder at a URL. Raises MissingExtra, BadSetting, FileError or Unavailable."""
        check_protocol(url)
        from fsspec.core import url_to_fs

        with _translated(STORE, "opened"):
            filesystem, root = url_to_fs(url)
        return cls(filesystem, root)

    def list_names(self) -> list[str]:
        """Return the names of the folders and files in the folder of the store; none if there is no such folder."""
        with _translated(STORE, "listed"), suppress(FileNotFoundError):
            self._filesystem.invalidate_cache()
            return [path.rstrip("/").rpartition("/")[2] for path in self._filesystem.ls(self._root, detail=False)]
        return []

    def read_small(self, path: str, max_bytes: int) -> bytes | None:
        """Return the contents of a small file; None if there is none. Raises FileError for a larger one."""
        with _translated(shown(path), "read"):
            try:
                data = bytes(self._filesystem.cat_file(self._at(path), start=0, end=max_bytes + 1))
            except (FileNotFoundError, NotADirectoryError):
                return None
        if len(data) > max_bytes:
            raise FileError(f"{shown(path)} has more than {max_bytes:,} bytes: build the index again")
        return data

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is none."""
        with _translated(shown(path), "read"):
            self._filesystem.invalidate_cache()
            try:
                return int(self._filesystem.info(self._at(path))["size"])
            except FileNotFoundError:
                return None

    def read(self, path: str, size_bytes: int) -> Iterator[bytes]:
        """Yield the contents of a file, piece by piece, up to a size."""
        with _translated(shown(path), "read"), self._open(path, "rb") as file:
            while size_bytes > 0 and (piece := file.read(min(PIECE_BYTES, size_bytes))):
                size_bytes -= len(piece)
                yield piece

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file. A ShoalError that `pieces` raises is raised on; the file may then be incomplete."""
        with _translated(shown(path), "written"), self._open_to_write(path) as file:
            for piece in pieces:
                file.write(piece)

    def remove(self, path: str, *, is_folder: bool = False) -> None:
        """Remove a file, or a folder with all that is in it; nothing is done if there is none."""
        with _translated(shown(path), "removed"), suppress(FileNotFoundError):
            self._filesystem.rm(self._at(path), recursive=is_folder)

    def _open_to_write(self, path: str) -> Any:
        """Open a file for writing, in folders that are made for it where a store has folders."""
        try:
            return self._open(path, "wb")
        except FileNotFoundError:
            for folder in reversed(PurePosixPath(path).parents[:-1]):
                with suppress(FileExistsError):
                    self._filesystem.mkdir(self._at(str(folder)), create_parents=False)
            return self._open(path, "wb")

    def _open(self, path: str, mode: str) -> Any:
        return self._filesystem.open(self._at(path), mode, block_size=PIECE_BYTES)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def shown(path: str) -> str:
    """Return a file of the store in words."""
    return f"{path} in {STORE}"


def check_protocol(url: str) -> None:
    """Raise MissingExtra unless the packages are installed that open a URL, and BadSetting if there are none."""
    protocol = url.partition("://")[0]
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise MissingExtra(f"index_store needs fsspec; run: {install_command('remote')}") from None
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingExtra(f"index_store is a {protocol}:// URL, which needs a package ({error!s:.200})") from None
    except ValueError:
        raise BadSetting(f"index_store is a {excerpt(protocol)} URL, a protocol that fsspec does not know") from None


@contextmanager
def _translated(place: str, done: str) -> Iterator[None]:
    """Turn the errors of a store into ShoalErrors without their text and their cause."""
    try:
        yield
    except ShoalError:
        raise
    except FileNotFoundError:
        raise FileError(f"{place} cannot be {done}: there is no such file, folder or bucket") from None
    except PermissionError:
        raise FileError(f"{place} cannot be {done}, as it refuses: check the credentials") from None
    except Exception as error:
        raise Unavailable(
            f"{place} cannot be {done} ({type(error).__name__}): check that it answers, and the credentials"
        ) from None
