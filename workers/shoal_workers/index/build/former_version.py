"""The version that was built last: a build takes from it the vectors of texts that have not changed."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt, IndexNotFound
from shoal_workers.index.build.document_encoder import ModelInfo
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.hash_table import HashTable
from shoal_workers.index.files.manifest import HASHES, VECTORS, Manifest, checksum
from shoal_workers.index.versions import list_versions

log = logging.getLogger(__name__)


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
