"""The engines of Shoal's own kernel: avx512, avx2 and neon. They need the prepared graph."""

import logging
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadSetting
from shoal_workers.encoding.engines import Pooled
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.pooling import pool
from shoal_workers.kernel import library
from shoal_workers.kernel.kernel import KernelModel, KernelPass, KernelThreads, load
from shoal_workers.kernel.weights import arrange, find_unsupported
from shoal_workers.model.graph import stored_transformer
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.model.transformer import ScoreHead
from shoal_workers.process import processors
from shoal_workers.process.processors import at_low_priority

log = logging.getLogger(__name__)


class KernelEngine:
    """A model in the kernel, with threads of normal and of low priority. Raises BadSetting if it cannot run here."""

    fixed_steps = False
    is_ragged = True

    def __init__(self, name: str, model: Model, folder: Path, precision: str, threads: int):
        self.name = name
        target = library.own_target()
        self.precision = _precisions(name, target)[0] if precision == "auto" else precision
        if (reason := _obstacle(name, self.precision)) or not target:
            raise BadSetting(f"{name} {reason}: the engine auto chooses another")
        if not (reason := model.other_blocks):
            transformer = stored_transformer(folder / GRAPH)
            reason = find_unsupported(transformer)
        if reason:
            raise BadSetting(f"{name} does not compute {reason}, as {model.name} has: openvino does")
        head, weights = transformer.head, arrange(transformer, model.max_tokens, self.precision)
        del transformer  # the transformer takes as much memory as the kernel's weights
        opened = KernelModel(load(library.path(target)), weights)
        log.info("%s multiplies with %s", name, "AMX" if opened.uses_amx else target.vectors)
        self._model, self._head = opened, head
        self._open(threads)

    def _open(self, threads: int) -> None:
        self.threads = self.num_streams = threads
        self._usual = KernelThreads(self._model, threads)
        self._aside = at_low_priority(lambda: KernelThreads(self._model, threads))

    def start(self, packings: Sequence[Packing], together: bool = False) -> "list[EnginePass]":
        num_parts = self.threads if together else 1
        return [EnginePass(self._usual, packing, num_parts, self._head) for packing in packings]

    def start_aside(self, packings: Sequence[Packing]) -> "list[EnginePass]":
        return [EnginePass(self._aside, packing, 1, self._head) for packing in packings]

    def resized(self, threads: int) -> "KernelEngine":
        engine = copy(self)
        engine._open(threads)
        return engine


class EnginePass(KernelPass):
    """A `KernelPass` as a `ForwardPass`: its token vectors are pooled."""

    def __init__(self, threads: KernelThreads, packing: Packing, num_parts: int, head: ScoreHead | None):
        super().__init__(threads, packing.ids, packing.positions, num_parts)
        self._head = head

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        self.close()
        pooled = {how: pool(how, self.tokens, spans, are_joined=True) for how in poolings}
        if (head := self._head) is None:
            return pooled
        return {how: _scores(vectors, head) for how, vectors in pooled.items()}  # for a reranker, pooling is `cls`


def engine_for(precision: str) -> str:
    """Return the name of the kernel's engine that computes in `precision` on this processor, or else on another one."""
    own = library.own_target() or library.TARGETS[-1]
    suitable = (target for target in (own, *library.TARGETS) if precision in target.precisions)
    return next(suitable, own).engine


def _precisions(name: str, target: library.Target | None) -> tuple[str, ...]:
    """Return the precisions of the engine in the target's library, the default first."""
    return target.precisions if target and target.engine == name else ("f32",)


def _obstacle(name: str, precision: str) -> str:
    """Return why the engine cannot run here in that precision, as the end of a sentence; empty if it can."""
    needed = {"avx512": library.BF16, "avx2": library.AVX2}.get(name, library.NEON)
    if lacking := processors.lacking(needed.flags):
        return f"needs a processor with {', '.join(lacking)}"
    target = library.own_target()
    if precision not in _precisions(name, target):
        return f"does not compute in {precision} on this processor, or is not compiled for it"
    if target and library.path(target).exists():
        return ""
    return "is not compiled (python -m shoal_workers.kernel.library does it)"


_FUNCTIONS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
}


def _scores(vectors: NDArray[np.float32], head: ScoreHead) -> NDArray[np.float32]:
    inner = _FUNCTIONS[head.activation](vectors @ head.dense.weights.T + head.dense.bias)
    scores: NDArray[np.float32] = inner @ head.out.weights.T + head.out.bias
    return scores
