"""Opening versions, and applying the changes since they were built, which are read from logs in Redis."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.changes.change import Change
from shoal.changes.change_log import START, ChangeLog, LoggedChange
from shoal.errors import MalformedJob, Overloaded, ShoalError, Unavailable
from shoal_workers.index.engine_index import open_version
from shoal_workers.index.index import Index, check_model
from shoal_workers.index.vectors.exact_search import SearchThreads
from shoal_workers.model.model import Model

log = logging.getLogger(__name__)

#: Largest number of changes that are applied together. Each time, all documents that were added before are copied.
CHANGES_AT_ONCE = 256

#: Size in bytes at which the changes read so far are applied, because they take twice this memory until then.
BYTES_AT_ONCE = 4 * 2**20


class VersionOpener:
    """Opens versions for a worker with a model, and applies the changes in `change_log`, if there is one. Thread-safe.

    The `password` is for versions in engines. Only the thread that holds the lock `following` applies changes.
    """

    def __init__(self, model: Model, threads: SearchThreads, change_log: ChangeLog | None, password: str = ""):
        self.model = model
        self._password = password
        self.following = threading.Lock()
        self._threads = threads
        self._log = change_log
        self._is_away = False

    def open(self, name: str, folder: Path) -> Index:
        """Open a version without later changes, ready for searches. Raises IndexCorrupt and IndexMismatch."""
        started = time.perf_counter()
        index = open_version(folder, self._threads, self._password)
        check_model(folder, index.manifest, self.model)
        index.warm_up()
        log.info("index %s: opened version %s in %.3f s", name, folder.name, time.perf_counter() - started)
        return index

    def ask_redis(self) -> None:
        """Raise Unavailable or Overloaded if Redis, which has the changes, cannot be used."""
        if self._log:
            self._log.positions()

    def open_with_changes(self, name: str, folder: Path) -> Index:
        """Open a version, and apply all its changes. Raises the errors of `open` and `catch_up`."""
        index = self.open(name, folder)
        with self.following:
            self.catch_up(name, index)
        return index

    def follow(self, opened: Sequence[tuple[str, Index]]) -> dict[str, str] | None:
        """Apply the newest changes to these indexes, each given with its name.

        Return the last position of each log, keyed by the name of its index, or None while Redis cannot be reached.
        """
        if not self._log:
            return None
        try:
            with self.following:
                positions = self._log.positions()
                for name, index in opened:
                    if (position := positions.get(name, START)) != index.followed_to:
                        self._follow(name, index, position)
            self._is_away = False
            return positions
        except (Unavailable, Overloaded) as error:
            level = logging.DEBUG if self._is_away else logging.WARNING
            log.log(level, "changes of indexes are not read: %s", error.message)
            self._is_away = True
            return None

    def _follow(self, name: str, index: Index, position: str) -> None:
        try:
            self.catch_up(name, index)
            if index.needs_all_changes:
                return  # the key in Redis is not a log, so it is read again next time
        except (Unavailable, Overloaded):
            raise
        except Exception as error:  # any error, so that the changes of other indexes are applied
            log.exception("index %s: its changes cannot be applied", name)
            index.needs_all_changes = True
            _report(name, index, error.message if isinstance(error, ShoalError) else "the worker's log has the error")
        index.followed_to = position

    def catch_up(self, name: str, index: Index) -> None:
        """Apply the changes in the log after the changes that the index has; the caller holds `following`.

        If the log lacks the last change of the index, because Redis lost its data, all changes since the build are
        applied anew. A change that cannot be applied is left out, and the index gets the reason as its `change_fault`.
        Raises Unavailable, Overloaded, and IndexCorrupt if the ids of the version cannot be read.
        """
        if not self._log or index.manifest.engine:  # changes are not applied to versions in engines
            return
        is_anew = index.needs_all_changes
        try:
            live = index.unchanged() if is_anew else index.live
            tail = self._log.since(name, live.position)
            if not tail.has_position and not is_anew:
                is_anew, live = True, index.unchanged()
                tail = self._log.since(name, live.position)
            if is_anew:
                index.change_fault = ""
            for group in _groups(tail.entries):
                changes = (change for entry in group if (change := _usable(name, index, entry)))
                live = live.after(changes, group[-1].position, index.documents.rows_of)
                # If changes are applied anew, a partial result would hide documents that searches find now.
                if not is_anew:
                    index.live = live
            index.live = live
            index.needs_all_changes = False
        except MalformedJob as error:  # the key in Redis is not a log
            index.needs_all_changes = True
            _report(name, index, error.message)


def _groups(entries: Iterator[LoggedChange]) -> Iterator[list[LoggedChange]]:
    """Yield entries in groups that fit into memory."""
    group: list[LoggedChange] = []
    for entry in entries:
        group.append(entry)
        if len(group) == CHANGES_AT_ONCE or entry.size - group[0].size > BYTES_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _usable(name: str, index: Index, entry: LoggedChange) -> Change | None:
    try:
        return entry.change_for(index.manifest.digest, index.manifest.dimension)
    except ShoalError as error:
        _report(name, index, error.message)
        return None


def _report(name: str, index: Index, reason: str) -> None:
    message = f"changes of {name} are not searched: {reason}; build the index"
    if message != index.change_fault:
        log.warning("%s", message)
    index.change_fault = message
