"""Encoding of the texts that the former version lacks: their outputs and token vectors go into files of the build."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.served_model import ModelInfo
from shoal.contract.languages import LEARNED
from shoal.contract.options import Options
from shoal.contract.vectors import cut_and_normalise
from shoal.errors import DiskFull, IndexMismatch, Unsupported
from shoal_workers.index.build.document_encoder import GROUP, DocumentEncoder
from shoal_workers.index.build.scratch import BuildState, KeptFiles
from shoal_workers.index.build.vectors import EMBEDDED, EMBEDDED_HASHES, FormerVersion, VectorPlan, texts_of
from shoal_workers.index.files.array_file import save_array, write_header
from shoal_workers.index.files.documents import HASH_BYTES, HashTable
from shoal_workers.index.files.manifest import HASHES, TOKEN_PLACES, TOKENS
from shoal_workers.index.lexical.lexical_file import WEIGHTS, weights_of
from shoal_workers.index.vectors.token_vectors import TokenVectors, quantised

if TYPE_CHECKING:
    from shoal_workers.encoding.reranker import LateReranker

#: The files in the folder of a build with the number of token vectors of each text, and the hashes of these texts.
LENGTHS, TOKEN_HASHES = "token-lengths.records", "token-hashes.records"


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
    done, end = plan.num_kept, plan.num_kept + len(plan.new_rows)
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
            found = {EMBEDDED: vectors.tobytes()}
            found[EMBEDDED_HASHES] = of_texts[done - plan.num_kept :][: len(vectors)].tobytes()
            if "sparse" in outputs:
                found[WEIGHTS] = weights_of(sparse, done).tobytes()
            done += len(vectors)
            files.add(len(vectors), found, done == end)
            report("embedding")


def write_tokens(state: BuildState, former: FormerVersion | None, encoder: "LateReranker", reuses: bool) -> None:
    """Write the token vectors of all rows; vectors that a killed build has written are reused."""
    folder = state.folder
    tokens = TokenVectors.undamaged(folder.parent / former.name, encoder.token_digest) if former else None
    hashes, width = HashTable.open(folder, HASHES, state.count), encoder.model.heads[encoder.output].size
    with KeptFiles(folder, "tokens", [encoder.token_digest, reuses], (TOKENS, LENGTHS, TOKEN_HASHES)) as files:
        plan = VectorPlan.make(hashes, None, HashTable.of((folder / TOKEN_HASHES).read_bytes()))
        known = np.full(len(plan.new_rows), -1)
        if former and tokens:
            known = hashes.find_in(former.hashes)[plan.new_rows]
        order = np.argsort(known < 0, kind="stable")  # texts of the former version go first
        rows, done, num_new = plan.new_rows[order], 0, len(order)
        in_order = hashes.in_order()[rows].tobytes()
        if not plan.num_kept:
            write_header(files[TOKENS], np.int8, (0, width))
        texts = texts_of(folder, state.count, rows[np.count_nonzero(known >= 0) :])
        for found in _groups(tokens, known[known >= 0], texts, encoder):
            outputs = {TOKENS: b"".join(codes.tobytes() for codes in found)}
            outputs[LENGTHS] = np.array([len(codes) for codes in found], np.int64).tobytes()
            outputs[TOKEN_HASHES] = in_order[HASH_BYTES * done : HASH_BYTES * (done + len(found))]
            done += len(found)
            files.add(len(found), outputs, done == num_new)
            state.report("embedding tokens", done / num_new)
        ends = np.cumsum(np.fromfile(folder / LENGTHS, np.int64))
        state.num_tokens = int(ends[-1])
        files[TOKENS].seek(0)
        write_header(files[TOKENS], np.int8, (state.num_tokens, width))
    places = np.concatenate([np.arange(plan.num_kept), plan.num_kept + np.argsort(order)])[-1 - plan.taken_from]
    save_array(folder / TOKEN_PLACES, np.stack([np.append(0, ends[:-1]), ends], axis=1)[places])


def _groups(
    former: TokenVectors | None, reused: NDArray[np.int64], texts: Iterator[str], encoder: "LateReranker"
) -> Iterator[list[NDArray[np.int8]]]:
    """Yield the codes of the `reused` rows of the former version, then the codes of the texts, in groups of `GROUP`."""
    for start in range(0, len(reused) if former else 0, GROUP):
        assert former
        yield [former.of(row) for row in reused[start : start + GROUP].tolist()]
    options = Options(output=encoder.output)
    while group := list(islice(texts, GROUP)):
        encoded = encoder.encoded(group, options, encoder.prefix)
        yield [quantised(cut_and_normalise([text.made[encoder.output]], Options())) for text in encoded]
