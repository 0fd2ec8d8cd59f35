"""Versions of an index for tests: copies of a version whose documents say which version they are of."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from shoal_workers.index.array_file import save_array
from shoal_workers.index.index import current_version
from shoal_workers.index.manifest import DOCUMENTS, MANIFEST, OFFSETS, checksum
from shoal_workers.index.versions import make_current


def add_version(folder: Path, template: Path, name: str, **manifest: Any) -> Path:
    """Add a version to the index in `folder`, and return its folder; it is not published.

    It is a copy of the current version of the index `template`, with the field `version` in each document, and with
    other values in its manifest where they are given.
    """
    version = Path(shutil.copytree(current_version(template), folder / name))
    documents = [json.loads(line) | {"version": name} for line in (version / DOCUMENTS).read_bytes().splitlines()]
    lines = [json.dumps(document).encode() + b"\n" for document in documents]
    (version / DOCUMENTS).write_bytes(b"".join(lines))
    save_array(version / OFFSETS, np.cumsum([0, *map(len, lines)], dtype=np.int64))
    values = json.loads((version / MANIFEST).read_bytes()) | {"version": name} | manifest
    values["checksums"] |= {file: checksum(version / file) for file in (DOCUMENTS, OFFSETS)}
    (version / MANIFEST).write_text(json.dumps(values))
    return version


def publish_version(folder: Path, template: Path, name: str, **manifest: Any) -> Path:
    """Add a version as `add_version` does, and make it the current one."""
    version = add_version(folder, template, name, **manifest)
    make_current(folder, name)
    return version


def maps_of(pid: int, version: Path) -> list[str]:
    """Return the lines of a process's memory map that are of files of a version."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if f"{version}/" in line]
