"""The products of an index's codes with those of several queries, which are computed together.

One pass over the codes for several queries takes little longer than one for a single query, as each code is read once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.vectors.quantisation import QuantisedQueries, QuantisedVectors
from shoal_workers.index.vectors.upper_bounds import Buffer, Map, UpperBounds

#: Most queries of a pass: the products of a row with all of them fill a cache line.
MAX_QUERIES = 16

#: Most products held at a time, to limit memory: 16 MiB.
MAX_PRODUCTS = 2**22


class Products(NamedTuple):
    """The products of all codes with those of one query, int32 `[count]`, and the query as codes."""

    products: NDArray[np.int32]
    query: QuantisedQueries


class SharedProducts:
    """The products for some `queries`, float32 `[queries, dimension]`, a few queries at a time. For one thread.

    Those that were asked for last lie in `buffer`, which nothing else may use meanwhile.
    """

    def __init__(self, quantised: QuantisedVectors, queries: NDArray[np.float32], buffer: Buffer, run: Map):
        self._quantised = quantised
        self._queries = queries
        self._buffer = buffer
        self._run = run
        self._places = {query.tobytes(): place for place, query in enumerate(queries)}
        self._at_once = max(1, min(MAX_QUERIES, MAX_PRODUCTS // len(quantised.codes)))
        self._start = -1

    def of(self, query: NDArray[np.float32]) -> Products | None:
        """Return the products for one of the queries, until the next call; None for another one."""
        if (place := self._places.get(query.tobytes())) is None:
            return None
        if (start := place - place % self._at_once) != self._start:
            self._start = start
            self._codes = self._quantised.basis.encode_queries(self._queries[start : start + self._at_once])
            self._bounds = UpperBounds(self._quantised.codes, self._codes.codes, self._buffer, self._run)
        number = place - start
        return Products(self._bounds.products(len(self._quantised.codes), number), self._codes.one(number))
