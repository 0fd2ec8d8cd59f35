"""The indexes that a worker serves: opened when they are searched, and switched to new versions as they appear."""

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Self

from shoal.changes.change_log import START, ChangeLog
from shoal.contract.excerpt import excerpt
from shoal.errors import Overloaded, ShoalError, Unavailable, UnknownIndex
from shoal.index_folder import CURRENT
from shoal.settings import Settings
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.serving.served_version import Failure, ServedVersion, description_of, without_folder
from shoal_workers.index.serving.version_opener import VersionOpener
from shoal_workers.index.store.store import is_index_name
from shoal_workers.index.vectors.exact_search import SearchThreads
from shoal_workers.model.model import Model

log = logging.getLogger(__name__)

#: Interval at which a worker looks for new versions, in seconds.
LOOK_EVERY_S = 0.5

#: Interval at which a worker looks for changes of indexes, in seconds. Each time, it sends one command to Redis.
FOLLOW_EVERY_S = 1.0

#: Lowest priority of a thread on Linux.
_LOWEST_PRIORITY = 19

#: Time after which a version that could not be opened or checked is tried again, in seconds. By then, a copy of the
#: version may be complete, or a shared folder may answer again.
RETRY_AFTER_S = 10.0

#: Largest number of indexes that are opened at the same time.
MAX_OPENED_TOGETHER = 2

#: Errors of a Redis that cannot be used, which has the changes of versions.
NO_REDIS = (Unavailable, Overloaded)


