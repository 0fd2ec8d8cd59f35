"""The texts of a version that the version built last lacks: they are encoded in one pass, into files of the build."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from shoal.bulk.served_model import ModelInfo
from shoal.contract.languages import LEARNED
from shoal.errors import IndexMismatch, Unsupported
from shoal.task_progress import Report
from shoal_workers.index.build.document_encoder import SYNC_EVERY, DocumentEncoder, Encoded
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.build.vectors import VectorPlan, texts_of
from shoal_workers.index.files.array_file import write_header
from shoal_workers.index.lexical.lexical_file import WEIGHT, WEIGHTS, weights_of


class _Outputs:
    """The open files with the outputs of new texts; the state of the build says how much is safe on the disk."""

    def __init__(self, folder: Path, state: BuildState, file: str, shape: tuple[int, int], learns_words: bool):
        paths = [folder / file, *([folder / WEIGHTS] if learns_words else [])]
        if not all(path.exists() for path in paths):
            state.num_embedded = state.num_weights = 0
        self.num_done, self.num_weights = state.num_embedded, state.num_weights
        self._folder, self._state, self._dimension = folder, state, shape[1]
        self._files = [path.open("r+b") if state.num_embedded else path.open("wb") for path in paths]
        self._vectors, *weights = self._files
        self._weights = weights[0] if weights else None
        write_header(self._vectors, np.float32, shape)
        self._vectors.seek(self.num_done * 4 * self._dimension, os.SEEK_CUR)
        for other in weights:
            other.seek(self.num_weights * WEIGHT.itemsize)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def add(self, found: Encoded) -> None:
        """Write the outputs of the next texts. Raises IndexMismatch for vectors of another dimension."""
        if found.vectors.shape[1] != self._dimension:
            raise IndexMismatch(
                f"vectors have {found.vectors.shape[1]} dimensions, those of the index {self._dimension}"
            )
        self._vectors.write(found.vectors.tobytes())
        if self._weights:
            weights = weights_of(found.sparse, self.num_done)
            self._weights.write(weights.tobytes())
            self.num_weights += len(weights)
        self.num_done += len(found.vectors)

    def save(self) -> None:
        """Make what is written safe on the disk, and note it in the state of the build."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        self._state.num_embedded, self._state.num_weights = self.num_done, self.num_weights
        self._state.save(self._folder)


def outputs_of(model: ModelInfo, language: str | None) -> tuple[str, ...]:
    """Return the outputs that a build needs of its model for words of this language."""
    return (*(("vector",) if model.dimension else ()), *(("sparse",) if language == LEARNED else ()))


def encode_texts(folder: Path, state: BuildState, plan: VectorPlan, encoder: DocumentEncoder, report: Report) -> None:
    """Encode the new texts, or after an interruption the rest of them, into files in the folder of a build.

    Raises Unsupported if the words are to be learned, and the model makes no sparse vectors.
    """
    new_rows, outputs = plan.new_rows, outputs_of(encoder.model, state.arguments["language"])
    shape = (len(new_rows), encoder.model.dimension)
    with _Outputs(folder, state, plan.file, shape, "sparse" in outputs) as files:
        progress = replace(state.progress("embedding", files.num_done / max(1, len(new_rows))), rows=files.num_done)
        texts = texts_of(folder, state.count, new_rows[files.num_done :])
        try:
            with closing(
                encoder.encode(texts, outputs, lambda reason: report(replace(progress, step=reason)))
            ) as groups:
                for found in groups:
                    files.add(found)
                    if files.num_done - state.num_embedded >= SYNC_EVERY or files.num_done == len(new_rows):
                        files.save()
                    progress = replace(progress, rows=files.num_done, fraction=files.num_done / len(new_rows))
                    report(progress)
        except Unsupported as error:
            if "sparse" not in outputs:
                raise
            other = "another language, or with " if "vector" in outputs else ""
            raise Unsupported(
                f"{encoder.model.name} makes no sparse vectors, which the language learned needs: build the index with "
                f"{other}another model"
            ) from error
