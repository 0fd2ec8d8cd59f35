"""The check of a version before it is published: documents are found by their own texts."""

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.build.document_encoder import DocumentEncoder, Waiting
from shoal_workers.index.build.vectors import read_texts
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.search import batch_top_k

#: Part of the documents in the sample, and least and most documents in it.
SHARE, LEAST, MOST = 0.005, 20, 1_000

#: Least part of the sample that is found.
MIN_FOUND = 0.99

#: Scores that differ by no more than this count as equal. The vectors of a text in different batches differ by less,
#: and those of two documents with nearly the same text by little more.
TOLERANCE = 0.01


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

    `report` is called with the part of the search that is done.

    A document is found if the best score that the search returns is its own. The sample is random with the name of the
    version as its seed. Raises IndexCorrupt if less than `MIN_FOUND` are found, or if no search is possible.
    """
    report(0)
    count = len(vectors)
    num_sampled = min(count, int(np.clip(SHARE * count, LEAST, MOST)))
    seed = int.from_bytes(blake2b(version.encode(), digest_size=8).digest())
    rows = np.sort(np.random.default_rng(seed).choice(count, num_sampled, replace=False))
    queries = np.concatenate(list(encoder.embed(read_texts(folder, count, rows), waiting)))
    try:
        best = batch_top_k(vectors, quantised, queries, 1, report).scores[:, 0]
    except IndexError as error:
        raise IndexCorrupt(
            "the new version is not published: its quantised vectors do not belong to its vectors. Build again"
        ) from error
    # A lower best score is a document that the search missed.
    num_found = int((np.abs(np.vecdot(queries, vectors[rows]) - best) <= TOLERANCE).sum())
    if num_found < MIN_FOUND * num_sampled:
        raise IndexCorrupt(
            f"the new version is not published: of {num_sampled:,} of its documents, {num_found:,} are found by their "
            "own texts; were workers started with other settings since the last build? Build again, with --full"
        )
    return num_found / num_sampled
