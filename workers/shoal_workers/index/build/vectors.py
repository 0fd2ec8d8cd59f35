"""The second step of a build: the vector of each document, taken from the version built last, or embedded."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexMismatch
from shoal.long_task import Report, TaskProgress
from shoal_workers.index.build.document_encoder import DocumentEncoder
from shoal_workers.index.build.former_version import FormerVersion
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.array_file import open_array, write_header
from shoal_workers.index.files.hash_table import HashTable
from shoal_workers.index.files.manifest import DOCUMENTS, OFFSETS, VECTORS

#: The file with the vectors of the texts that are embedded, if others are reused; in the folder of a build.
EMBEDDED = "embedded.npy"

#: Vectors after which the file is made safe: a build that is started again embeds at most so many again. It is a
#: multiple of the texts that encoders take at a time, so that these are the same ones after an interruption.
SYNC_EVERY = 4_096

#: Vectors copied at a time.
CHUNK = 8_192


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """The place from which each vector is taken.

    `taken_from` has for each row a row of the former version, or -1 - n for the n-th vector that is embedded; int64
    `[count]`. `new_rows` are the rows whose texts are embedded, in order: of equal texts, the first.
    """

    taken_from: NDArray[np.int64]
    new_rows: NDArray[np.int64]

    @property
    def file(self) -> str:
        """The name of the file for the vectors that are embedded: that of all vectors, if they are all."""
        return VECTORS if len(self.new_rows) == len(self.taken_from) else EMBEDDED

    @classmethod
    def make(cls, hashes: HashTable, former: FormerVersion | None) -> Self:
        """Find the place from which the vector of each text is taken."""
        first_rows = hashes.first_rows()
        former_rows = hashes.find_in(former.hashes) if former else np.full(len(first_rows), -1)
        new_rows = np.flatnonzero((former_rows < 0) & (first_rows == np.arange(len(first_rows))))
        numbers = np.zeros(len(first_rows), np.int64)
        numbers[new_rows] = np.arange(len(new_rows))
        return cls(np.where(former_rows < 0, -1 - numbers[first_rows], former_rows), new_rows)


def embed_texts(folder: Path, state: BuildState, plan: VectorPlan, encoder: DocumentEncoder, report: Report) -> None:
    """Embed the new texts into a file in the folder of a build, from where an interrupted build has come to.

    Raises IndexMismatch for vectors of another size than the model's, and the errors of the encoder.
    """
    dimension, new_rows, path = encoder.model.dimension, plan.new_rows, folder / plan.file
    if not path.exists():
        state.num_embedded = 0
    with path.open("r+b" if state.num_embedded else "wb") as file:
        write_header(file, np.float32, (len(new_rows), dimension))
        file.seek(state.num_embedded * 4 * dimension, os.SEEK_CUR)
        file.truncate()
        done = state.num_embedded
        progress = TaskProgress(done, state.num_bad, state.first_bad, done / max(1, len(new_rows)), "embedding")
        texts = read_texts(folder, state.count, new_rows[done:])
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
    folder: Path,
    plan: VectorPlan,
    dimension: int,
    former: FormerVersion | None,
    report: Callable[[float], object],
) -> NDArray[np.float32]:
    """Write the vectors of all rows, from where the plan says, and return them as they are mapped into memory.

    If they are not written already, `report` is called before each chunk with the part of them that is.
    """
    count = len(plan.taken_from)
    if plan.file != VECTORS:
        embedded = open_array(folder / plan.file, np.float32, (len(plan.new_rows), dimension))
        with (folder / VECTORS).open("wb") as file:
            write_header(file, np.float32, (count, dimension))
            for start in range(0, count, CHUNK):
                report(start / count)
                places = plan.taken_from[start : start + CHUNK]
                is_new = places < 0
                vectors = np.empty((len(places), dimension), np.float32)
                vectors[is_new] = embedded[-1 - places[is_new]]
                if former:
                    vectors[~is_new] = former.vectors[places[~is_new]]
                file.write(vectors.tobytes())
    return open_array(folder / VECTORS, np.float32, (count, dimension))


def read_texts(folder: Path, count: int, rows: NDArray[np.int64]) -> Iterator[str]:
    """Yield the texts of rows of a version with `count` documents."""
    offsets = open_array(folder / OFFSETS, np.int64, (count + 1,))
    with (folder / DOCUMENTS).open("rb") as file:
        for row in rows:
            start, end = offsets[row : row + 2].tolist()
            file.seek(start)
            yield json.loads(file.read(end - start))["text"]
