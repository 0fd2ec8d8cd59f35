"""Versions of indexes that are not served any more, and are open for searches whose first pages are of them."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from shoal.errors import IndexCorrupt, InvalidRequest
from shoal.excerpt import excerpt
from shoal_workers.index.index import VERSION, Index

#: Time for which a version stays open after a page of it was asked for, in seconds.
PINNED_S = 60.0

#: Most versions that are open: the one that was used least recently is closed for another one.
MAX_PINNED = 4


class PinnedVersions:
    """Versions that pages are searched in. `open_version` opens the one in a folder. Thread-safe."""

    def __init__(self, open_version: Callable[[str, Path], Index]):
        self._open_version = open_version
        self._lock = Lock()
        self._opened: dict[tuple[str, str], tuple[Index, float]] = {}

    def find(self, name: str, version: str, served: Index, now: float) -> Index:
        """Return a version of the index `name`, of which another one is served; open it if need be.

        `now` is on the monotonic clock. Raises InvalidRequest if it is there no more.
        """
        with self._lock:
            index, _ = self._opened.pop((name, version), (None, now))
            if index is None:
                while len(self._opened) >= MAX_PINNED:
                    del self._opened[next(iter(self._opened))]
                index = self._open(name, version, served)
            self._opened[name, version] = index, now
        return index

    def close_unused(self, now: float) -> None:
        """Close the versions that were not used for a while; `now` is on the monotonic clock."""
        with self._lock:
            opened = {key: (index, used) for key, (index, used) in self._opened.items() if now - used < PINNED_S}
            closed, self._opened = self._opened, opened
        del closed

    def opened(self) -> list[tuple[str, Index]]:
        """Return the versions that are open, each with the name of its index."""
        with self._lock:
            return [(name, index) for (name, _), (index, _) in self._opened.items()]

    def _open(self, name: str, version: str, served: Index) -> Index:
        folder = served.folder.parent / version
        if not VERSION.fullmatch(version) or not folder.is_dir():
            raise InvalidRequest(
                f"cursor is of version {excerpt(version)} of the index, kept no more: begin with an empty cursor"
            )
        index = self._open_version(name, folder)
        if index.manifest.version != version:
            raise IndexCorrupt(f"{folder} holds version {excerpt(index.manifest.version)}: build the index again")
        return index
