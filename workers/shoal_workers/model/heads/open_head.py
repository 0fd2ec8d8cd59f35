"""A head that is ready to compute, as an OpenVINO graph."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal.contract.vectors import SparseVector
from shoal_workers.model.graph import core
from shoal_workers.model.model import Head

Array = NDArray[np.float32]

#: The graph of a "max" head returns only the largest numbers of each group of this number of tokens, to copy less.
GROUP = 8

#: Largest number of values, and of rows, that the graph makes at a time. More values would leave the processor's cache;
#: more rows would mean more shapes, each of which is compiled once.
MAX_VALUES, MAX_ROWS = 1 << 22, 256


class OpenHead:
    """A head's compiled graph, which computes the texts of a pass together. Not thread-safe."""

    def __init__(self, head: Head, graph: ov.Model, precision: str, threads: int):
        self.head, self.threads = head, threads
        options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        compiled = core().compile_model(graph, "CPU", options | {"ENABLE_CPU_PINNING": False})
        self._request = compiled.create_infer_request()

    def compute(self, tokens: Sequence[Array], ids: Sequence[Sequence[int]], are_queries: Sequence[bool]) -> list[Any]:
        """Return the output of each text: a SparseVector, or vectors `[vectors, dimension]`, not normalised.

        `tokens` has the token vectors of each text, `[tokens, width]`.
        """
        if self.head.kind in ("max", "sum"):
            return [self._words(weights) for weights in self._reduced(tokens)]
        numbers = np.split(np.concatenate([*self._numbers(tokens, 1)]), np.cumsum([len(rows) for rows in tokens])[:-1])
        finish = self._of_ids if self.head.kind == "ids" else self._vectors
        return [finish(*one) for one in zip(numbers, ids, are_queries, strict=True)]

    def _numbers(self, tokens: Sequence[Array], group: int) -> Iterator[Array]:
        """Yield the largest numbers of each `group` of tokens, `[groups, size]`.

        The last token of a text fills the text's last group.
        """
        counts = [len(rows) for rows in tokens]
        starts = np.cumsum(counts) - counts
        filled = [np.minimum(np.arange(-(-count // group) * group), count - 1) for count in counts]
        places = np.concatenate([start + place for start, place in zip(starts, filled, strict=True)])
        rows = np.concatenate(tokens)[places].reshape(-1, group, tokens[0].shape[1])
        step = max(1, min(MAX_ROWS, MAX_VALUES // (group * self.head.size)))
        for begin in range(0, len(rows), step):
            self._request.infer([rows[begin : begin + step]], share_inputs=True)
            yield self._request.get_output_tensor(0).data.copy()

    def _reduced(self, tokens: Sequence[Array]) -> Array:
        """Return the weights of all words for each text, `[texts, size]`; for "max", before the logarithm."""
        group, operation = (GROUP, np.maximum) if self.head.kind == "max" else (1, np.add)
        owners = np.repeat(np.arange(len(tokens)), [-(-len(rows) // group) for rows in tokens])
        found, begin = np.zeros((len(tokens), self.head.size), np.float32), 0
        for numbers in self._numbers(tokens, group):
            if self.head.kind == "sum":
                numbers = self._logarithms(np.maximum(numbers, 0))
            owner = owners[begin : begin + len(numbers)]
            firsts = np.flatnonzero(np.diff(owner, prepend=-1))
            found[owner[firsts]] = operation(found[owner[firsts]], operation.reduceat(numbers, firsts, axis=0))
            begin += len(numbers)
        return found

    def _logarithms(self, numbers: Array) -> Array:
        for _ in range(self.head.num_logs):
            numbers = np.log1p(numbers)
        return numbers

    def _words(self, weights: Array) -> SparseVector:
        indices = np.flatnonzero(weights)
        values = weights[indices]
        return self._sparse(indices, self._logarithms(values) if self.head.kind == "max" else values)

    def _of_ids(self, numbers: Array, ids: Sequence[int], is_query: bool) -> SparseVector:
        kept = self._kept(ids, is_query) & (numbers[:, 0] > 0)
        indices, places = np.unique(np.array(ids)[kept], return_inverse=True)
        values = np.zeros(len(indices), np.float32)
        np.maximum.at(values, places, numbers[kept, 0])
        return self._sparse(indices, values)

    def _sparse(self, indices: NDArray[np.intp], values: Array) -> SparseVector:
        if 0 < (most := self.head.max_weights) < len(values):
            largest = np.sort(np.argpartition(values, -most)[-most:])
            indices, values = indices[largest], values[largest]
        return SparseVector(indices.astype(np.int32), values)

    def _vectors(self, numbers: Array, ids: Sequence[int], is_query: bool) -> Array:
        return numbers[1:] if self.head.kind == "rest" else numbers[self._kept(ids, is_query)]

    def _kept(self, ids: Sequence[int], is_query: bool) -> NDArray[np.bool_]:
        skipped = () if is_query and not self.head.skips_queries else self.head.skipped
        return ~np.isin(ids, skipped)
