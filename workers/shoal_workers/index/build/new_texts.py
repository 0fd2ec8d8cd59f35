"""Encoding of the texts that the former version lacks: one pass writes all their outputs into files of the build."""

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

import numpy as np

from shoal.bulk.served_model import ModelInfo
from shoal.contract.languages import LEARNED
from shoal.errors import DiskFull, IndexMismatch, Unsupported
from shoal_workers.index.build.document_encoder import SYNC_EVERY, DocumentEncoder
from shoal_workers.index.build.scratch import BuildState, KeptFiles
from shoal_workers.index.build.vectors import EMBEDDED, EMBEDDED_HASHES, FormerVersion, VectorPlan, texts_of
from shoal_workers.index.files.array_file import write_header
from shoal_workers.index.files.documents import HashTable
from shoal_workers.index.files.manifest import HASHES
from shoal_workers.index.lexical.lexical_file import WEIGHTS, weights_of


def outputs_of(model: ModelInfo, language: str | None) -> tuple[str, ...]:
    """Return the model's outputs that a build in this language needs; only learned words need sparse vectors."""
    return (*(("vector",) if model.dimension else ()), *(("sparse",) if language == LEARNED else ()))


def encode_texts(
    state: BuildState, former: FormerVersion | None, encoder: DocumentEncoder, outputs: Sequence[str], reuses: bool
) -> VectorPlan:
    """Encode the texts that neither the former version nor a killed build has encoded; return the plan of all vectors.

    The outputs are in files in the folder of the build. A build that does not reuse former versions ignores the files
    of a killed build that reused them. Raises DiskFull, and Unsupported if the words are to be learned but the model
    makes no sparse vectors.
    """
    folder, dimension = state.folder, encoder.model.dimension
    hashes = HashTable.open(folder, HASHES, state.count)
    names = [EMBEDDED, EMBEDDED_HASHES, *([WEIGHTS] if "sparse" in outputs else [])]
    with KeptFiles(folder, "embedded", [asdict(encoder.model), reuses], names) as files:
        plan = VectorPlan.make(hashes, former, HashTable.of((folder / EMBEDDED_HASHES).read_bytes()))
        num_new = len(plan.new_rows)
        needed = 4 * dimension * (state.count + (num_new if num_new < state.count else 0))
        if needed > (free := shutil.disk_usage(folder).free):
            raise DiskFull(
                f"the vectors of {state.count:,} documents take {needed:,} bytes, and {folder.parent} has {free:,} "
                "free: free some space; an index there is unchanged"
            )
        if not plan.num_kept:
            write_header(files[EMBEDDED], np.float32, (num_new, dimension))
        try:
            _encode(state, plan, files, hashes, encoder, outputs)
        except Unsupported as error:
            if "sparse" not in outputs:
                raise
            other = "another language, or with " if "vector" in outputs else ""
            raise Unsupported(
                f"{encoder.model.name} makes no sparse vectors, which the language learned needs: build the index with "
                f"{other}another model"
            ) from error
        files[EMBEDDED].seek(0)
        write_header(files[EMBEDDED], np.float32, (plan.num_kept + num_new, dimension))
    return plan


def _encode(
    state: BuildState,
    plan: VectorPlan,
    files: KeptFiles,
    hashes: HashTable,
    encoder: DocumentEncoder,
    outputs: Sequence[str],
) -> None:
    """Encode the plan's new texts, and append the outputs to the files."""
    done, end, saved = plan.num_kept, plan.num_kept + len(plan.new_rows), plan.num_kept
    of_texts = hashes.in_order()[plan.new_rows]
    texts = texts_of(state.folder, state.count, plan.new_rows)

    def report(step: str) -> None:
        state.report(step, done / max(1, end), done)

    with closing(encoder.encode(texts, outputs, report)) as groups:
        for vectors, sparse in groups:
            if vectors.shape[1] != encoder.model.dimension:
                raise IndexMismatch(
                    f"vectors have {vectors.shape[1]} dimensions, and the index has {encoder.model.dimension}"
                )
            files[EMBEDDED].write(vectors.tobytes())
            files[EMBEDDED_HASHES].write(of_texts[done - plan.num_kept :][: len(vectors)].tobytes())
            if "sparse" in outputs:
                files[WEIGHTS].write(weights_of(sparse, done).tobytes())
            done += len(vectors)
            if done - saved >= SYNC_EVERY or done == end:
                files.save()
                saved = done
            report("embedding")
