"""Uploading an index to the store, from which workers on other machines copy it.

<name>/<version>/…       the files of a version that have a checksum, and after them its manifest
<name>/current           the name of the version to serve, and a line feed, written after all files of the version

Versions never change. The folder of the index has a file of the names that it has uploaded: only these are removed.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from shoal.contract.keys import NAME
from shoal.errors import IndexCorrupt, IndexNotFound, ShoalError, Unavailable
from shoal.index_folder import CURRENT
from shoal_workers.index.files.manifest import MANIFEST
from shoal_workers.index.store.store import PIECE_BYTES, IndexStore, shown
from shoal_workers.index.versions import Version, list_versions

log = logging.getLogger(__name__)

#: The file with the names of the versions that were uploaded, or begun to be, one a line. Its lock is that of uploads.
UPLOADED = ".uploaded"

#: Largest manifest, and largest file `current`.
MAX_MANIFEST_BYTES, MAX_CURRENT_BYTES = 2**20, 256

_WAIT_S = 0.2


def upload(
    folder: Path, store: IndexStore, tick: Callable[[], None], *, is_published: bool, is_anew: bool = False
) -> None:
    """Bring the store to what the folder of an index says, and call `tick` often.

    The current version goes first, then the file `current`, then the others. A version of another machine goes on to be
    served unless one of this folder `is_published` just now. With `is_anew` files that the store has are written again,
    as they may be damaged there. Versions that were removed from the folder are removed from the store. One upload of
    an index runs at a time on a machine. Raises IndexCorrupt for a current version that is damaged, and the errors of
    the store.
    """
    name = folder.name
    with _locked(folder / UPLOADED, tick) as file:
        uploaded = file.read().split()
        versions = sorted(list_versions(folder), key=lambda version: not version.is_current)
        names = [version.name for version in versions]
        _save(file, [*names, *uploaded])
        is_ours = is_published or _served(name, store) in ("", *names, *uploaded)
        for version in versions:
            tick()
            if _upload_version(version, store, tick, is_anew) and version.is_current and is_ours:
                store.write(f"{name}/{CURRENT}", [f"{version.name}\n".encode()])
        removed = [other for other in dict.fromkeys(uploaded) if other not in names]
        served = _served(name, store)
        for other in removed:
            if other != served:  # which another machine may have published
                store.remove(f"{name}/{other}/{MANIFEST}")
                store.remove(f"{name}/{other}", is_folder=True)
        _save(file, [*names, *(other for other in removed if other == served)])


def upload_missing(home: Path, store: IndexStore, tick: Callable[[], None]) -> None:
    """Upload each index in a folder that the store lacks, as those are that were built before there was a store.

    An index that cannot be uploaded is logged, and holds up no other.
    """
    for folder in sorted(path.parent for path in home.glob(f"*/{CURRENT}")):
        try:
            if is_index_name(folder.name) and not _served(folder.name, store):
                upload(folder, store, tick, is_published=False)
                log.info("index %s: uploaded to the store, which had none of that name", folder.name)
        except (ShoalError, OSError) as error:
            log.warning("index %s is not uploaded to the store: %s", folder.name, error)


def is_index_name(name: str) -> bool:
    """Return True for the name of a folder that can be an index of the store."""
    return NAME.fullmatch(name) is not None and not name.startswith(".")


def _served(name: str, store: IndexStore) -> str:
    """Return the version that the store says to serve, or an empty text."""
    return (store.read_small(f"{name}/{CURRENT}", MAX_CURRENT_BYTES) or b"").decode("utf-8", "replace").strip()


def _upload_version(version: Version, store: IndexStore, tick: Callable[[], None], is_anew: bool) -> bool:
    """Upload the files of a version that the store lacks, or all of them, and then its manifest.

    Returns False if that cannot be done, as the version is removed meanwhile, or is no current one and damaged.
    """
    if version.manifest is None:
        if version.is_current:
            raise IndexCorrupt(version.error or f"{version.folder} cannot be read")
        return False
    where = f"{version.folder.parent.name}/{version.name}"
    try:
        manifest = (version.folder / MANIFEST).read_bytes()
        if not is_anew and store.read_small(f"{where}/{MANIFEST}", MAX_MANIFEST_BYTES) == manifest:
            return True
        for name, checksum in version.manifest.checksums.items():
            size = (version.folder / name).stat().st_size
            if is_anew or store.size(f"{where}/{name}") != size:
                store.write(f"{where}/{name}", _pieces(version.folder / name, checksum, tick))
                if (found := store.size(f"{where}/{name}")) != size:
                    raise Unavailable(f"{shown(f'{where}/{name}')} has {found} bytes after {size:,} were written")
        store.write(f"{where}/{MANIFEST}", [manifest])
    except (FileNotFoundError, IndexNotFound):
        if (version.folder / MANIFEST).exists():
            raise
        return False
    return True


def _pieces(path: Path, checksum: str, tick: Callable[[], None]) -> Iterator[bytes]:
    """Yield the contents of a file. Raises IndexCorrupt before its last piece if it has another checksum."""
    digest, piece = hashlib.sha256(), b""
    try:
        with path.open("rb") as file:
            while following := file.read(PIECE_BYTES):
                digest.update(following)
                if piece:
                    yield piece
                piece = following
                tick()
    except OSError as error:
        raise IndexNotFound(f"{path} cannot be read ({error.strerror}): build the index again") from error
    if digest.hexdigest() != checksum:
        raise IndexCorrupt(f"{path} is not what was built, so it is not uploaded: build the index again")
    yield piece


@contextmanager
def _locked(path: Path, tick: Callable[[], None]) -> Iterator[TextIO]:
    """Open a file for reading and writing, and lock it as soon as no other process has it."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tick()
                time.sleep(_WAIT_S)
        yield file


def _save(file: TextIO, names: list[str]) -> None:
    """Replace the names in a file. The file is cut last, so that an interruption loses none of them."""
    file.seek(0)
    file.write("".join(f"{name}\n" for name in dict.fromkeys(names)))
    file.truncate()
