"""The versions that a worker serves, each open or not."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from shoal.errors import IndexCorrupt, ShoalError
from shoal_workers.index.files.checksums import FileCheck
from shoal_workers.index.files.columns import Columns
from shoal_workers.index.files.manifest import Manifest
from shoal_workers.index.index import Index, check_model
from shoal_workers.model.model import Model

#: Fields of the manifest that a description contains.
_DESCRIBED = (
    *("version", "built_at", "model", "digest", "fingerprint"),
    *("dimension", "prompt", "language", "ids_are_positions"),
)

#: Largest number of documents' fields in a description, and largest number of characters in all their names.
MAX_FIELDS, MAX_NAME_CHARS = 100, 4_096


def without_folder(error: ShoalError, name: str, folder: Path) -> ShoalError:
    """Return a copy of an error of the index `name`, with the name in place of the folder, which clients must not see.

    It is a copy, because the frames of the error itself would keep files of the version open.
    """
    message = error.message
    for path in (folder, folder.resolve()):
        message = message.replace(str(path), name)
    return type(error)(message)


def description_of(index: Index) -> dict[str, Any]:
    """Return the description of an opened version for the worker's heartbeat, including the changes since its build."""
    live = index.live
    return _described(index.manifest, index.columns.kinds, index.count, len(live.changed), live.position)


def _described(
    manifest: Manifest, kinds: Mapping[str, str], count: int, num_changes: int, changes_through: str
) -> dict[str, Any]:
    """Return the description of a version, with the kinds of its first fields up to the limits."""
    fields: dict[str, str] = {}
    num_chars = 0
    for name, kind in kinds.items():
        num_chars += len(name)
        if len(fields) == MAX_FIELDS or num_chars > MAX_NAME_CHARS:
            break
        fields[name] = kind
    named = {name: getattr(manifest, name) for name in _DESCRIBED}
    changes = {"num_changes": num_changes, "changes_through": changes_through}
    engine = manifest.engine.partition(":")[0]
    return {"count": count, **named, **changes, "engine": engine, "fields": fields}


class Failure(NamedTuple):
    """The reason, for clients, why a version is not served, and the time of the next try, on the monotonic clock.

    `version` is the folder of the version; None if the index does not name a current version.
    """

    error: ShoalError
    version: Path | None
    retry_at: float


class ServedVersion:
    """The version in `folder` that a worker serves as the index `name`, open or not. Thread-safe.

    `open_version` opens it, in a thread of `openers`. `failure` says why it must not be searched, and is None if it may
    be. `check_at`, on the monotonic clock, is the time of the next check of its files. `check` is the last check, which
    can continue where it stopped. Raises IndexCorrupt for a version without one of its files, and IndexMismatch for a
    version of another model.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        model: Model,
        open_version: Callable[[str, Path], Index],
        openers: Executor,
    ):
        self.name, self.folder = name, folder
        self._open_version, self._openers, self._lock = open_version, openers, Lock()
        self._opening: Future[Index] | None = None
        self.manifest = Manifest.read(folder)
        check_model(folder, self.manifest, model)
        for file in self.manifest.checksums:
            if not (folder / file).is_file():
                raise IndexCorrupt(f"{folder / file} cannot be read (there is no such file): build the index again")
        self.failure: Failure | None = None
        self.check_at = 0.0
        self.check: FileCheck | None = None
        kinds, position = Columns.without_rows(folder).kinds, self.manifest.changes_through
        self._first_description = _described(self.manifest, kinds, self.manifest.count, 0, position)

    def use(self) -> "Future[Index]":
        """Return the future of the opened version; open it if it is not open, also after an error of opening."""
        with self._lock:
            if not self._opening or not self.is_used:
                self._opening = self._openers.submit(self._open_version, self.name, self.folder)
            return self._opening

    def keep(self, index: Index) -> None:
        """Use this opened version from now on."""
        (opened := Future[Index]()).set_result(index)
        with self._lock:
            self._opening = opened

    @property
    def is_used(self) -> bool:
        """True if the version is open or is being opened."""
        opening = self._opening
        return opening is not None and not (opening.done() and opening.exception())

    @property
    def opened(self) -> Index | None:
        """The opened version; None if it is not open."""
        opening = self._opening
        return opening.result() if opening and opening.done() and not opening.exception() else None

    @property
    def description(self) -> dict[str, Any]:
        """The description of the version in the worker's heartbeat."""
        index = self.opened
        return description_of(index) if index else self._first_description

    @property
    def fault(self) -> str:
        """The reason why the version or some of its changes cannot be searched; empty if all can be searched."""
        index, failure = self.opened, self.failure
        return failure.error.message if failure else index.change_fault if index else ""

    def must_open_at(self, position: str) -> bool:
        """Return True if the version is not open, and the log has changes after its build, up to `position`."""
        return not self.is_used and not self.failure and position != self.manifest.changes_through

    def withdraw(self, failure: Failure) -> None:
        """Record a failure, and forget the opened version: its memory is freed when the last search in it ends."""
        self.failure = failure
        with self._lock:
            self._opening = None
