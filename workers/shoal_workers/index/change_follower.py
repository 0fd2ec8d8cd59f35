"""The changes of indexes that are served: read from their logs in Redis, and applied to the opened versions."""

import logging
from collections.abc import Mapping
from itertools import islice
from weakref import WeakKeyDictionary

from shoal.changes.change import Change
from shoal.changes.change_log import START, ChangeLog, Entry, order_of
from shoal.errors import MalformedJob, ShoalError, Unavailable
from shoal_workers.index.index import Index

log = logging.getLogger(__name__)

#: Most changes that are applied together: the documents that were added before are copied each time.
CHANGES_AT_ONCE = 256


class ChangeFollower:
    """A reader of the logs of a pool's indexes. One thread at a time may use it."""

    def __init__(self, change_log: ChangeLog):
        self._log = change_log
        self._seen: WeakKeyDictionary[Index, str] = WeakKeyDictionary()
        self._is_away = False

    def follow(self, served: Mapping[str, Index]) -> None:
        """Apply what was appended to the logs of these indexes since the last time.

        While Redis is away, all stay as they are.
        """
        try:
            positions = self._log.positions()
            for name, index in served.items():
                if (position := positions.get(name, START)) != self._seen.get(index, START):
                    self._follow(name, index, position)
            self._is_away = False
        except Unavailable as error:
            level = logging.DEBUG if self._is_away else logging.WARNING
            log.log(level, "changes of indexes are not read: %s", error.message)
            self._is_away = True

    def catch_up(self, name: str, index: Index, is_anew: bool = False) -> None:
        """Apply the changes that were appended since those that the index has, or all since it was built.

        A change that cannot be applied is left out, and the index has the reason. Raises Unavailable, and IndexCorrupt
        if the ids of the version cannot be read.
        """
        live = index.unchanged() if is_anew else index.live
        entries = self._log.since(name, live.position)
        try:
            while group := list(islice(entries, CHANGES_AT_ONCE)):
                changes = [change for entry in group if (change := _usable(name, index, entry))]
                live = live.after(changes, group[-1].position, index.rows_of)
        except MalformedJob as error:  # the log is no log
            _report(name, index, error.message)
        index.live = live

    def _follow(self, name: str, index: Index, position: str) -> None:
        try:
            # A log that ends before the changes which were read has lost them: Redis has lost its data since.
            self.catch_up(name, index, is_anew=order_of(position) < order_of(index.live.position))
        except Unavailable:
            raise
        except ShoalError as error:
            _report(name, index, error.message)
        self._seen[index] = position


def _usable(name: str, index: Index, entry: Entry) -> Change | None:
    try:
        return entry.change_for(index.manifest.digest, index.manifest.dimension)
    except ShoalError as error:
        _report(name, index, f"entry {entry.position}: {error.message}")
        return None


def _report(name: str, index: Index, reason: str) -> None:
    message = f"changes of {name} are not searched: {reason}; build the index"
    if message != index.change_fault:
        log.warning("%s", message)
    index.change_fault = message
