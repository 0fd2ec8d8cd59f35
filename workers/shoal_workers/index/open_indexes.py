"""The indexes that a worker serves, which it switches to new versions while it serves them."""

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from shoal.changes.change_log import ChangeLog
from shoal.errors import IndexCorrupt, IndexNotFound, Overloaded, ShoalError, Unavailable, UnknownIndex
from shoal.excerpt import excerpt
from shoal.index_folder import CURRENT
from shoal.keys import NAME
from shoal.settings import Settings
from shoal_workers.index.change_follower import ChangeFollower
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.pinned_versions import PinnedVersions
from shoal_workers.index.search.cursor import Cursor
from shoal_workers.index.search.search_threads import SearchThreads
from shoal_workers.index.store.copies import read_errors, tell_damage
from shoal_workers.model.model import Model

log = logging.getLogger(__name__)

#: Interval at which a worker looks for new versions, in seconds.
LOOK_EVERY_S = 0.5

#: Interval at which a worker looks for changes of indexes, in seconds: a command to Redis each time.
FOLLOW_EVERY_S = 1.0

#: Time after which a version that could not be opened or checked is tried again, in seconds: a copy of it may be
#: complete by then, or a shared folder be back.
RETRY_AFTER_S = 10.0

#: Lowest priority of a thread on Linux.
_LOWEST_PRIORITY = 19


class _Failure(NamedTuple):
    """The reason why the current version of an index is not served, and the time of the next try.

    `version` is None if the index does not say which version that is. `retry_at` is on the monotonic clock.
    """

    error: ShoalError
    version: Path | None
    retry_at: float


