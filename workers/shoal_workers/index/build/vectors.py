"""The vectors of a version, which are new or copied from the former version."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.served_model import ModelInfo
from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array, write_header
from shoal_workers.index.files.documents import Documents, HashTable
from shoal_workers.index.files.manifest import HASHES, VECTORS, Manifest
from shoal_workers.index.lexical.lexical_file import learned_words
from shoal_workers.index.lexical.lexical_index import LexicalIndex
from shoal_workers.index.versions import find_versions

log = logging.getLogger(__name__)

#: The files in the folder of a build with the vectors of the embedded texts, and the hashes of these texts.
EMBEDDED, EMBEDDED_HASHES = "embedded.npy", "embedded-hashes.records"

#: Number of vectors copied at a time.
COPIED_AT_ONCE = 8_192


@dataclass(frozen=True, slots=True)
class FormerVersion:
    """An earlier version whose `vectors`, float32 `[count, dimension]`, and learned `words` a build reuses."""

    name: str
    vectors: NDArray[np.float32]
    hashes: HashTable
    words: LexicalIndex | None

    @classmethod
    def find(cls, out: Path, model: ModelInfo, learns_words: bool) -> Self | None:
        """Return the newest version of the index in `out` that was built with this model; None if there is none.

        Damaged versions are left out. If the build `learns_words`, versions without learned words are left out too,
        because one pass over a text makes both its words and its vector.
        """
        for version in find_versions(out):
            if not (manifest := version.manifest) or manifest.engine:
                continue
            folder, found = version.folder, model_of(manifest)
            words = learned_words(folder) if learns_words else None
            if learns_words and not words:
                continue
            if found == model and model.fingerprint:
                try:
                    manifest.check(folder, (VECTORS, HASHES))
                    vectors = open_array(folder / VECTORS, np.float32, (manifest.count, manifest.dimension))
                    return cls(folder.name, vectors, HashTable.open(folder, HASHES, manifest.count), words)
                except IndexCorrupt as error:
                    log.warning("no vectors are taken from a former version: %s", error.message)
            elif replace(found, fingerprint=model.fingerprint) == model:
                log.warning(
                    "no vectors are taken from %s: it was built with another engine, precision, prompt or length of "
                    "texts, or does not name them",
                    folder,
                )
        return None


def model_of(manifest: Manifest) -> ModelInfo:
    """Return the model that a version was built with."""
    about = (manifest.model, manifest.digest, manifest.pooling, manifest.dimension)
    return ModelInfo(*about, manifest.prompt, manifest.fingerprint)


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """The source of each vector of a version.

    For each row, `taken_from` has a row of the `former` version, or -1 - n for the n-th embedded text; int64 `[count]`.
    The first `num_kept` of these texts were embedded by a killed build. `new_rows` are the rows whose texts are to be
    embedded: only the first of rows with equal texts.
    """

    former: FormerVersion | None
    taken_from: NDArray[np.int64]
    new_rows: NDArray[np.int64]
    num_kept: int

    @classmethod
    def make(cls, hashes: HashTable, former: FormerVersion | None, kept: HashTable) -> Self:
        """Decide which vectors come from the former version or from the `kept` ones, and which texts are embedded."""
        first_rows, num_kept = hashes.first_rows(), len(kept.rows)
        former_rows = hashes.find_in(former.hashes) if former else np.full(len(first_rows), -1)
        numbers = hashes.find_in(kept) if num_kept else np.full(len(first_rows), -1)
        is_first = first_rows == np.arange(len(first_rows))
        new_rows = np.flatnonzero((former_rows < 0) & (numbers < 0) & is_first)
        numbers[new_rows] = np.arange(num_kept, num_kept + len(new_rows))
        return cls(former, np.where(former_rows < 0, -1 - numbers[first_rows], former_rows), new_rows, num_kept)


def write_vectors(
    folder: Path, plan: VectorPlan, dimension: int, report: Callable[[float], object]
) -> NDArray[np.float32]:
    """Write the vectors of all rows as planned, and return them mapped into memory.

    If all rows have the embedded vectors in the same order, the file of the embedded vectors is used, and nothing is
    written. Otherwise, `report` is called before each chunk with the fraction that is done.
    """
    count, num_embedded = len(plan.taken_from), plan.num_kept + len(plan.new_rows)
    if np.array_equal(plan.taken_from, -1 - np.arange(num_embedded)):
        with suppress(OSError):  # the file system may have no hard links
            os.link(folder / EMBEDDED, folder / VECTORS)
            return open_array(folder / VECTORS, np.float32, (count, dimension))
    embedded = open_array(folder / EMBEDDED, np.float32, (num_embedded, dimension))
    with (folder / VECTORS).open("wb") as file:
        write_header(file, np.float32, (count, dimension))
        for start in range(0, count, COPIED_AT_ONCE):
            report(start / count)
            places = plan.taken_from[start : start + COPIED_AT_ONCE]
            is_new = places < 0
            vectors = np.empty((len(places), dimension), np.float32)
            vectors[is_new] = embedded[-1 - places[is_new]]
            if plan.former:
                vectors[~is_new] = plan.former.vectors[places[~is_new]]
            file.write(vectors.tobytes())
    return open_array(folder / VECTORS, np.float32, (count, dimension))


def texts_of(folder: Path, count: int, rows: NDArray[np.int64]) -> Iterator[str]:
    """Return the texts of rows of a version with `count` documents."""
    documents = Documents(folder, count)
    # A generator, because a list of all texts would take much memory.
    return (documents.document(int(row))["text"] for row in rows)
