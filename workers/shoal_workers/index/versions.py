"""The versions of an index in its folder: listing, publishing, rolling back and deleting them."""

import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shoal.contract.excerpt import excerpt
from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound, InvalidRequest
from shoal.index_folder import CURRENT
from shoal.process.durable_file import locked, replace_file
from shoal_workers.index.files.manifest import MANIFEST, Manifest
from shoal_workers.index.index import FOLDER_NAME, current_version

#: A file with the name of each version that was published, in order, one per line. Versions listed after the last line
#: of the current one were published and then rolled back.
HISTORY = "history"

#: A change of the versions holds a lock on this file.
LOCK = ".lock"

#: A file about the last rollback that was asked for with an idempotency key: the key, the version before the rollback,
#: and the version after it.
ROLLBACK = ".rollback"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of an index. `manifest` is None if it cannot be read, and `error` then says why.

    `built_ns` is the time at which the file of its manifest was last changed, in nanoseconds.
    """

    folder: Path
    is_current: bool
    manifest: Manifest | None
    error: str | None
    size_bytes: int
    built_ns: int

    @classmethod
    def read(cls, folder: Path, is_current: bool) -> Self:
        """Read the version in `folder`. Raises FileNotFoundError if the version was removed."""
        manifest, reason = None, None
        try:
            manifest = Manifest.read(folder)
            if lost := [name for name in manifest.checksums if not (folder / name).is_file()]:
                manifest, reason = None, f"{folder} lacks {', '.join(lost)}: build the index again"
        except IndexCorrupt as error:
            reason = str(error)
        size_bytes = sum(path.lstat().st_size for path in folder.iterdir())
        # A removal deletes the manifest first. If the manifest is still there now, the files missing before are really
        # missing.
        return cls(folder, is_current, manifest, reason, size_bytes, (folder / MANIFEST).lstat().st_mtime_ns)

    @property
    def name(self) -> str:
        """The name of the version."""
        return self.folder.name

    def to_map(self) -> dict[str, Any]:
        """Return the properties of the version for people, as plain values; sizes are in bytes."""
        about = self.manifest
        names = ("built_at", "source", "model", "digest", "num_embedded", "num_bad")
        return {
            "version": self.name,
            "is_current": self.is_current,
            "count": about.count if about else None,
            "num_documents": (about.num_documents or about.count) if about else None,
            **{name: getattr(about, name, None) for name in names},
            "size_bytes": self.size_bytes,
            "error": self.error,
        }


def list_versions(folder: Path) -> list[Version]:
    """Return the versions in `folder`, the newest first. Raises IndexNotFound if there are none."""
    if not (versions := find_versions(folder)):
        raise IndexNotFound(f"{folder} holds no index: build one with `shoal index build SOURCE --out {folder}`")
    return versions


def find_versions(folder: Path) -> list[Version]:
    """Return the versions in `folder`, the newest first, without versions that are removed during the call."""
    current = current_name(folder)
    versions = []
    for path in (found.parent for found in folder.glob(f"*/{MANIFEST}") if FOLDER_NAME.fullmatch(found.parent.name)):
        with suppress(FileNotFoundError):
            versions.append(Version.read(path, path.name == current))
    return sorted(versions, key=lambda version: (version.name[:16], version.built_ns), reverse=True)


def publish(folder: Path, name: str, digest: str | None = None) -> None:
    """Make a version the current one; workers that serve the index open it and switch to it.

    Raises IndexNotFound for an unknown version, IndexCorrupt for one that cannot be read, and IndexMismatch if a
    `digest` is given and the version's model has another digest.
    """
    with changing(folder):
        _check_usable(folder, name, digest)
        make_current(folder, name)


def rollback(folder: Path, digest: str | None = None, key: str = "") -> str:
    """Go back to the version that was published before the current one, and return its name.

    `key` is a word without spaces. Two calls with the same key make the index go back only once. Raises InvalidRequest
    if there is no earlier version, and the errors of `publish`.
    """
    with changing(folder):
        current, there = current_name(folder), {version.name for version in list_versions(folder)}
        match _read(folder / ROLLBACK).split():
            case [done, before, after] if done == key and before != current:
                return after
        earlier = [name for name in _history(folder, current) if name != current and name in there]
        if not earlier:
            raise InvalidRequest(
                f"there is no version before {current} to go back to: publish one that "
                f"`shoal index list {folder}` shows"
            )
        after = earlier[-1]
        _check_usable(folder, after, digest)
        if key:
            replace_file(folder / ROLLBACK, f"{key} {current} {after}\n")
        # Each name is written once, also after a publication was killed.
        _write_history(folder, dict.fromkeys([*_history(folder, current), *_published(folder)]))
        replace_file(folder / CURRENT, after + "\n")
        return after


def delete(folder: Path, name: str) -> None:
    """Delete a version. Raises InvalidRequest for the current one, and IndexNotFound for an unknown one."""
    with changing(folder):
        version = _find(folder, name)
        if version.is_current:
            raise InvalidRequest(f"{name} is the published version of {folder}: publish another one first")
        _remove(version.folder)


def make_current(folder: Path, name: str) -> None:
    """Make a version the current one, in one step: readers of `current` see the old name or the new one.

    The caller holds the lock of `changing`.
    """
    before = [other for other in _history(folder, current_name(folder)) if (folder / other).is_dir()]
    # A rollback works after each step, because a current version that the history lacks counts as its last one.
    _write_history(folder, before + [name] * (name in before))
    replace_file(folder / CURRENT, name + "\n")
    _write_history(folder, [*(other for other in before if other != name), name])


def remove_old(folder: Path, built: str, num_kept: int) -> None:
    """Remove all versions except `num_kept`. The caller holds the lock of `changing`.

    `built` and the current version always stay; then versions that were published before the current one have priority.
    """
    current = current_name(folder)
    by_age = [version.name for version in list_versions(folder)]
    wanted = [built, current or built, *reversed(_history(folder, current)), *by_age]
    by_rank = list(dict.fromkeys(name for name in wanted if name in by_age))
    for name in by_rank[max(num_kept, len({built, current or built})) :]:
        _remove(folder / name)


def changing(folder: Path) -> AbstractContextManager[None]:
    """Lock the versions of an index while they are changed. Raises IndexNotFound if there is no such folder."""
    return locked(folder, LOCK, waiting=lambda: None)


def current_name(folder: Path) -> str | None:
    """Return the name of the current version; None if there is none."""
    try:
        return current_version(folder).name
    except (IndexNotFound, IndexCorrupt):
        return None


def _find(folder: Path, name: str) -> Version:
    versions = list_versions(folder)
    for version in versions:
        if version.name == name:
            return version
    names = ", ".join(version.name for version in versions)
    raise IndexNotFound(f"{folder} has no version {excerpt(name)}; it has {names}")


def _check_usable(folder: Path, name: str, digest: str | None) -> None:
    version = _find(folder, name)
    if version.manifest is None:
        raise IndexCorrupt(version.error or f"{version.folder} cannot be read")
    if digest is not None and version.manifest.digest != digest:
        raise IndexMismatch(
            f"version {name} of {folder} was built with {version.manifest.model} ({version.manifest.digest[:12]}…), "
            f"but the pool serves another model ({digest[:12]}…): build it again, or start workers with that model"
        )


def _history(folder: Path, current: str | None) -> list[str]:
    """Return the names of published versions up to the current one, in the order of their last publication."""
    names = _published(folder)
    if current in names:
        names = names[: len(names) - names[::-1].index(current)]
    elif current:
        names.append(current)
    return [*dict.fromkeys(reversed(names))][::-1]


def _published(folder: Path) -> list[str]:
    """Return the names of published versions in order."""
    return [line.partition(" ")[0] for line in _read(folder / HISTORY).splitlines()]


def _write_history(folder: Path, names: Iterable[str]) -> None:
    replace_file(folder / HISTORY, "".join(f"{name}\n" for name in names))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _remove(version: Path) -> None:
    """Remove a version, or a link to one. The manifest is removed first, so no worker opens a partial version."""
    if version.is_symlink():
        version.unlink()
        return
    (version / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(version, ignore_errors=True)
