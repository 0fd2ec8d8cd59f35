"""The check of a version before it is published: documents of a sample are searched for by their own texts."""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from shoal.contract.vectors import SparseVector
from shoal.errors import IndexCorrupt
from shoal_workers.index.build.document_encoder import DocumentEncoder
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.build.vectors import texts_of
from shoal_workers.index.lexical.lexical_index import LexicalIndex, terms_of
from shoal_workers.index.vectors.exact_search import ExactSearch
from shoal_workers.index.vectors.quantisation import QuantisedVectors

#: Number of vectors searched at a time. Their codes stay in the processor's cache for all queries.
SEARCHED_AT_ONCE = 2**16

#: The share of rows that are sampled, the sample's least and largest size, and the least share that must be found.
SAMPLED_SHARE, MIN_SAMPLED, MAX_SAMPLED, MIN_FOUND = 0.005, 20, 1_000, 0.99

#: Scores that differ by no more than this count as equal. The scores of one text that was embedded in different batches
#: differ by less than that, and the scores of two documents with nearly the same text by little more.
TOLERANCE = 0.01


def check_sample(
    state: BuildState,
    encoder: DocumentEncoder,
    outputs: Sequence[str],
    vectors: NDArray[np.float32],
    quantised: QuantisedVectors,
    words: LexicalIndex | None,
) -> float:
    """Search for the texts of a sample, and return the share of documents that vectors and learned `words` find.

    The name of the version is the seed of the sample. Raises IndexCorrupt if a smaller share than `MIN_FOUND` is found.
    """
    num_sampled = min(state.count, int(np.clip(SAMPLED_SHARE * state.count, MIN_SAMPLED, MAX_SAMPLED)))
    seed = int.from_bytes(blake2b(state.version.encode(), digest_size=8).digest())
    rows = np.sort(np.random.default_rng(seed).choice(state.count, num_sampled, replace=False))
    encoded = list(encoder.encode(texts_of(state.folder, state.count, rows), outputs, state.report))
    is_found = np.ones(len(rows), bool)
    if vectors.shape[1]:
        queries = np.concatenate([found.vectors for found in encoded])
        is_found &= _are_nearest(rows, queries, vectors, quantised, partial(state.report, "validating"))
    if words:
        sparse = [vector for found in encoded for vector in found.sparse]
        is_found &= [_is_weighed(*one, words) for one in zip(rows.tolist(), sparse, strict=True)]
    if (num_found := int(is_found.sum())) < MIN_FOUND * len(is_found):
        raise IndexCorrupt(
            f"the new version is not published: of {len(is_found):,} of its documents, {num_found:,} are found by "
            "their own texts; were workers started with other settings since the last build? Build again, with "
            "--full"
        )
    return num_found / len(is_found)


def _are_nearest(
    rows: NDArray[np.int64],
    queries: NDArray[np.float32],
    vectors: NDArray[np.float32],
    quantised: QuantisedVectors,
    report: Callable[[float], object],
) -> NDArray[np.bool_]:
    """Return a mask of the rows whose own score is the best score in a search for the row's text."""
    best = np.full(len(rows), -np.inf, np.float32)
    for start in range(0, len(vectors), SEARCHED_AT_ONCE):
        report(start / len(vectors))
        part = slice(start, start + SEARCHED_AT_ONCE)
        search = ExactSearch(vectors[part], QuantisedVectors(quantised.codes[part], quantised.basis))
        best = np.maximum(best, search.top_k(queries, 1).scores[:, 0])
    # If the best score is lower than the document's own, the search missed the document.
    return np.asarray(np.abs(np.vecdot(queries, vectors[rows]) - best) <= TOLERANCE)


def _is_weighed(row: int, vector: SparseVector, words: LexicalIndex) -> bool:
    """Return True if the weights of a text equal its weights in the postings, apart from rounding."""
    product = float(words.impacts_in(row, terms_of(vector.indices)) @ vector.values) * words.step
    expected = float(vector.values @ vector.values)
    return abs(product - expected) <= words.step * float(vector.values.sum()) + TOLERANCE * expected
