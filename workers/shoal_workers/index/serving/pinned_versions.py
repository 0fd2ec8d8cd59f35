"""Versions of indexes that are not served any more, and are open for searches whose first pages are of them."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from threading import Lock

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal_workers.index.index import VERSION, Index
from shoal_workers.index.serving.served_version import LazyVersion

#: Time for which a version stays open after a page of it was asked for, in seconds.
PINNED_S = 60.0

#: Most versions that are open for further pages. None is closed to make room for another: requests for pages of many
#: versions in turn would open each again and again.
MAX_PINNED = 4


class PinnedVersions:
    """Versions that pages are searched in. `open_version` opens one, in a thread of `openers`. Thread-safe."""

    def __init__(self, open_version: Callable[[str, Path], Index], openers: Executor):
        self._open_version = open_version
        self._openers = openers
        self._lock = Lock()
        self._versions: dict[tuple[str, str], LazyVersion] = {}

    def use(self, name: str, version: str, folder: Path, now: float) -> "Future[Index]":
        """Return a version of the index `name` in `folder`, or what becomes it: it is opened if need be.

        `now` is on the monotonic clock. Raises InvalidRequest for what is no name of a version, and for another version
        while as many are open as may be.
        """
        if not VERSION.fullmatch(version):
            raise not_kept(version)
        with self._lock:
            pinned = self._versions.get((name, version))
            if pinned is None:
                if len(self._versions) >= MAX_PINNED:  # those that could not be opened make room
                    self._versions = {key: one for key, one in self._versions.items() if one.is_used}
                if len(self._versions) >= MAX_PINNED:
                    raise InvalidRequest(
                        f"cursor is of version {excerpt(version)} of the index, and the worker has {MAX_PINNED} other "
                        "versions that are served no more open for pages: begin with an empty cursor, or try again in "
                        "a minute"
                    )
                pinned = self._versions[name, version] = LazyVersion(
                    name, folder / version, self._open_version, self._openers
                )
            return pinned.use(now)

    def close_unused(self, now: float) -> None:
        """Close the versions that were not used for a while; `now` is on the monotonic clock."""
        with self._lock:
            kept = {key: version for key, version in self._versions.items() if now - version.used_at < PINNED_S}
            closed, self._versions = self._versions, kept
        del closed

    def opened(self) -> list[tuple[str, Index]]:
        """Return the versions that are open, each with the name of its index."""
        with self._lock:
            return [(version.name, index) for version in self._versions.values() if (index := version.opened)]


def not_kept(version: str) -> InvalidRequest:
    """Return the error of a cursor whose version is there no more."""
    return InvalidRequest(
        f"cursor is of version {excerpt(version)} of the index, kept no more: begin with an empty cursor"
    )
