"""The token vectors of a version, copied from the former version or made by the late-interaction model."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import Options
from shoal.contract.vectors import cut_and_normalise
from shoal_workers.index.build.document_encoder import GROUP, SYNC_EVERY
from shoal_workers.index.build.scratch import BuildState, KeptFiles
from shoal_workers.index.build.vectors import FormerVersion, VectorPlan, texts_of
from shoal_workers.index.files.array_file import save_array, write_header
from shoal_workers.index.files.documents import HashTable
from shoal_workers.index.files.manifest import HASHES, TOKEN_PLACES, TOKENS
from shoal_workers.index.vectors.token_vectors import TokenVectors, quantised

if TYPE_CHECKING:
    from shoal_workers.encoding.reranker import LateReranker

#: The files in the folder of a build with the number of token vectors of each text, and the hashes of these texts.
LENGTHS, TOKEN_HASHES = "token-lengths.records", "token-hashes.records"


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
        rows, done, saved, num_new = plan.new_rows[order], 0, 0, len(order)
        in_order = hashes.in_order()[rows].tobytes()
        if not plan.num_kept:
            write_header(files[TOKENS], np.int8, (0, width))
        texts = texts_of(folder, state.count, rows[np.count_nonzero(known >= 0) :])
        for found in _groups(tokens, known[known >= 0], texts, encoder):
            files[TOKENS].writelines(codes.tobytes() for codes in found)
            files[LENGTHS].write(np.array([len(codes) for codes in found], np.int64).tobytes())
            files[TOKEN_HASHES].write(in_order[16 * done : 16 * (done + len(found))])
            done += len(found)
            if done - saved >= SYNC_EVERY or done == num_new:
                files.save()
                saved = done
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
