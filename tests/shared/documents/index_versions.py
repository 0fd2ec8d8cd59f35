"""Versions of an index for tests: copies of one version, in which each document names its version."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.records.document import Document
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.checksums import checksum
from shoal_workers.index.files.columns import save_columns
from shoal_workers.index.files.documents import HashTable, hash_of
from shoal_workers.index.files.field_values import DocumentFields
from shoal_workers.index.files.manifest import (
    CHANGES,
    DOCUMENTS,
    FILES,
    HASHES,
    IDS,
    MANIFEST,
    OFFSETS,
    VECTORS,
    Manifest,
)
from shoal_workers.index.index import current_version
from shoal_workers.index.lexical.lexical_file import write_lexical
from shoal_workers.index.serving.open_indexes import OpenIndexes
from shoal_workers.index.vectors.quantisation import QuantisationBasis, QuantisedVectors
from shoal_workers.index.versions import make_current
from shoal_workers.model.model import Model


def add_version(folder: Path, template: Path, name: str, **manifest: Any) -> Path:
    """Add an unpublished version to the index in `folder`, and return the version's folder.

    It is a copy of the current version of the index `template`, with the field `version` in each document, and with
    the given values in its manifest.
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
    """Add a version as `add_version` does, and make it the current version."""
    version = add_version(folder, template, name, **manifest)
    make_current(folder, name)
    return version


@contextmanager
def served_in(home: Path, model: Model, **options: Any) -> Iterator[OpenIndexes]:
    """Yield the indexes in a folder, as a worker serves them. At the end, remove the folder and close them."""
    yield (indexes := OpenIndexes({}, home, model, **options))
    shutil.rmtree(home, ignore_errors=True)
    for _ in range(2):
        indexes.look(10**9)


def maps_of(pid: int, version: Path) -> list[str]:
    """Return the lines of a process's memory map that name files of a version."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if f"{version}/" in line]


def write_version(
    version: Path,
    documents: Sequence[Document],
    vectors: NDArray[np.float32],
    kinds: Mapping[str, str] | None = None,
    **manifest: Any,
) -> None:
    """Write a version of these documents and their normalised vectors, like a build without a model."""
    version.mkdir(parents=True)
    save_array(version / VECTORS, vectors)
    width = QuantisedVectors.write(version, vectors)
    lines = [json.dumps({"id": one.id, "text": one.text, **one.fields}).encode() + b"\n" for one in documents]
    (version / DOCUMENTS).write_bytes(b"".join(lines))
    save_array(version / OFFSETS, np.cumsum([0, *map(len, lines)], dtype=np.int64))
    HashTable.of(b"".join(hash_of(one.text) for one in documents)).save(version, HASHES)
    HashTable.of(b"".join(hash_of(one.id) for one in documents)).save(version, IDS)
    (version / CHANGES).write_bytes(b"")
    fields = DocumentFields(kinds or {})
    for one in documents:
        fields.add(one.fields)
    save_columns(version, fields.columns())
    write_lexical(version, len(documents), None, lambda _: None)
    checksums = {name: checksum(version / name) for name in FILES}
    about = ("2026-01-01T00:00:00Z", "made", "tiny", "d" * 64, "mean")
    made = Manifest(version.name, *about, vectors.shape[1], len(documents), width, checksums)
    replace(made, **manifest).save(version)


def quantise(vectors: NDArray[np.float32]) -> QuantisedVectors:
    """Quantise vectors in memory."""
    basis = QuantisationBasis.fit(vectors)
    return QuantisedVectors(np.concatenate(list(basis.encode(vectors))), basis)