class OpenIndexes(Mapping[str, Index]):
    """The indexes that a worker serves, by name, each in its served version. Thread-safe.

    They are in `folders`, and in the folders inside `home`, each under the name of its folder. An index is opened in a
    thread when it is searched. An index in `folders` is opened at the start, and a version that replaces another one is
    opened before it is served. Before a version is searched, all changes in `change_log` that came after its build are
    applied. A search ends with the version that it began with, and the memory of an old version is freed after that.
    Large searches are divided among `threads`. `engine_password` opens the vector engines. `stopping` is set when the
    worker ends.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        home: Path,
        model: Model,
        threads: int = 1,
        change_log: ChangeLog | None = None,
        engine_password: str = "",
    ):
        self._folders, self._home = folders, home
        self._threads = SearchThreads(threads)
        self._opener = VersionOpener(model, self._threads, change_log, engine_password)
        self._executor = ThreadPoolExecutor(MAX_OPENED_TOGETHER, "open-index")
        self._served: dict[str, ServedVersion] = {}
        self._replaced: list[ServedVersion] = []
        self._failures: dict[str, Failure] = {}
        self.stopping = Event()

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        model: Model,
        threads: int,
        change_log: ChangeLog | None = None,
        stopping: Event | None = None,
    ) -> Self:
        """Serve the indexes that the settings name, and the indexes in `index_home` or the copies from a store.

        While Redis, which has the `change_log`, cannot be reached, wait for it until `stopping` is set. Raises
        IndexNotFound, IndexCorrupt or IndexMismatch if none of the indexes that the settings name can be served.
        """
        folders = settings.index_folders()
        indexes = cls(folders, settings.served_folder, model, threads, change_log, settings.engine_password)
        stopping = stopping or Event()
        while True:
            indexes.look(time.monotonic())
            waiting = {name for name, failure in indexes._failures.items() if isinstance(failure.error, NO_REDIS)}
            if folders and folders.keys() <= indexes._failures.keys() - waiting:
                name, folder = next(iter(folders.items()))
                indexes._opener.open(name, current_version(folder))  # raises the error again, with the full path
            if not waiting or stopping.wait(LOOK_EVERY_S):
                return indexes

    def __getitem__(self, name: str) -> Index:
        """Return the served version of the index; wait until it is open."""
        return self._served[name].use().result()

    def __contains__(self, name: object) -> bool:
        """Return True for the name of a served index, open or not."""
        return name in self._served

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names of the served indexes."""
        return iter(self._served)

    def __len__(self) -> int:
        """Return the number of served indexes."""
        return len(self._served)

    @property
    def errors(self) -> dict[str, str]:
        """The messages that say why an index's current version or changes are not served, keyed by index name."""
        faults = {name: fault for name, served in self._served.items() if (fault := served.fault)}
        failures = {name: failure.error.message for name, failure in self._failures.items()}
        return faults | failures

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the description of each index that can be searched, keyed by its name. No index is opened for that."""
        return {name: served.description for name, served in self._served.items() if not served.failure}

    def find(self, name: str) -> "Future[Index]":
        """Return the future of a served index, which is opened if it is not open.

        Raises KeyError for an unknown name, and IndexCorrupt or IndexMismatch for an index that cannot be opened. The
        future's result raises the last two too, and Unavailable while Redis cannot be reached.
        """
        served = self._served[name]
        if failure := served.failure:  # read only once, because another thread may remove the version
            raise type(failure.error)(failure.error.message)
        return served.use()

    def resize(self, threads: int) -> None:
        """Divide the next searches among this number of threads."""
        self._threads.resize(threads)

    def look(self, now: float) -> None:
        """Serve versions that were published since the last look, and forget removed indexes.

        An index whose current version cannot be opened keeps the served version. `now` is on the monotonic clock.
        """
        before, folders = self._served, self._find_folders()
        failures = {name: self._switch(name, folder, now) for name, folder in folders.items()}
        self._failures = {name: failure for name, failure in failures.items() if failure}
        self._served = {name: self._served[name] for name in folders if name in self._served}
        # Old versions are kept until the next look. Otherwise, a running search with the last reference to a version
        # would free the version's memory before it answers, which takes milliseconds for a large index.
        self._replaced = [version for name, version in before.items() if self._served.get(name) is not version]

    def follow(self) -> None:
        """Apply the newest changes to all open versions, and open the other versions that have new changes."""
        served = list(self._served.values())
        positions = self._opener.follow([(version.name, index) for version in served if (index := version.opened)])
        for version in served:
            if positions is not None and version.must_open_at(positions.get(version.name, START)):
                version.use()

    def check_files(self, now: float) -> None:
        """Compare the large files of all open versions with their checksums.

        A version with a wrong file is not searched until that file is right. A file that cannot be read has no effect,
        because the version may be mapped from a file that was deleted. `now` is on the monotonic clock.
        """
        for version in self._served.values():
            is_wanted, index = partial(self._needs_check, version), version.opened
            try:
                if version.failure:
                    if now >= version.failure.retry_at:
                        self._repair(version, is_wanted)
                elif index and not index.files.is_done and now >= version.check_at:
                    version.check = index.files
                    index.files.check_rest(is_wanted)
            except ShoalError as error:
                version.withdraw(self._failed(version.name, version.folder.parent, version.folder, error, now))
            except OSError as error:
                log.warning("index %s cannot be checked now: %s (%s)", version.name, error.filename, error.strerror)
                version.check_at = now + RETRY_AFTER_S

    def _repair(self, version: ServedVersion, is_wanted: Callable[[], bool]) -> None:
        """Try again to open a version that could not be opened or had a wrong file."""
        if version.check:  # first the wrong file, so that a repeated try does not read all files
            version.check.check_rest(is_wanted)
        version.keep(self._opener.open_with_changes(version.name, version.folder))
        version.failure = None

    def _find_folders(self) -> dict[str, Path]:
        """Return the folder of each index, keyed by its name; folders in the settings replace folders inside `home`."""
        try:
            inside = {folder.name: folder for folder in self._home.iterdir() if _is_index(folder)}
        except (FileNotFoundError, NotADirectoryError):
            inside = {}
        except OSError:  # a shared folder may be unreachable for a while
            served = {name: version.folder.parent for name, version in self._served.items()}
            inside = {name: folder for name, folder in served.items() if folder.parent == self._home}
        return {**inside, **self._folders}

    def _switch(self, name: str, folder: Path, now: float) -> Failure | None:
        """Serve the current version of an index; if that fails, return the reason and keep the served version.

        A version that replaces another one, or whose index the settings name, is opened first. While Redis, which has
        its changes, cannot be reached, the version is not opened.
        """
        former, failure, version = self._served.get(name), self._failures.get(name), None
        try:
            version = current_version(folder)
            if former and former.folder == version:
                return None
            if failure and failure.version == version and now < failure.retry_at:
                return failure
            found = ServedVersion(name, version, self._opener.model, self._open, self._executor)
            if former or name in self._folders:
                self._opener.ask_redis()
                found.keep(self._opener.open(name, version))
            # Without the lock, the new version might lack a change that the former version already has.
            with self._opener.following:
                if index := found.opened:
                    self._opener.catch_up(name, index)
                self._served = self._served | {name: found}
        except ShoalError as error:
            return self._failed(name, folder, version, error, now)
        log.info("index %s: version %s of %s documents", name, version.name, f"{found.manifest.count:,}")
        return None

    def _failed(self, name: str, folder: Path, version: Path | None, error: ShoalError, now: float) -> Failure:
        """Return the failure of an index in a folder, and log it if it is new."""
        served = self._served.get(name)
        former = self._failures.get(name) or (served.failure if served else None)
        retry_at = now + (0.0 if isinstance(error, NO_REDIS) else RETRY_AFTER_S)
        failure = Failure(without_folder(error, name, folder), version, retry_at)
        if not former or former.error.message != failure.error.message:
            log.warning("index %s: %s", name, error.message)
        return failure

    def _open(self, name: str, folder: Path) -> Index:
        """Open a served version with its changes; if it cannot be searched, note the failure. Raises it for clients."""
        try:
            return self._opener.open_with_changes(name, folder)
        except ShoalError as error:
            fault, version = without_folder(error, name, folder.parent), self._served.get(name)
            is_final = not isinstance(error, NO_REDIS)  # otherwise the next search tries again
            if is_final and version and version.folder == folder:
                version.failure = self._failed(name, folder.parent, folder, error, time.monotonic())
        raise fault

    def _needs_check(self, version: ServedVersion) -> bool:
        return self._served.get(version.name) is version and not self.stopping.is_set()


def find_index(indexes: Mapping[str, Index], name: str) -> "Future[Index]":
    """Return the future of an index by its name. Raises UnknownIndex, and the errors of `OpenIndexes.find`."""
    opened = Future[Index]()
    try:
        if isinstance(indexes, OpenIndexes):
            return indexes.find(name)
        opened.set_result(indexes[name])
    except KeyError:
        known = ", ".join(sorted(indexes)) or "none"
        raise UnknownIndex(f"no index {excerpt(name)}: this worker serves {known}") from None
    return opened


def describe(indexes: Mapping[str, Index]) -> dict[str, dict[str, Any]]:
    """Return the description of each index that can be searched, keyed by index name."""
    if isinstance(indexes, OpenIndexes):
        return indexes.describe()
    return {name: description_of(index) for name, index in indexes.items()}


def _is_index(folder: Path) -> bool:
    """Return True if a folder has an index, and a name under which an index can be served."""
    if not is_index_name(folder.name):
        return False
    try:
        os.stat(folder / CURRENT)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a later read reports the error
        pass
    return True


@contextmanager
def watched(indexes: OpenIndexes) -> Iterator[None]:
    """Look for new versions, apply changes and compare checksums, each in its own thread, while the context lasts."""
    threads = [threading.Thread(target=run, args=(indexes,), daemon=True) for run in (_look, _follow, _check)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        indexes.stopping.set()
        for thread in threads:
            thread.join()


def _look(indexes: OpenIndexes) -> None:
    _repeat(indexes, LOOK_EVERY_S, lambda: indexes.look(time.monotonic()))


def _follow(indexes: OpenIndexes) -> None:
    # Workers that were started together should not read a change at the same moment: Redis serves one worker at a time.
    indexes.stopping.wait(random.uniform(0, FOLLOW_EVERY_S))  # noqa: S311
    _repeat(indexes, FOLLOW_EVERY_S, indexes.follow)


def _check(indexes: OpenIndexes) -> None:
    if sys.platform == "linux":  # a thread has its own priority there; searches go first
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    _repeat(indexes, LOOK_EVERY_S, lambda: indexes.check_files(time.monotonic()))


def _repeat(indexes: OpenIndexes, every_s: float, step: Callable[[], object]) -> None:
    """Run a step again and again until the worker ends."""
    while not indexes.stopping.wait(every_s):
        try:
            step()
        except Exception:  # any error, because otherwise the thread would end
            log.exception("the indexes could not be brought up to date")
