"""The token vectors of a version: taken from the version built last, or made by the late-interaction model."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import Options
from shoal.contract.replies import finish
from shoal.task_progress import Report
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.index.build.document_encoder import GROUP, SYNC_EVERY
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.build.vectors import FormerVersion, VectorPlan, texts_of
from shoal_workers.index.files.documents import HashTable
from shoal_workers.index.files.manifest import HASHES
from shoal_workers.index.late.token_vectors import TokenFile, TokenVectors, quantised

if TYPE_CHECKING:
    from shoal_workers.encoding.encoder import TokenizedText
    from shoal_workers.encoding.reranker import LateReranker


def write_tokens(
    folder: Path, state: BuildState, former: FormerVersion | None, encoder: "LateReranker", report: Report
) -> None:
    """Write the token vectors of all rows; after an interruption, only the rest of them."""
    tokens = TokenVectors.undamaged(folder.parent / former.name, encoder.token_digest) if former else None
    plan = VectorPlan.make(HashTable.open(folder, HASHES, state.count), former if tokens else None)
    reused = np.unique(plan.taken_from[plan.taken_from >= 0])
    num_texts, width = len(reused) + len(plan.new_rows), encoder.model.heads[encoder.output].size
    with TokenFile(folder, width, state.num_token_texts, state.num_tokens) as file:
        texts = texts_of(folder, state.count, plan.new_rows[max(0, file.num_texts - len(reused)) :])
        for found in _groups(tokens, reused[file.num_texts :], texts, encoder):
            file.add(found)
            if file.num_texts - state.num_token_texts >= SYNC_EVERY or file.num_texts == num_texts:
                file.sync()
                state.num_token_texts, state.num_tokens = file.num_texts, file.num_tokens
                state.save(folder)
            report(state.progress("embedding tokens", file.num_texts / num_texts))
        is_new = plan.taken_from < 0
        file.end(np.where(is_new, len(reused) - 1 - plan.taken_from, np.searchsorted(reused, plan.taken_from)))


def _groups(
    former: TokenVectors | None, reused: NDArray[np.int64], texts: Iterator[str], encoder: "LateReranker"
) -> Iterator[list[NDArray[np.int8]]]:
    """Yield the codes of the former version's rows, and then of the texts, `GROUP` of them at a time."""
    for start in range(0, len(reused) if former else 0, GROUP):
        assert former
        yield [former.of(row) for row in reused[start : start + GROUP].tolist()]
    options = Options(output=encoder.output)
    bucketing: Bucketing[TokenizedText] = Bucketing(2_048, encoder.model.shares_rows)
    while group := list(islice(texts, GROUP)):
        encoded = encoder.encoded(group, options, encoder.prefix, bucketing)
        yield [quantised(finish([text.made[encoder.output]], Options())) for text in encoded]
