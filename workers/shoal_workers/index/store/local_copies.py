"""This machine's copies of the indexes in a store, which its workers serve.

index-copies/<name>/                      an index as a build leaves it, with its current version and the version before
index-copies/<name>/.download-<version>/  a version that is not complete yet
"""

import hashlib
import logging
import os
import shutil
from pathlib import Path

from shoal.errors import DiskFull, FileError, IndexCorrupt, IndexNotFound, ShoalError
from shoal.index_folder import CURRENT
from shoal.process.durable_file import replace_file, sync_folder
from shoal_workers.index.files.manifest import MANIFEST, Manifest
from shoal_workers.index.index import FOLDER_NAME
from shoal_workers.index.store.store import STORE, IndexStore, is_index_name, shown
from shoal_workers.index.versions import changing, current_name, make_current, remove_old

log = logging.getLogger(__name__)

#: Start of the name of a folder with a version that is not complete yet.
DOWNLOAD = ".download-"

#: Number of versions that stay: the current one, to which workers may still be switching, and the version before it.
NUM_KEPT = 2

#: Pauses before a version is copied again, in seconds: after a failure, and after a wrong file, which costs a download.
RETRY_AFTER_S, WRONG_RETRY_AFTER_S = 10.0, 600.0

#: The remedy for a damaged store, in messages.
_REMEDY = "run `shoal index upload` with the index's name where it was built"


class Copies:
    """The copies of all indexes in a store, in a folder of this machine.

    One process at a time may use them. It may be killed at any moment, because a version appears only when it is
    complete. `faults` has the reasons why copies differ from the store, keyed by index name.
    """

    def __init__(self, store: IndexStore, folder: Path):
        self._store = store
        self._folder = folder
        self.faults: dict[str, str] = {}
        self._retry_at: dict[str, tuple[str | None, float]] = {}

    def look(self, now: float) -> None:
        """Make the copies equal to the indexes in the store. `now` is on the monotonic clock.

        If an index cannot be copied, its copy keeps its version, and the reason is logged once. Raises FileError or
        Unavailable if the store cannot be listed, and FileError if it is empty, although there are copies.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        there, here = self._store.sizes(), {path.name for path in self._folder.iterdir() if path.is_dir()}
        if here and not there:
            raise FileError(f"{STORE} has no indexes: check its address, or build one")
        for name in sorted(filter(is_index_name, {*there, *here})):
            self._bring(name, now)

    def _bring(self, name: str, now: float) -> None:
        """Make one copy equal to the store, or log why that fails."""
        version = None
        try:
            if (version := self._current(name)) is None:
                self._remove(name)
            else:
                tried, retry_at = self._retry_at.get(name, (None, 0.0))
                if tried == version and now < retry_at:
                    return
                self._retry_at.pop(name, None)
                self._update(self._folder / name, version)
            self.faults.pop(name, None)
        except ShoalError as error:
            if self.faults.get(name) != error.message:
                log.warning("index %s: %s; its copy is served as it is", name, error.message)
            self.faults[name] = error.message
            is_wrong = version and isinstance(error, IndexCorrupt)
            self._retry_at[name] = version, now + (WRONG_RETRY_AFTER_S if is_wrong else RETRY_AFTER_S)

    def _current(self, name: str) -> str | None:
        """Return the version of an index that the store names; None if the store has no such index."""
        if (data := self._store.read_small(f"{name}/{CURRENT}")) is None:
            return None
        text = data.decode("utf-8", "replace")
        if not text.endswith("\n") or not FOLDER_NAME.fullmatch(text[:-1]):  # a complete file ends with a line feed
            place = shown(f"{name}/{CURRENT}")
            raise IndexCorrupt(f"{place} does not name a version: if that stays so, publish a version again")
        return text[:-1]

    def _remove(self, name: str) -> None:
        """Remove the copy of an index that the store does not have."""
        if (self._folder / name).exists():
            (self._folder / name / CURRENT).unlink(missing_ok=True)
            shutil.rmtree(self._folder / name, ignore_errors=True)
            log.info("index %s: its copy is removed, as the store has no such index", name)

    def _update(self, folder: Path, version: str) -> None:
        """Switch a copy to a version, which is downloaded if it is missing."""
        is_there = (folder / version / MANIFEST).is_file()
        if is_there and version == current_name(folder):
            return
        try:
            if not is_there:
                self._download(folder, version)
            with changing(folder):
                make_current(folder, version)
                remove_old(folder, version, NUM_KEPT)
        except OSError as error:
            if error.errno not in DiskFull.ERRNOS:
                raise FileError(f"{folder} cannot be written ({error.strerror}): check its permissions") from error
            raise DiskFull(f"no room to copy a version into {folder} ({error.strerror}): free some space") from error
        finally:
            for scratch in folder.glob(f"{DOWNLOAD}*"):
                shutil.rmtree(scratch, ignore_errors=True)
        log.info("index %s: version %s is copied from the store", folder.name, version)

    def _download(self, folder: Path, version: str) -> None:
        """Copy a version into a folder of its own, compare its files with their checksums, and rename the folder."""
        scratch, where = folder / f"{DOWNLOAD}{version}", f"{folder.name}/{version}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        manifest, there = self._manifest(scratch, where), self._store.sizes(where)
        if lost := manifest.checksums.keys() - there.keys():
            raise IndexNotFound(f"{shown(f'{where}/{min(lost)}')} is missing: {_REMEDY}")
        needed, free = sum(there[name] for name in manifest.checksums), shutil.disk_usage(folder).free
        if needed > free:
            raise DiskFull(
                f"the version to copy takes {needed:,} bytes, and {folder} has {free:,} free: free some space"
            )
        for name, expected in manifest.checksums.items():
            self._download_file(f"{where}/{name}", scratch / name, there[name], expected)
        sync_folder(scratch)
        shutil.rmtree(folder / version, ignore_errors=True)
        scratch.rename(folder / version)
        sync_folder(folder)

    def _manifest(self, scratch: Path, where: str) -> Manifest:
        data = self._store.read_small(f"{where}/{MANIFEST}")
        if data is None:
            raise IndexNotFound(f"{shown(where)} should be served, and is missing: publish it again")
        replace_file(scratch / MANIFEST, data.decode("utf-8", "replace"))
        manifest = Manifest.read(scratch)
        if manifest.version != Path(where).name:
            raise IndexCorrupt(f"the manifest of {shown(where)} is of another version: build the index again")
        return manifest

    def _download_file(self, path: str, to: Path, size: int, expected: str) -> None:
        digest = hashlib.sha256()
        with to.open("wb") as file:
            for piece in self._store.read(path, size):
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        if (found := digest.hexdigest()) != expected:
            raise IndexCorrupt(
                f"{shown(path)} is not what was built (checksum {found[:8]}…, not {expected[:8]}…): it is tried again "
                f"later; if that stays so, {_REMEDY}"
            )
