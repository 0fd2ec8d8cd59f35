"""The changes of an index that a build folds in: documents that were added to it, and ids that were deleted.

A version has the documents of its source, changed by all changes so far: those that the current version was built with,
and those that Redis has since. It keeps them in a file, so that they outlive any number of builds from a source that
does not have them. A line of it is the last change of an id, as `id`, `made_at`, which is in Unix seconds, and
`document`, which is null if the id was deleted; lines are in the order of these changes.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change import Change
from shoal.changes.change_log import START, ChangeLog, order_of
from shoal.errors import IndexCorrupt, IndexNotFound, Overloaded, Unavailable
from shoal_workers.index.hash_table import HashTable, hash_of
from shoal_workers.index.json_lines import keep_lines, read_lines, to_line
from shoal_workers.index.manifest import CHANGES, Manifest, checksum
from shoal_workers.index.scratch import BuildState, sync_files
from shoal_workers.index.versions import list_versions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The changes of one index that Redis has; `index` is the name by which workers serve it."""

    log: ChangeLog
    index: str

    def since(self, position: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield each change after a position: its own position, and the lines that it becomes.

        Of a change that cannot be read, which is logged, there are no lines. Raises Unavailable.
        """
        for entry in self.log.since(self.index, position):
            if isinstance(entry.change, Change):
                yield entry.position, list(_lines_of(entry.change))
            else:
                log.error("index %s: a change is left out: %s", self.index, entry.change.message)
                yield entry.position, []

    def warn_of_lost(self) -> None:
        """Log a warning if Redis does not have the first changes any more. Raises Unavailable."""
        first = next(self.log.since(self.index, START), None)
        if first and isinstance(first.change, Change) and first.num > first.change.num_ids:
            log.warning(
                "index %s: changes of %s ids are not folded in: only versions that are not in this folder had them",
                *(self.index, f"{first.num - first.change.num_ids:,}"),
            )

    def forget_folded(self, out: Path) -> None:
        """Let Redis forget the changes that all versions of the index in `out` have; it may do so later as well."""
        try:
            versions = list_versions(out)
        except IndexNotFound:
            return
        # One that cannot be read now may be readable again, and needs any of them.
        oldest = min((v.manifest.changes_through if v.manifest else START for v in versions), key=order_of)
        current = next((version.manifest for version in versions if version.is_current), None)
        if current is None:
            return
        try:
            self.log.fold(self.index, current.changes_through, oldest)
        except (Unavailable, Overloaded) as error:
            log.warning(
                "index %s: Redis keeps changes that its versions have until the next build (%s)",
                self.index,
                error.message,
            )


def collect_changes(
    folder: Path, state: BuildState, out: Path, changes: IndexChanges | None, made_since: float | None
) -> None:
    """Write the changes that a build folds in into its folder, and note in its state up to which position they are.

    Those that were made before `made_since`, in Unix seconds, are left out. A build that was interrupted keeps those
    that it has. Memory grows by some 30 bytes a change. Raises Unavailable.
    """
    if state.changes_through:
        return
    hashes = bytearray()
    with (folder / CHANGES).open("wb") as file:
        for state.changes_through, lines in _all_changes(out, changes):
            for line in lines:
                if made_since is None or line["made_at"] >= made_since:
                    file.write(to_line(line))
                    hashes += hash_of(line["id"])
    is_last = _is_last(hashes)
    keep_lines(folder / CHANGES, is_last)
    sync_files(folder)
    state.changes_through, state.num_changed = state.changes_through or START, int(is_last.sum())
    state.save(folder)


def _all_changes(out: Path, changes: IndexChanges | None) -> Iterator[tuple[str, Iterable[dict[str, Any]]]]:
    """Yield the changes that the current version has, then those since; each with the position up to which they are."""
    position = START
    if version := _former(out):
        position = version.manifest.changes_through
        yield position, read_lines(version.folder / CHANGES) if CHANGES in version.manifest.files else ()
    elif changes:
        changes.warn_of_lost()
    if changes:
        yield from changes.since(position)


@dataclass(frozen=True, slots=True)
class _Former:
    """A version whose changes can be read."""

    folder: Path
    manifest: Manifest


def _former(out: Path) -> _Former | None:
    """Return the current version, or if its changes cannot be read, the newest one of which they can.

    Any version will do, as Redis has the changes since for each.
    """
    try:
        versions = list_versions(out)
    except IndexNotFound:
        return None
    for version in sorted(versions, key=lambda version: not version.is_current):
        try:
            if version.manifest is None:
                raise IndexCorrupt(version.error or f"{version.folder} cannot be read")
            expected = version.manifest.checksums.get(CHANGES)
            if expected and checksum(version.folder / CHANGES) != expected:
                raise IndexCorrupt(f"{version.folder / CHANGES} is not what was built")
            return _Former(version.folder, version.manifest)
        except IndexCorrupt as error:
            log.warning("the changes of a former version are not folded in: %s", error.message)
    return None


def _lines_of(change: Change) -> Iterator[dict[str, Any]]:
    for document_id in change.deleted:
        yield {"id": document_id, "made_at": change.made_at, "document": None}
    for document in change.documents:
        yield {"id": document.id, "made_at": change.made_at, "document": {"text": document.text, **document.fields}}


def _is_last(hashes: bytearray) -> NDArray[np.bool_]:
    """Return True for each hash that does not come again."""
    first_rows = HashTable.of(hashes).first_rows()
    last_rows = np.zeros(len(first_rows), np.int64)
    np.maximum.at(last_rows, first_rows, np.arange(len(first_rows)))
    is_last: NDArray[np.bool_] = last_rows[first_rows] == np.arange(len(first_rows))
    return is_last
