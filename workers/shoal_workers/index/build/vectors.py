"""The vectors of a version: reused from the version built last or embedded, and checked before they are published."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.served_model import ModelInfo
from shoal.errors import IndexCorrupt, IndexMismatch
from shoal.task_progress import Report
from shoal_workers.index.build.document_encoder import SYNC_EVERY, DocumentEncoder, Waiting
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.array_file import open_array, write_header
from shoal_workers.index.files.documents import Documents, HashTable
from shoal_workers.index.files.manifest import HASHES, VECTORS, Manifest, checksum
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.search import ExactSearch
from shoal_workers.index.versions import find_versions

log = logging.getLogger(__name__)

#: A file in the folder of a build with the vectors of the embedded texts, if other vectors are reused.
EMBEDDED = "embedded.npy"

#: Number of vectors copied at a time, and number of vectors searched at a time. The codes of the vectors searched stay
#: in the processor's cache for all queries.
COPIED_AT_ONCE, SEARCHED_AT_ONCE = 8_192, 2**16

#: A new version is checked by a sample: share of the rows in it, its least and largest number of rows, and the least
#: share of it that must be found.
SAMPLED_SHARE, MIN_SAMPLED, MAX_SAMPLED, MIN_FOUND = 0.005, 20, 1_000, 0.99

#: Scores that differ by no more than this count as equal. The scores of one text that was embedded in different batches
#: differ by less, and the scores of two documents with nearly the same text by little more.
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class FormerVersion:
    """A version of an index that vectors are reused from; `vectors` is float32 `[count, dimension]`."""

    name: str
    vectors: NDArray[np.float32]
    hashes: HashTable

    @classmethod
    def find(cls, out: Path, model: ModelInfo) -> Self | None:
        """Return the version of the index in `out` that was built last with this model, or None if there is none.

        Damaged versions are left out.
        """
        for version in find_versions(out):
            if not (manifest := version.manifest) or manifest.engine:
                continue
            folder, found = version.folder, model_of(manifest)
            if found == model and model.fingerprint:
                try:
                    for name in (VECTORS, HASHES):
                        if checksum(folder / name) != manifest.checksums[name]:
                            raise IndexCorrupt(f"{folder / name} is not what was built")
                    vectors = open_array(folder / VECTORS, np.float32, (manifest.count, manifest.dimension))
                    return cls(folder.name, vectors, HashTable.open(folder, HASHES, manifest.count))
                except IndexCorrupt as error:
                    log.warning("no vectors are taken from a former version: %s", error.message)
            elif replace(found, fingerprint=model.fingerprint) == model:
                log.warning(
                    "no vectors are taken from %s: it was built with another engine, precision, prompt or length of "
                    "texts, or does not say with which",
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

    `taken_from` has for each row a row of the `former` version, or -1 - n for the n-th vector that is embedded; int64
    `[count]`. `new_rows` are the rows whose texts are embedded: only the first of rows with equal texts. Their vectors
    go into `file`, which is the file of all vectors if all rows are embedded.
    """

    former: FormerVersion | None
    taken_from: NDArray[np.int64]
    new_rows: NDArray[np.int64]
    file: str

    @classmethod
    def make(cls, hashes: HashTable, former: FormerVersion | None) -> Self:
        """Decide which vectors are taken from the former version, and which texts are embedded."""
        first_rows = hashes.first_rows()
        former_rows = hashes.find_in(former.hashes) if former else np.full(len(first_rows), -1)
        new_rows = np.flatnonzero((former_rows < 0) & (first_rows == np.arange(len(first_rows))))
        numbers = np.zeros(len(first_rows), np.int64)
        numbers[new_rows] = np.arange(len(new_rows))
        taken_from = np.where(former_rows < 0, -1 - numbers[first_rows], former_rows)
        return cls(former, taken_from, new_rows, VECTORS if len(new_rows) == len(taken_from) else EMBEDDED)