class OpenIndexes(Mapping[str, Index]):
    """The indexes that a worker serves, by name, each in the version that is served now. Thread-safe.

    They are those of `folders`, and those in the folders inside `home`, each by the name of its folder. While they are
    watched, one thread opens new versions, another one compares their large files with their checksums, and a third one
    applies the changes in `change_log`, if there is one. A version is served once all changes that were made since it
    was built are applied. A search ends with the version that it began with, and the memory of an old version is given
    back after that. Large searches are divided among `threads`. If indexes inside `home` `are_copies`, their keeper is
    told of those that are found damaged.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        home: Path,
        model: Model,
        threads: int = 1,
        change_log: ChangeLog | None = None,
    ):
        self._folders = folders
        self._home = home
        self._model = model
        self._threads = SearchThreads(threads)
        self._follower = ChangeFollower(change_log) if change_log else None
        self._following = threading.Lock()
        self._served: dict[str, Index] = {}
        self._opened: dict[str, Index] = {}
        self._replaced: list[Index] = []
        self._repaired: dict[str, Index] = {}
        self._failures: dict[str, _Failure] = {}
        self._pinned = PinnedVersions(self._open_pinned)
        self._stopping = threading.Event()
        self.are_copies = False

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        model: Model,
        threads: int,
        change_log: ChangeLog | None = None,
        stopping: threading.Event | None = None,
    ) -> Self:
        """Open the indexes that the settings name, and those in their `index_home`, or the copies of their store.

        While Redis, and so `change_log`, is away, wait for it, until `stopping` is set. Raises IndexNotFound,
        IndexCorrupt or IndexMismatch for an index that the settings name.
        """
        indexes = cls(settings.index_folders(), settings.served_folder, model, threads, change_log)
        indexes.are_copies = bool(settings.index_store)
        stopping = stopping or threading.Event()
        is_first = True
        while is_first or (indexes._opened and not stopping.wait(LOOK_EVERY_S)):
            is_first = False
            indexes.look(time.monotonic())
            for name in settings.index_folders():
                if name not in indexes._opened and (failure := indexes._failures.get(name)):
                    raise failure.error
        return indexes

    def __getitem__(self, name: str) -> Index:
        """Return the version of the index that is served now."""
        return self._served[name]

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names of the indexes."""
        return iter(self._served)

    def __len__(self) -> int:
        """Return the number of indexes."""
        return len(self._served)

    @property
    def errors(self) -> dict[str, str]:
        """By the name of each index whose current version or changes are not served, the message that says why."""
        faults = {name: fault for name, index in self._served.items() if (fault := index.fault or index.change_fault)}
        failures = {name: failure.error.message for name, failure in self._failures.items()}
        return read_errors(self._home) | faults | failures

    def version(self, name: str, version: str) -> Index:
        """Return a version of an index that is served. Another one than the current one is opened for a while.

        Raises InvalidRequest if it is kept no more, IndexMismatch, IndexCorrupt, and Unavailable while Redis, which has
        its changes, is away.
        """
        served = self._served[name]
        if version == served.manifest.version:
            return served
        return self._pinned.find(name, version, served, time.monotonic())

    def _open_pinned(self, name: str, folder: Path) -> Index:
        index = self._open(name, folder, replaces=None)
        with self._following:
            if self._follower:
                self._follower.catch_up(name, index)
        return index

    def resize(self, threads: int) -> None:
        """Divide the next searches among so many threads."""
        self._threads.resize(threads)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look for new versions while the context lasts."""
        targets = [self._watch, self._check, *([self._follow] if self._follower else [])]
        threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def look(self, now: float) -> None:
        """Open versions that were published since the last look, and forget indexes that are gone.

        An index whose current version cannot be opened keeps the one that is open. `now` is on the monotonic clock.
        """
        self._pinned.close_unused(now)
        served, failures = {}, {}
        for name, folder in self._find().items():
            index, failure = self._current(name, folder, now)
            if index:
                served[name] = index
            if failure:
                failures[name] = failure
        with self._following:  # else a change that was found in the version before might be missing for a while
            self._opened = self._catch_up(served, failures, now)
            self._switch(served, failures)

    def follow(self) -> None:
        """Apply the changes that were made since the last time to all versions that are served."""
        pinned = self._pinned.opened()  # before the lock, which a search that opens one takes as well
        with self._following:
            if self._follower:
                self._follower.follow(self._served)
                for name, index in pinned:
                    self._follower.follow({name: index})

    def _switch(self, served: dict[str, Index], failures: dict[str, _Failure]) -> None:
        # Old versions are kept until the next look: a search under way, if it had the last hold on one, would have to
        # give back its memory before it answers, which takes milliseconds for a large index.
        self._replaced = [index for name, index in self._served.items() if served.get(name) is not index]
        self._served, self._failures = served, failures

    def check_files(self, now: float) -> None:
        """Compare the large files of all versions that are served with their checksums.

        A version with a wrong one is not searched any more, until its files are found to be right. A file that cannot
        be read proves nothing, as the version may be mapped from a file that was deleted. `now` is on the monotonic
        clock.
        """
        for name, index in self._served.items():
            if now < index.check_at or (index.is_checked and not index.fault):
                continue
            try:
                checked = self._open(name, index.folder, replaces=index) if index.fault else index
                checked.check_large_files(partial(self._needs_check, name, index))
                if checked is not index and checked.is_checked:
                    self._repaired[name] = checked
            except ShoalError as error:
                if error.message != index.fault:
                    log.error("index %s is not served any more: %s", name, error.message)
                self._tell_damage(name, error)
                index.fault, index.check_at = error.message, now + RETRY_AFTER_S
            except OSError as error:
                log.warning("index %s cannot be checked now: %s (%s)", name, error.filename, error.strerror)
                index.check_at = now + RETRY_AFTER_S

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self.look(time.monotonic())
            except Exception:  # any: without this thread, no new version would ever be served
                log.exception("looking for new versions of indexes failed")

    def _follow(self) -> None:
        # Workers that were started together are not to read a change at the same moment: Redis serves one at a time.
        self._stopping.wait(random.uniform(0, FOLLOW_EVERY_S))  # noqa: S311
        while not self._stopping.wait(FOLLOW_EVERY_S):
            try:
                self.follow()
            except Exception:  # any: without this thread, no change would ever be applied
                log.exception("following the changes of indexes failed")

    def _check(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own: nothing is to wait for checksums
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while not self._stopping.wait(LOOK_EVERY_S):
            self.check_files(time.monotonic())

    def _find(self) -> dict[str, Path]:
        """Return the folder of each index by its name."""
        try:
            inside = {folder.name: folder for folder in self._home.iterdir() if _is_index(folder)}
        except (FileNotFoundError, NotADirectoryError):
            inside = {}
        except OSError:  # a shared folder may not answer for a while
            inside = {name: index.folder.parent for name, index in self._served.items()}
        return {**inside, **self._folders}

    def _current(self, name: str, folder: Path, now: float) -> tuple[Index | None, _Failure | None]:
        """Return the version to serve, and the reason if that is not the current one."""
        former, failure, version = self._served.get(name), self._failures.get(name), None
        try:
            version = current_version(folder)
            for opened in (self._repaired.pop(name, None), self._opened.get(name), former):
                if opened and opened.folder == version:
                    return opened, None
            if failure and failure.version == version and now < failure.retry_at:
                return former, failure
            return self._open(name, version, replaces=former), None
        except ShoalError as error:
            return former, self._failed(name, version, error, now)

    def _catch_up(self, served: dict[str, Index], failures: dict[str, _Failure], now: float) -> dict[str, Index]:
        """Apply all changes to the versions that are to be served from now on; leave those out for which that fails.

        Returns those of them that are to be served as soon as Redis answers.
        """
        waiting = {}
        for name, index in list(served.items()):
            former = self._served.get(name)
            if self._follower is None or index is former:
                continue
            try:
                self._follower.catch_up(name, index)
            except ShoalError as error:
                failures[name] = self._failed(name, index.folder, error, now)
                if isinstance(error, Unavailable | Overloaded):
                    waiting[name] = index
                del served[name]
                if former:
                    served[name] = former
        return waiting

    def _failed(self, name: str, version: Path | None, error: ShoalError, now: float) -> _Failure:
        failure = self._failures.get(name)
        if not failure or failure.error.message != error.message:
            log.warning("index %s: %s", name, error.message)
        self._tell_damage(name, error)
        # A copy of the error, because its frames would keep the files of the version open.
        return _Failure(type(error)(error.message), version, now + RETRY_AFTER_S)

    def _tell_damage(self, name: str, error: ShoalError) -> None:
        if self.are_copies and name not in self._folders and isinstance(error, IndexCorrupt | IndexNotFound):
            tell_damage(self._home, name)

    def _open(self, name: str, version: Path, replaces: Index | None) -> Index:
        index = Index.open_version(version, self._threads)
        index.check_model(self._model)
        if replaces:  # which is searched meanwhile
            index.warm_up()
        log.info("index %s: version %s of %s documents", name, index.manifest.version, f"{index.manifest.count:,}")
        return index

    def _needs_check(self, name: str, index: Index) -> bool:
        return self._served.get(name) is index and not self._stopping.is_set()


def find_index(indexes: Mapping[str, Index], name: str) -> Index:
    """Return the index of that name.

    Raises UnknownIndex, and IndexCorrupt for a version with a wrong checksum.
    """
    index = indexes.get(name)
    if index is None:
        known = ", ".join(sorted(indexes)) or "none"
        raise UnknownIndex(f"no index {excerpt(name)}: this worker serves {known}")
    if index.fault:
        raise IndexCorrupt(index.fault)
    return index


def find_version(indexes: Mapping[str, Index], name: str, cursor: str | None) -> Index:
    """Return the index of that name in the version that a page is to be of, which its cursor has.

    Raises what `find_index` and `OpenIndexes.version` do.
    """
    index = find_index(indexes, name)
    if not cursor or not isinstance(indexes, OpenIndexes):
        return index
    return indexes.version(name, Cursor.unpack(cursor).version)


def _is_index(folder: Path) -> bool:
    """Return True for the folder of an index, with a name by which it can be served."""
    if folder.name.startswith(".") or not NAME.fullmatch(folder.name):
        return False
    try:
        os.stat(folder / CURRENT)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # reading it will say why
        return True
    return True
