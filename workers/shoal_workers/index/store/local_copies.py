"""This machine's copies of the indexes in a store, which its workers serve.

index-copies/<name>/                      an index as a build leaves it, with the current version and the one before
index-copies/<name>/.download-<version>/  a version that is not complete yet
index-copies/<name>/.damaged              made by a worker that found the copy damaged: it is compared again
index-copies/.errors.json                 the reasons why copies differ from the store, by the names of indexes
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shoal.errors import DiskFull, FileError, IndexCorrupt, IndexNotFound, ShoalError
from shoal.index_folder import CURRENT
from shoal_workers.index.files.durable_file import replace_file, sync_folder
from shoal_workers.index.files.manifest import MANIFEST, Manifest, checksum
from shoal_workers.index.index import FOLDER_NAME
from shoal_workers.index.store.store import (
    MAX_CURRENT_BYTES,
    MAX_MANIFEST_BYTES,
    STORE,
    IndexStore,
    is_index_name,
    shown,
)
from shoal_workers.index.versions import changing, current_name, make_current, remove_old

log = logging.getLogger(__name__)

#: The file with the reasons why copies differ from the store, keyed by index name.
ERRORS = ".errors.json"

#: The file by which a worker reports that a copy is damaged.
DAMAGED = ".damaged"

#: Start of the name of a folder with a version that is not complete yet.
DOWNLOAD = ".download-"

#: Number of versions that stay: the current one, to which workers may still be switching, and the version before it.
NUM_KEPT = 2

#: Time after which a failed copy of a version is tried again, in seconds. After a wrong checksum, the time doubles for
#: each try, up to the second number: such a copy costs much, while a file that is only late arrives soon.
RETRY_AFTER_S, MAX_RETRY_AFTER_S = 10.0, 3_600.0

#: The remedy for a damaged store, in messages.
_REMEDY = "run `shoal index upload` with the index's name where it was built"

#: Time after which the copy of an index that is no longer in the store is removed, in seconds.
GONE_AFTER_S = 60.0


class _Failure(NamedTuple):
    """The reason why a version is not copied, and the time of the next try, on the monotonic clock.

    `version` is None if the store does not name a current version.
    """

    version: str | None
    message: str
    pause_s: float
    retry_at: float


class Copies:
    """The copies of all indexes in a store, in a folder of this machine.

    One process at a time may use them. It may be killed at any moment: a version appears only when it is complete.
    """

    def __init__(self, store: IndexStore, folder: Path):
        self._store = store
        self._folder = folder
        self._failures: dict[str, _Failure] = {}
        self._gone_since: dict[str, float] = {}
        self._was_empty = False

    def look(self, now: float) -> None:
        """Make the copies equal to the store. `now` is on the monotonic clock.

        If an index cannot be copied, its copy keeps its version, and the file of errors has the reason. If the store is
        empty, all indexes keep their versions. Raises FileError or Unavailable if the store cannot be listed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        there, here = self._store.sizes(), copied_names(self._folder)
        names = sorted(filter(is_index_name, {*there, *here})) if there else []
        for name in names:
            self._bring(name, now)
        self._failures = {name: failure for name, failure in self._failures.items() if name in names}
        errors = {name: failure.message for name, failure in self._failures.items()}
        if not there:
            message = f"{STORE} has no indexes: check its address, or build one"
            errors = dict.fromkeys(here, message)
            if not self._was_empty:
                log.warning("%s", message)
        self._was_empty = not there
        save_errors(self._folder, errors)

    def _bring(self, name: str, now: float) -> None:
        """Make one copy equal to the store, or note why that fails."""
        version, former = None, self._failures.get(name)
        try:
            data = self._store.read_small(f"{name}/{CURRENT}", MAX_CURRENT_BYTES)
            if data is None:
                self._remove_if_gone(name, now)
            else:
                text = data.decode("utf-8", "replace")
                if not text.endswith("\n") or not FOLDER_NAME.fullmatch(text[:-1]):  # the line feed is written last
                    place = shown(f"{name}/{CURRENT}")
                    raise IndexCorrupt(f"{place} does not name a version: if that stays so, publish a version again")
                version = text[:-1]
                if former and former.version == version and now < former.retry_at:
                    return
                self._update(name, version)
        except ShoalError as error:
            pause_s = RETRY_AFTER_S
            if former and former.version == version and isinstance(error, IndexCorrupt):
                pause_s = min(2 * former.pause_s, MAX_RETRY_AFTER_S)
            if not former or former.message != error.message:
                log.warning("index %s: %s", name, error.message)
            self._failures[name] = _Failure(version, error.message, pause_s, now + pause_s)
        else:
            self._failures.pop(name, None)
        if version is not None:
            self._gone_since.pop(name, None)

    def _remove_if_gone(self, name: str, now: float) -> None:
        """Remove the copy of an index that has been missing from the store for a while."""
        if now - self._gone_since.setdefault(name, now) < GONE_AFTER_S:
            return
        self._gone_since.pop(name)
        if (self._folder / name).exists():
            (self._folder / name / CURRENT).unlink(missing_ok=True)
            shutil.rmtree(self._folder / name, ignore_errors=True)
            log.info("index %s: its copy is removed, as the store has no such index", name)

    def _update(self, name: str, version: str) -> None:
        """Switch a copy to a version, which is downloaded if it is missing; or repair a damaged copy.

        Raises IndexCorrupt if a damaged copy equals the store, so that the repair is not soon tried again.
        """
        folder = self._folder / name
        is_current = version == current_name(folder)
        if is_current and not (folder / DAMAGED).exists():
            return
        try:
            num_bytes = 0
            if is_current or not (folder / version / MANIFEST).is_file():
                num_bytes = self._download(name, version)
            if not is_current:
                with changing(folder):
                    make_current(folder, version)
                    remove_old(folder, version, NUM_KEPT)
            (folder / DAMAGED).unlink(missing_ok=True)
            for scratch in folder.glob(f"{DOWNLOAD}*"):
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            if error.errno not in DiskFull.ERRNOS:
                raise FileError(f"{folder} cannot be written ({error.strerror}): check its permissions") from error
            shutil.rmtree(folder / f"{DOWNLOAD}{version}", ignore_errors=True)
            raise DiskFull(f"no room to copy a version into {folder} ({error.strerror}): free some space") from error
        if is_current and not num_bytes:
            raise IndexCorrupt(
                f"version {version} was found damaged, and is as {STORE} has it: if it is not served, build the index "
                "again"
            )
        log.info("index %s: version %s is copied from the store", name, version)

    def _download(self, name: str, version: str) -> int:
        """Download the files of a version that are missing or wrong here; return the number of bytes downloaded."""
        folder, where = self._folder / name, f"{name}/{version}"
        scratch = folder / f"{DOWNLOAD}{version}"
        for other in folder.glob(f"{DOWNLOAD}*"):
            if other != scratch:
                shutil.rmtree(other, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
        for file in (folder / version).glob("*"):
            with suppress(OSError):  # a file that cannot be linked is downloaded
                os.link(file, scratch / file.name)
        manifest, there = self._manifest(scratch, where), self._store.sizes(where)
        sizes: dict[str, int] = {}
        for file_name, expected in manifest.checksums.items():
            if not (scratch / file_name).exists() or checksum(scratch / file_name, self._store.tick) != expected:
                if file_name not in there:
                    raise IndexCorrupt(f"{shown(f'{where}/{file_name}')} is missing: {_REMEDY}")
                sizes[file_name] = there[file_name]
        if (needed := sum(sizes.values())) > (free := shutil.disk_usage(folder).free):
            raise DiskFull(
                f"the version to copy takes {needed:,} bytes, and {folder} has {free:,} free: free some space"
            )
        for file_name, size in sizes.items():
            self._download_file(f"{where}/{file_name}", scratch / file_name, size, manifest.checksums[file_name])
        sync_folder(scratch)
        shutil.rmtree(folder / version, ignore_errors=True)
        scratch.rename(folder / version)
        sync_folder(folder)
        return needed

    def _manifest(self, scratch: Path, where: str) -> Manifest:
        data = self._store.read_small(f"{where}/{MANIFEST}", MAX_MANIFEST_BYTES)
        if data is None:
            raise IndexNotFound(f"{shown(where)} is to be served, and is not there: publish it again")
        replace_file(scratch / MANIFEST, data.decode("utf-8", "replace"))
        manifest = Manifest.read(scratch)
        if manifest.version != Path(where).name:
            raise IndexCorrupt(f"{shown(where)} is another version by its manifest: build the index again")
        return manifest

    def _download_file(self, path: str, to: Path, size: int, expected: str) -> None:
        digest = hashlib.sha256()
        # Removed and not overwritten, because workers may have mapped a damaged file into memory.
        to.unlink(missing_ok=True)
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


def copied_names(folder: Path) -> set[str]:
    """Return the names of the indexes with a complete or incomplete copy in the folder of copies."""
    return {path.name for path in folder.iterdir() if path.is_dir() and is_index_name(path.name)}


def read_errors(folder: Path) -> dict[str, str]:
    """Return the reasons why copies differ from the store, keyed by index name."""
    try:
        errors = json.loads((folder / ERRORS).read_bytes())
        return {str(name): str(message) for name, message in errors.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def save_errors(folder: Path, errors: Mapping[str, str]) -> None:
    """Write the reasons why copies differ, if they changed. If the disk is full, only the log has the reasons."""
    if errors != read_errors(folder):
        with suppress(OSError):
            replace_file(folder / ERRORS, json.dumps(errors))


def report_damage(folder: Path, name: str) -> None:
    """Ask for the files of an index's copy to be compared with the store again. Without a copy, do nothing."""
    with suppress(OSError):
        (folder / name / DAMAGED).touch()
