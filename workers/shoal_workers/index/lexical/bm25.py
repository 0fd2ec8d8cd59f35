"""BM25, the weight of a term in a document (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework").

The score of a document is the sum, over the terms of the query, of the weight of the term, which is the larger the
fewer documents have it, times its impact: the larger the more often the document has it, and the shorter the document.
"""

import numpy as np
from numpy.typing import NDArray

#: The parameters, as Lucene and Elasticsearch have them: saturation by repeated terms, and influence of the length.
K1, B = 1.2, 0.75

#: An impact is a whole number of these steps, and at most 255.
IMPACT_STEP = (K1 + 1) / 255


def impacts(
    counts: NDArray[np.integer], lengths: NDArray[np.integer] | int, average_length: float
) -> NDArray[np.uint8]:
    """Return the impacts of terms that documents of so many terms have so often, in steps; none is 0."""
    norm = K1 * (1 - B + B * np.asarray(lengths, np.float64) / average_length)
    exact = counts * (K1 + 1) / (counts + norm)
    return np.clip(np.rint(exact / IMPACT_STEP), 1, 255).astype(np.uint8)


def weights(num_with: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the weights of terms that `num_with` of `count` documents have, for an impact of one step."""
    return np.log1p((count - num_with + 0.5) / (num_with + 0.5)) * IMPACT_STEP
