"""Versions that are there before a build: the one whose vectors it takes, and the one that it would only repeat."""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt, IndexNotFound
from shoal_workers.index.build.document_encoder import ModelInfo
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.hash_table import HashTable
from shoal_workers.index.files.manifest import (
    BAD_ROWS,
    CHANGES,
    DOCUMENTS,
    FIELDS,
    HASHES,
    IDS,
    LAYOUT,
    LEXICAL,
    VECTORS,
    Manifest,
    checksum,
)
from shoal_workers.index.index import current_version
from shoal_workers.index.lexical.lexical_file import language_of
from shoal_workers.index.versions import list_versions

log = logging.getLogger(__name__)

#: Files of which all others are made, once the model and what the manifest says are the same.
_DECIDING = (DOCUMENTS, IDS, CHANGES, FIELDS)


@dataclass(frozen=True, slots=True)
class FormerVersion:
    """A version of an index as a source of vectors; `vectors` is float32 `[count, dimension]`."""

    name: str
    vectors: NDArray[np.float32]
    hashes: HashTable


def find_former_version(out: Path, model: ModelInfo) -> FormerVersion | None:
    """Return the version of the index in `out` that was built last with the model, or None if there is none.

    Versions of layout 2, which have no hashes, and those whose files are not what was built are left out. So are those
    whose fingerprint is another one, or not known.
    """
    try:
        versions = list_versions(out)
    except IndexNotFound:
        return None
    for version in versions:
        if not version.manifest or HASHES not in version.manifest.files:
            continue
        found = model_of(version.manifest)
        if found == model and model.fingerprint:
            try:
                return _open(version.folder, version.manifest)
            except IndexCorrupt as error:
                log.warning("no vectors are taken from a former version: %s", error.message)
        elif replace(found, fingerprint=model.fingerprint) == model:
            log.warning(
                "no vectors are taken from %s: it was built with another engine, precision, prompt or length of texts, "
                "or does not say with which",
                version.folder,
            )
    return None


def _open(folder: Path, manifest: Manifest) -> FormerVersion:
    for name in (VECTORS, HASHES):
        if checksum(folder / name) != manifest.checksums[name]:
            raise IndexCorrupt(f"{folder / name} is not what was built")
    vectors = open_array(folder / VECTORS, np.float32, (manifest.count, manifest.dimension))
    return FormerVersion(folder.name, vectors, HashTable.open(folder, HASHES, manifest.count))


def model_of(manifest: Manifest) -> ModelInfo:
    """Return the model that a version was built with."""
    return ModelInfo(
        manifest.model,
        manifest.digest,
        manifest.pooling,
        manifest.dimension,
        manifest.prompt,
        manifest.fingerprint,
    )


def find_unchanged(
    out: Path, folder: Path, state: BuildState, model: ModelInfo, going_on: Callable[[], object]
) -> tuple[Path, Manifest] | None:
    """Return the current version of the index in `out` if the build in `folder`, with its columns, would repeat it.

    A version with a damaged file is not returned: it has to be built again. `going_on` is called for each file.
    """
    with suppress(IndexNotFound, IndexCorrupt, OSError, ValueError, LookupError):
        version = current_version(out)
        manifest = Manifest.read(version)
        if not _is_alike(manifest, state, model) or checksum(folder / BAD_ROWS) != checksum(version / BAD_ROWS):
            return None
        if any(checksum(folder / name) != manifest.checksums[name] for name in _DECIDING):
            return None
        language = language_of(folder, state.arguments["language"])
        if json.loads((version / LEXICAL).read_text("utf-8"))["language"] != language:
            return None
        for name in manifest.files:
            going_on()
            if checksum(version / name) != manifest.checksums[name]:
                return None
        return version, manifest
    return None


def _is_alike(manifest: Manifest, state: BuildState, model: ModelInfo) -> bool:
    """Return True for a version of the model, with the arguments of a build and the changes that it folds in."""
    chunks = tuple(state.arguments["chunks"] or (0, 0))
    return (
        manifest.layout == LAYOUT
        and bool(model.fingerprint)
        and model_of(manifest) == model
        and (manifest.chunk_tokens, manifest.chunk_overlap) == chunks
        and bool(manifest.num_cells) == state.arguments["approximate"]
        and manifest.changes_through == state.changes_through
        and manifest.ids_are_positions == state.ids_are_positions
    )
