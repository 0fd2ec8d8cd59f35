"""The opening of versions, with the changes that were made since they were built."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.contract.excerpt import excerpt
from shoal.errors import IndexCorrupt, IndexMismatch
from shoal_workers.index.index import Index
from shoal_workers.index.serving.change_follower import ChangeFollower
from shoal_workers.index.serving.pinned_versions import not_kept
from shoal_workers.index.vectors.search import SearchThreads
from shoal_workers.model.model import Model

log = logging.getLogger(__name__)


class VersionOpener:
    """Opens versions for a worker with a model, and applies the changes that `follower` reads. Thread-safe.

    One thread at a time applies changes: the one that holds the lock `following`.
    """

    def __init__(
        self,
        model: Model,
        threads: SearchThreads,
        follower: ChangeFollower | None = None,
    ):
        self.model = model
        self.following = threading.Lock()
        self._threads = threads
        self._follower = follower

    def open(self, name: str, folder: Path) -> Index:
        """Open a version as it was built, and read what its first search would wait for.

        Raises IndexCorrupt and IndexMismatch.
        """
        started = time.perf_counter()
        index = Index.open_version(folder, self._threads)
        index.check_model(self.model)
        index.warm_up()
        log.info("index %s: opened version %s in %.3f s", name, folder.name, time.perf_counter() - started)
        return index

    def open_with_changes(self, name: str, folder: Path) -> Index:
        """Open a version, and apply all changes. Raises what `open` and `catch_up` do."""
        index = self.open(name, folder)
        with self.following:
            self.catch_up(name, index)
        return index

    def open_pinned(self, name: str, folder: Path) -> Index:
        """Open a version that a cursor names, with all changes. Raises InvalidRequest if it is kept no more."""
        if not folder.is_dir():
            raise not_kept(folder.name)
        try:
            index = self.open_with_changes(name, folder)
            if index.manifest.version != folder.name:
                raise IndexCorrupt(f"{folder} holds version {excerpt(index.manifest.version)}: build the index again")
        except (IndexCorrupt, IndexMismatch) as error:
            log.warning("index %s: %s", name, error.message)
            raise
        return index

    def catch_up(self, name: str, index: Index) -> None:
        """Apply all changes that were made since a version was built; the caller holds `following`.

        Raises Unavailable, Overloaded and IndexCorrupt.
        """
        if self._follower:
            self._follower.catch_up(name, index)

    def follow(self, opened: Sequence[tuple[str, Index]]) -> dict[str, str] | None:
        """Apply the changes of these indexes since the last time; return the position of the last one of each log.

        Return None while Redis is away, or where no changes are followed.
        """
        if not self._follower:
            return None
        with self.following:
            return self._follower.follow(opened)
