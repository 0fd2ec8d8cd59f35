"""The store of indexes: a folder to which versions are uploaded, at a URL that fsspec opens, such as a URL of S3.

<name>/<version>/…       the files of a version that have a checksum, then its manifest
<name>/current           the name of the version to serve, and a line feed, written after the version

Versions never change. An upload makes the folder of an index in the store equal to the folder on the machine.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

from shoal.contract.excerpt import excerpt
from shoal.contract.keys import NAME
from shoal.errors import BadSetting, FileError, IndexCorrupt, MissingExtra, ShoalError, Unavailable
from shoal.index_folder import CURRENT
from shoal.process.durable_file import locked
from shoal.process.extra import install_command
from shoal_workers.index.files.manifest import MANIFEST
from shoal_workers.index.versions import Version, list_versions

#: Number of bytes that are read or written at a time. A file in S3 has at most 10,000 parts of this size.
PIECE_BYTES = 2**24

#: Largest manifest and largest file `current`, in bytes.
MAX_SMALL_BYTES = 2**20

#: A file in the folder of an index. An upload holds a lock on it.
LOCK = ".uploading"

#: The words for the store in messages, which must not contain its address.
STORE = "the store of indexes"


class IndexStore:
    """A store of indexes. Its files are named by their paths inside the folder of the store.

    `tick` is called at every step. Every error is a ShoalError without the store's address and without the text of the
    original error, because these may contain a password.
    """

    def __init__(self, filesystem: Any, root: str, tick: Callable[[], None]):
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self.tick = tick

    @classmethod
    def open(cls, url: str, tick: Callable[[], None] = lambda: None) -> Self:
        """Open the folder at a URL. Raises MissingExtra, BadSetting, FileError or Unavailable."""
        check_protocol(url)
        from fsspec.core import url_to_fs

        with _translated(STORE, "opened"):
            filesystem, root = url_to_fs(url)
        return cls(filesystem, root, tick)

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the size of each file in a folder, keyed by name, and 0 for folders; nothing for a missing folder."""
        self.tick()
        with _translated(shown(path) if path else STORE, "listed"), suppress(FileNotFoundError):
            self._filesystem.invalidate_cache()
            found = self._filesystem.ls(f"{self._root}/{path}".rstrip("/"), detail=True)
            return {about["name"].rstrip("/").rpartition("/")[2]: int(about.get("size") or 0) for about in found}
        return {}

    def read_small(self, path: str) -> bytes | None:
        """Return the contents of a small file; None if there is no such file. Raises FileError for a larger one."""
        self.tick()
        with _translated(shown(path), "read"):
            try:
                data = bytes(self._filesystem.cat_file(f"{self._root}/{path}", start=0, end=MAX_SMALL_BYTES + 1))
            except (FileNotFoundError, NotADirectoryError):
                return None
        if len(data) > MAX_SMALL_BYTES:
            raise FileError(f"{shown(path)} has more than {MAX_SMALL_BYTES:,} bytes: build the index again")
        return data

    def read(self, path: str, max_bytes: int) -> Iterator[bytes]:
        """Yield the contents of a file, piece by piece, up to `max_bytes` bytes."""
        with _translated(shown(path), "read"), self._open(path, "rb") as file:
            while max_bytes > 0 and (piece := file.read(min(PIECE_BYTES, max_bytes))):
                max_bytes -= len(piece)
                self.tick()
                yield piece

    def write(self, path: str, source: IO[bytes]) -> None:
        """Write a file; in a store with folders, make the folders for it, but not the folder of the store."""
        with _translated(shown(path), "written"):
            try:
                file = self._open(path, "wb")
            except FileNotFoundError:
                for folder in [*Path(path).parents][-2::-1]:
                    with suppress(FileExistsError):
                        self._filesystem.mkdir(f"{self._root}/{folder}", create_parents=False)
                file = self._open(path, "wb")
            with file:
                while piece := source.read(PIECE_BYTES):
                    self.tick()
                    file.write(piece)

    def remove(self, folder: str) -> None:
        """Remove a folder with its contents."""
        with _translated(shown(folder), "removed"), suppress(FileNotFoundError):
            self._filesystem.rm(f"{self._root}/{folder}", recursive=True)

    def _open(self, path: str, mode: str) -> Any:
        return self._filesystem.open(f"{self._root}/{path}", mode, block_size=PIECE_BYTES)


