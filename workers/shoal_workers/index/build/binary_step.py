"""The step of a build that writes the bits of the vectors, for approximate search, and finds how many must be near."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.search.approximate_search import LEAST_CANDIDATES, LEAST_ROWS
from shoal_workers.index.search.binary_codes import BinaryCodes, binary
from shoal_workers.index.search.quantisation import QuantisedVectors
from shoal_workers.index.search.search import ExactSearch

log = logging.getLogger(__name__)

#: Documents whose nearest neighbours are looked for, and the neighbours of each.
NUM_SAMPLED, NUM_NEIGHBOURS = 200, 10

#: Part of all rows that are looked at in any case: queries of another kind than the documents need as many.
LEAST_SHARE = 1 / 250

#: Part of these neighbours whose bits are to be near enough. It is more than the recall that is promised, as queries
#: are less like documents than these are like each other.
MIN_RECALL = 0.998


def write_binary(
    folder: Path, vectors: NDArray[np.float32], quantised: QuantisedVectors, report: Callable[[float], object]
) -> int:
    """Write the bits of `vectors`, `[count, dimension]`, into the folder of a build.

    Returns how many rows a search must look at, or 0 for so few rows that they are searched exactly in any case.
    `report` is called with the part that is done.
    """
    if len(vectors) < LEAST_ROWS:
        log.warning(
            "%s has %s rows, fewer than %s: it is built for exact search, which is as quick",
            *(folder.parent, f"{len(vectors):,}", f"{LEAST_ROWS:,}"),
        )
        return 0
    BinaryCodes.write(folder, quantised.codes, lambda part: report(part / 2))
    codes = BinaryCodes.open(folder, *quantised.codes.shape)
    return find_num_candidates(vectors, quantised, codes, lambda part: report((1 + part) / 2))


def find_num_candidates(
    vectors: NDArray[np.float32], quantised: QuantisedVectors, codes: BinaryCodes, report: Callable[[float], object]
) -> int:
    """Return how many rows have `MIN_RECALL` of the nearest neighbours of some documents, by their bits."""
    search, ranks = ExactSearch(vectors, quantised), list[int]()
    sample = np.linspace(0, len(vectors) - 1, NUM_SAMPLED).astype(np.int64)
    for done, row in enumerate(sample.tolist()):
        report(done / len(sample))
        found = search.top_k(vectors[row : row + 1], NUM_NEIGHBOURS + 1).rows[0]
        query = binary(quantised.basis.encode_queries(vectors[row : row + 1]).codes)[:, 0]
        distances = codes.all_distances(query)
        num_within = np.cumsum(np.bincount(distances))
        ranks += num_within[distances[found[found != row][:NUM_NEIGHBOURS]]].tolist()
    least = max(LEAST_CANDIDATES, int(LEAST_SHARE * len(vectors)))
    return max(least, int(np.quantile(ranks, MIN_RECALL, method="higher")))
