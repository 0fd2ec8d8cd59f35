"""The version of an index that a worker serves: known by its manifest, and open while it is searched."""

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import IndexCorrupt, ShoalError
from shoal_workers.index.files.manifest import MANIFEST, Manifest
from shoal_workers.index.index import Index, check_model
from shoal_workers.index.serving.description import described_with_changes, description_of
from shoal_workers.index.serving.lazy_version import LazyVersion, without_folder
from shoal_workers.model.model import Model


class Failure(NamedTuple):
    """The reason why a version of the index `name` in `folder` is not served, and the time of the next try.

    `version` is None if the index does not say which version that is. `retry_at` is on the monotonic clock.
    """

    error: ShoalError
    name: str
    folder: Path
    version: Path | None
    retry_at: float

    @property
    def public_error(self) -> ShoalError:
        """A copy of the error with the name of the index in place of its folder."""
        return without_folder(self.error, self.name, self.folder)


class ServedVersion(LazyVersion):
    """A version that is served. `failure` says why it must not be searched, and is None for one that may be.

    `check_at`, on the monotonic clock, is the time of the next check of its files. Raises IndexCorrupt for a version
    without one of its files, and IndexMismatch for one of another model.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        model: Model,
        open_version: Callable[[str, Path], Index],
        openers: Executor,
    ):
        super().__init__(name, folder, open_version, openers)
        self.manifest = Manifest.read(folder)
        check_model(folder, self.manifest, model)
        for file in self.manifest.files:
            if not (folder / file).is_file():
                raise IndexCorrupt(f"{folder / file} cannot be read (there is no such file): build the index again")
        self.failure: Failure | None = None
        self.check_at = 0.0
        self._closed = description_of(folder, self.manifest)
        self._seen = self.manifest.changes_through

    @property
    def description(self) -> dict[str, Any]:
        """Its description in a heartbeat."""
        index = self.opened
        return described_with_changes(index) if index else self._closed

    @property
    def fault(self) -> str:
        """The reason why it, or some of its changes, are not searched; empty if all are."""
        index = self.opened
        return self.failure.public_error.message if self.failure else index.change_fault if index else ""

    def is_to_follow(self, position: str) -> bool:
        """Note that the log of its changes has come to a position; return True if it has to be opened for these.

        Changes of one that is open are applied anyway.
        """
        if not self.is_used:
            return position != self._seen and not self.failure
        self._seen = position
        return False

    def withdraw(self, failure: Failure) -> None:
        """Let no search begin in it from now on."""
        self.failure = failure
        self.close()

    def repair(self, index: Index, now: float) -> None:
        """Let it be searched again, in a version that was opened anew."""
        self.keep(index, now)
        self.failure = None

    def close_unused(self, now: float, idle_s: float) -> bool:
        """Close it if it was not used for `idle_s` and can be opened again; return True if it was closed."""
        index = self.opened
        if index is None or now - self.used_at < idle_s or index.change_fault:
            return False
        if not (self.folder / MANIFEST).exists():  # its files were removed: they are searched as long as it is open
            return False
        self._closed = described_with_changes(index)
        self.close()
        return True