def shown(path: str) -> str:
    """Return the path of a file of the store for messages."""
    return f"{path} in {STORE}"


def is_index_name(name: str) -> bool:
    """Return True if an index in the store can have this name."""
    return NAME.fullmatch(name) is not None and not name.startswith(".")


def check_protocol(url: str) -> None:
    """Raise MissingExtra if the packages for a URL are not installed, and BadSetting if no package opens it."""
    protocol = url.partition("://")[0]
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        raise MissingExtra(f"index_store needs fsspec; run: {install_command('s3')}") from None
    if (about := known_implementations.get(protocol)) is None:
        raise BadSetting(f"index_store is a {excerpt(protocol)} URL, a protocol that fsspec does not know")
    if not find_spec(package := about["class"].partition(".")[0]):
        raise MissingExtra(f"index_store is a {protocol}:// URL, which needs the package {package}: install it")


@contextmanager
def _translated(place: str, done: str) -> Iterator[None]:
    """Turn the errors of a store into ShoalErrors that have neither the original texts nor the causes."""
    try:
        yield
    except ShoalError:
        raise
    except FileNotFoundError:
        raise FileError(f"{place} cannot be {done}: there is no such file, folder or bucket") from None
    except PermissionError:
        raise FileError(f"{place} cannot be {done}: access is denied: check the credentials") from None
    except Exception as error:
        raise Unavailable(
            f"{place} cannot be {done} ({type(error).__name__}): check that it answers, and the credentials"
        ) from None


def upload(folder: Path, store: IndexStore, *, is_anew: bool = False) -> None:
    """Make the versions of an index in the store equal to the versions in its folder.

    The current version goes first, then the file `current`, then the other versions; then versions that the folder
    does not have are removed. If `is_anew`, files that the store has are written again, because they may be damaged
    there. On a machine, one upload of an index runs at a time. Raises IndexCorrupt for a damaged current version, and
    the errors of the store.
    """
    name = folder.name
    with locked(folder, LOCK, waiting=store.tick):
        versions = sorted(list_versions(folder), key=lambda version: not version.is_current)
        for version in versions:
            if _upload_version(version, store, is_anew) and version.is_current:
                store.write(f"{name}/{CURRENT}", io.BytesIO(f"{version.name}\n".encode()))
        served = (store.read_small(f"{name}/{CURRENT}") or b"").decode("utf-8", "replace").strip()
        for other in store.sizes(name).keys() - {CURRENT, served, *(version.name for version in versions)}:
            store.remove(f"{name}/{other}")


def _upload_version(version: Version, store: IndexStore, is_anew: bool) -> bool:
    """Upload the files of a version that the store lacks, or all files if `is_anew`, and then its manifest.

    Return False for a version that is removed during the call, or that is damaged and not the current one.
    """
    if version.manifest is None:
        if version.is_current:
            raise IndexCorrupt(version.error or f"{version.folder} cannot be read")
        return False
    where = f"{version.folder.parent.name}/{version.name}"
    try:
        manifest = (version.folder / MANIFEST).read_bytes()
        if not is_anew and store.read_small(f"{where}/{MANIFEST}") == manifest:
            return True
        there = {} if is_anew else store.sizes(where)
        for name in version.manifest.checksums:
            path = version.folder / name
            if there.get(name) == path.stat().st_size:
                continue
            version.manifest.check(version.folder, [name], store.tick)
            with path.open("rb") as file:
                store.write(f"{where}/{name}", file)
        store.write(f"{where}/{MANIFEST}", io.BytesIO(manifest))
    except (FileNotFoundError, IndexCorrupt):
        if (version.folder / MANIFEST).exists():
            raise
        return False
    return True
