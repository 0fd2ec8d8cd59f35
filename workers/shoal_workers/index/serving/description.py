"""The description of an index that is served, as a worker's heartbeat has it: what its manifest says, and changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal_workers.index.files.columns import read_kinds
from shoal_workers.index.files.manifest import FIELDS, Manifest
from shoal_workers.index.index import Index

#: Fields of the manifest that are told.
_TOLD = ("version", "built_at", "model", "digest", "dimension", "prompt", "ids_are_positions")

#: Most fields of documents whose kinds are told, and most characters of their names together.
MAX_FIELDS, MAX_NAME_CHARS = 100, 4_096


def description_of(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the description of a version as it was built. Raises IndexCorrupt."""
    fields = told_fields(read_kinds(folder)) if FIELDS in manifest.files else {}
    return _described(manifest, fields, manifest.count, 0, manifest.changes_through)


def described_with_changes(index: Index) -> dict[str, Any]:
    """Return the description of an opened version with the changes since it was built."""
    live = index.live
    return _described(index.manifest, told_fields(index.kinds), index.count, len(live.changed), live.position)


def told_fields(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the kinds of the first fields, as many as there is room for in a heartbeat."""
    told: dict[str, str] = {}
    num_chars = 0
    for name, kind in kinds.items():
        num_chars += len(name)
        if len(told) == MAX_FIELDS or num_chars > MAX_NAME_CHARS:
            break
        told[name] = kind
    return told


def _described(
    manifest: Manifest, fields: Mapping[str, str], count: int, num_changes: int, changes_through: str
) -> dict[str, Any]:
    named = {name: getattr(manifest, name) for name in _TOLD}
    changes = {"num_changes": num_changes, "changes_through": changes_through}
    return {"count": count, **named, **changes, "fields": dict(fields)}
