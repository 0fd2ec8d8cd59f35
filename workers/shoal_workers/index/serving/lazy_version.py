"""A version of an index that is opened when it is used, in a thread beside the one that uses it."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from threading import Lock

from shoal.errors import ShoalError
from shoal_workers.index.index import Index


class LazyVersion:
    """The version in `folder` of the index `name`, opened or not. Thread-safe.

    `open_version` opens it, in a thread of `openers`. `used_at`, on the monotonic clock, is when it was used last.
    """

    def __init__(self, name: str, folder: Path, open_version: Callable[[str, Path], Index], openers: Executor):
        self.name = name
        self.folder = folder
        self.used_at = 0.0
        self._open_version = open_version
        self._openers = openers
        self._lock = Lock()
        self._opening: Future[Index] | None = None

    def use(self, now: float) -> "Future[Index]":
        """Return the opened version, or what becomes it: it is opened if need be. `now` is on the monotonic clock.

        The result raises what opening raises; the next use then tries again.
        """
        with self._lock:
            self.used_at = now
            if not self._opening or not self.is_used:
                self._opening = self._openers.submit(self._open)
            return self._opening

    def keep(self, index: Index, now: float) -> None:
        """Use this opened version from now on."""
        (opened := Future[Index]()).set_result(index)
        with self._lock:
            self.used_at, self._opening = now, opened

    def close(self) -> None:
        """Forget the opened version: its memory is given back when the last search in it has ended."""
        with self._lock:
            self._opening = None

    @property
    def is_used(self) -> bool:
        """True if it is open, or is being opened."""
        opening = self._opening
        return opening is not None and not (opening.done() and opening.exception())

    @property
    def opened(self) -> Index | None:
        """The opened version, if it is open."""
        opening = self._opening
        return opening.result() if opening and opening.done() and not opening.exception() else None

    def _open(self) -> Index:
        try:
            return self._open_version(self.name, self.folder)
        except ShoalError as error:
            failure = without_folder(error, self.name, self.folder.parent)
        raise failure


def without_folder(error: ShoalError, name: str, folder: Path) -> ShoalError:
    """Return the error of the index `name` in a folder with its name in place of the folder, which is no client's.

    It is a copy, because the frames of the first one would keep files of the version open.
    """
    message = error.message
    for path in (folder, folder.resolve()):
        message = message.replace(str(path), name)
    return type(error)(message)
