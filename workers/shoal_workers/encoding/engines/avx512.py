"""The engine avx512: Shoal's own kernel for processors with AVX-512, VNNI and BF16. It needs the prepared graph."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadSetting
from shoal_workers.avx512 import library
from shoal_workers.avx512.kernel import KernelModel, KernelPass, KernelThreads, load
from shoal_workers.avx512.weights import arrange, find_unsupported
from shoal_workers.encoding.engines import Pooled
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.pooling import pool
from shoal_workers.model.graph import stored_transformer
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.model.transformer import ScoreHead
from shoal_workers.process import processors
from shoal_workers.process.processors import at_low_priority

log = logging.getLogger(__name__)

#: The precisions of the kernel.
PRECISIONS = ("bf16", "int8")


class Avx512Engine:
    """A model in the kernel, with threads of normal and of low priority. Raises BadSetting if it cannot run here."""

    name = "avx512"
    fixed_steps = False
    is_ragged = True

    def __init__(self, model: Model, folder: Path, precision: str, threads: int):
        self.precision = "bf16" if precision == "auto" else precision
        if reason := _obstacle(self.precision):
            raise BadSetting(f"avx512 {reason}: openvino runs without")
        if not (reason := model.other_blocks):
            transformer = stored_transformer(folder / GRAPH)
            reason = find_unsupported(transformer)
        if reason:
            raise BadSetting(f"avx512 does not compute {reason}, as {model.name} has: openvino does")
        weights = arrange(transformer, model.max_tokens, self.precision == "bf16")
        opened = KernelModel(load(library.path()), weights)
        log.info("avx512 multiplies with %s", "AMX" if opened.uses_amx else "AVX-512, without AMX")
        self._open(opened, transformer.head, threads)

    def _open(self, model: KernelModel, head: ScoreHead | None, threads: int) -> None:
        self._model, self._head = model, head
        self.threads = self.num_streams = threads
        self._usual = KernelThreads(model, threads)
        self._aside = at_low_priority(lambda: KernelThreads(model, threads))

    def start(self, packings: Sequence[Packing], together: bool = False) -> "list[Avx512Pass]":
        num_parts = self.threads if together else 1
        return [Avx512Pass(KernelPass(self._usual, one.ids, one.positions, num_parts), self._head) for one in packings]

    def start_aside(self, packings: Sequence[Packing]) -> "list[Avx512Pass]":
        return [Avx512Pass(KernelPass(self._aside, one.ids, one.positions, 1), self._head) for one in packings]

    def resized(self, threads: int) -> "Avx512Engine":
        engine = object.__new__(type(self))
        engine.precision = self.precision
        engine._open(self._model, self._head, threads)
        return engine


class Avx512Pass:
    """A pass that the kernel's threads compute."""

    def __init__(self, running: KernelPass, head: ScoreHead | None):
        self._running = running
        self._head = head

    def ends_within(self, seconds: float) -> bool:
        return self._running.ends_within(seconds)

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        self._running.wait()
        pooled = {how: pool(how, self._running.tokens, spans, are_joined=True) for how in poolings}
        if (head := self._head) is None:
            return pooled
        return {how: _scores(vectors, head) for how, vectors in pooled.items()}  # a reranker scores first tokens alone


def _obstacle(precision: str) -> str:
    """Return why the engine cannot run here in that precision, as the end of a sentence; empty if it can."""
    if lacking := processors.lacking_for_avx512():
        return f"needs a processor with {', '.join(lacking)}"
    if precision not in PRECISIONS:
        return f"does not compute in {precision}"
    return "" if library.path().exists() else "is not compiled (python -m shoal_workers.avx512.library does it)"


_FUNCTIONS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
}


def _scores(vectors: NDArray[np.float32], head: ScoreHead) -> NDArray[np.float32]:
    inner = _FUNCTIONS[head.activation](vectors @ head.dense.weights.T + head.dense.bias)
    scores: NDArray[np.float32] = inner @ head.out.weights.T + head.out.bias
    return scores
