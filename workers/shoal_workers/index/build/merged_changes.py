"""The changes of an index that a build folds in: documents that were added to the index, and ids that were deleted.

A new version has the documents of its source, with the changes in the current version and newer changes in Redis
applied. The new version keeps all these changes in a file, so that they outlive any number of builds. Each line has the
last change of an id: `id`, `made_at` in Unix seconds, and `document`, which is null if the id was deleted. Lines are in
the order of the changes.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.changes.change import Change
from shoal.changes.change_log import START, ChangeLog
from shoal.errors import IndexCorrupt, Overloaded, Unavailable
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.documents import HashTable, hash_of, keep_lines, read_lines, to_line
from shoal_workers.index.files.manifest import CHANGES, Manifest
from shoal_workers.index.versions import find_versions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The changes of one index in Redis; `index` is the name under which workers serve the index."""

    log: ChangeLog
    index: str

    def since(self, position: str) -> Iterator[tuple[str, list[dict[str, Any]] | None]]:
        """Yield each change after a position: the change's own position, and its lines in the file of changes.

        Changes that cannot be read, or that Redis has lost, are logged and have None as lines. Raises Unavailable.
        """
        for entry in self.log.since(self.index, position).entries:
            if isinstance(change := entry.change, Change):
                deleted = [{"id": one, "made_at": change.made_at, "document": None} for one in change.deleted]
                added = [
                    {"id": one.id, "made_at": change.made_at, "document": {"text": one.text, **one.fields}}
                    for one in change.documents
                ]
                yield entry.position, deleted + added
            else:
                log.error("index %s: changes are left out, for good: %s", self.index, change.message)
                yield entry.position, None

    def forget_folded(self, out: Path) -> None:
        """Delete from Redis the changes that all versions in `out` contain already. A failure is only logged."""
        versions = find_versions(out)
        # A version that cannot be read now may become readable later, and may then need any of the changes.
        kept = [version.manifest.changes_through if version.manifest else START for version in versions]
        current = next((version.manifest for version in versions if version.is_current), None)
        if current is None:
            return
        try:
            self.log.fold(self.index, current.changes_through, kept)
        except (Unavailable, Overloaded) as error:
            log.warning(
                "index %s: Redis keeps changes that its versions have until the next build (%s)",
                self.index,
                error.message,
            )


def collect_changes(state: BuildState, out: Path, changes: IndexChanges | None, made_since: float | None) -> None:
    """Write the changes that a build folds in into its folder, and note their last position in the state of the build.

    Changes made before `made_since`, in Unix seconds, are left out. Each change takes about 30 bytes of memory. Raises
    Unavailable.
    """
    hashes = bytearray()
    with (state.folder / CHANGES).open("wb") as file:
        for state.changes_through, lines in _all_changes(out, changes):
            state.num_lost += lines is None
            for line in lines or ():
                if made_since is None or line["made_at"] >= made_since:
                    file.write(to_line(line))
                    hashes += hash_of(line["id"])
    first_rows = HashTable.of(hashes).first_rows()
    last_rows = np.zeros(len(first_rows), np.int64)
    np.maximum.at(last_rows, first_rows, np.arange(len(first_rows)))
    is_last = last_rows[first_rows] == np.arange(len(first_rows))
    keep_lines(state.folder / CHANGES, is_last)
    state.changes_through, state.num_changed = state.changes_through or START, int(is_last.sum())


def _all_changes(out: Path, changes: IndexChanges | None) -> Iterator[tuple[str, Iterable[dict[str, Any]] | None]]:
    """Yield the current version's changes together, then each newer change, with the log position that they reach."""
    position = START
    former = _former(out)
    if former:
        folder, manifest = former
        position = manifest.changes_through
        yield position, read_lines(folder / CHANGES)
    for n, change in enumerate(changes.since(position) if changes else ()):
        if not (n or former):
            log.warning(
                "index %s: there is no version, and Redis has changes of an index of this name, which are folded in; "
                "--drop-changes-before TIME forgets changes made before TIME",
                changes and changes.index,
            )
        yield change


def _former(out: Path) -> tuple[Path, Manifest] | None:
    """Return the current version, or the newest one with readable changes if the current version's are damaged.

    Any version will do, because Redis has all changes made since its build.
    """
    for version in sorted(find_versions(out), key=lambda version: not version.is_current):
        try:
            manifest = Manifest.read(version.folder)
            manifest.check(version.folder, [CHANGES])
            return version.folder, manifest
        except IndexCorrupt as error:
            log.warning("the changes of a former version are not folded in: %s", error.message)
    return None