def embed_texts(folder: Path, state: BuildState, plan: VectorPlan, encoder: DocumentEncoder, report: Report) -> None:
    """Embed the new texts, or after an interruption the rest of them, into a file in the folder of a build."""
    dimension, new_rows, path = encoder.model.dimension, plan.new_rows, folder / plan.file
    if not path.exists():
        state.num_embedded = 0
    with path.open("r+b" if state.num_embedded else "wb") as file:
        write_header(file, np.float32, (len(new_rows), dimension))
        file.seek(state.num_embedded * 4 * dimension, os.SEEK_CUR)
        done = state.num_embedded
        progress = replace(state.progress("embedding", done / max(1, len(new_rows))), rows=done)
        texts = texts_of(folder, state.count, new_rows[done:])
        with closing(encoder.embed(texts, lambda reason: report(replace(progress, step=reason)))) as groups:
            for vectors in groups:
                if vectors.shape[1] != dimension:
                    raise IndexMismatch(f"vectors have {vectors.shape[1]} dimensions, those of the index {dimension}")
                file.write(vectors.tobytes())
                done += len(vectors)
                if done - state.num_embedded >= SYNC_EVERY or done == len(new_rows):
                    file.flush()
                    os.fsync(file.fileno())
                    state.num_embedded = done
                    state.save(folder)
                progress = replace(progress, rows=done, fraction=done / len(new_rows))
                report(progress)


def write_vectors(
    folder: Path, plan: VectorPlan, dimension: int, report: Callable[[float], object]
) -> NDArray[np.float32]:
    """Write the vectors of all rows as planned, and return them mapped into memory.

    If embedding wrote all of them already, nothing is written. Otherwise, `report` is called before each chunk with the
    part that is done.
    """
    count = len(plan.taken_from)
    if plan.file != VECTORS:
        embedded = open_array(folder / plan.file, np.float32, (len(plan.new_rows), dimension))
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


def check_retrieval(
    folder: Path,
    version: str,
    vectors: NDArray[np.float32],
    quantised: QuantisedVectors,
    encoder: DocumentEncoder,
    waiting: Waiting,
    report: Callable[[float], object],
) -> float:
    """Embed the texts of a sample again, search for them, and return the part of the documents that were found.

    A document is found if the search's best score is the document's own. The name of the version is the seed of the
    sample. Raises IndexCorrupt if a smaller part than `MIN_FOUND` is found, or if no search is possible.
    """
    report(0)
    count = len(vectors)
    num_sampled = min(count, int(np.clip(SAMPLED_SHARE * count, MIN_SAMPLED, MAX_SAMPLED)))
    seed = int.from_bytes(blake2b(version.encode(), digest_size=8).digest())
    rows = np.sort(np.random.default_rng(seed).choice(count, num_sampled, replace=False))
    queries = np.concatenate(list(encoder.embed(texts_of(folder, count, rows), waiting)))
    try:
        best = np.full(num_sampled, -np.inf, np.float32)
        for start in range(0, count, SEARCHED_AT_ONCE):
            report(start / count)
            part = slice(start, start + SEARCHED_AT_ONCE)
            search = ExactSearch(vectors[part], QuantisedVectors(quantised.codes[part], quantised.basis))
            best = np.maximum(best, search.top_k(queries, 1).scores[:, 0])
    except IndexError as error:
        raise IndexCorrupt(
            "the new version is not published: its quantised vectors do not belong to its vectors. Build again"
        ) from error
    # If the best score is lower than the document's own, the search missed the document.
    num_found = int((np.abs(np.vecdot(queries, vectors[rows]) - best) <= TOLERANCE).sum())
    if num_found < MIN_FOUND * num_sampled:
        raise IndexCorrupt(
            f"the new version is not published: of {num_sampled:,} of its documents, {num_found:,} are found by their "
            "own texts; were workers started with other settings since the last build? Build again, with --full"
        )
    return num_found / num_sampled


def texts_of(folder: Path, count: int, rows: NDArray[np.int64]) -> Iterator[str]:
    """Return the texts of rows of a version with `count` documents."""
    documents = Documents(folder, count)
    # A generator, because a list of all texts would take much memory.
    return (documents.document(int(row))["text"] for row in rows)
