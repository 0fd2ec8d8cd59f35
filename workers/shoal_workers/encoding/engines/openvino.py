"""The OpenVINO engine, for any CPU. It needs the prepared graph, and no torch."""

import os
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.engines import Pooled, int8
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.pooling import pool
from shoal_workers.model.graph import core
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.process import processors
from shoal_workers.process.processors import at_low_priority

#: Number of batch shapes for which a stream keeps compiled code. Code for a shape takes up to 1 MB, and 1 ms to compile
#: again. With OpenVINO's higher default, a worker's memory doubles as the worker meets more shapes.
_KEPT_BY_OPENVINO = 64

#: oneDNN's cache of code is off, because all streams share it, and a stream sometimes gets wrong code if it is full.
#: Measured in f32 with two streams and rows of 64 tokens: wrong vectors in 33 of 286 passes with room for one
#: primitive, in 3 of 324 with room for 32, and in none of 1,126 without a cache.
_KEPT_BY_ONEDNN = "0"


class OpenVinoEngine:
    """The prepared graph, compiled both for one pass on all threads and for one-thread passes side by side."""

    name = "openvino"
    is_ragged = False

    def __init__(self, folder: Path, precision: str, threads: int, may_fix_steps: bool):
        fastest = "bf16" if processors.has_bf16() else "f32"
        self.precision = fastest if precision == "auto" else precision
        # A reranker has no measured ranges, because `int8.texts` are not pairs.
        may_fix_steps = may_fix_steps and precision == "int8" and processors.has_vnni()
        self.fixed_steps = may_fix_steps and not Model.open(folder).is_reranker
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = _KEPT_BY_ONEDNN
        # The engine keeps this graph even if another process prepares another model in the folder.
        self._graph = core().read_model(folder / GRAPH)
        # In int8 with fixed steps, other operations than products run in the fastest precision. Without fixed steps
        # they run in f32, because bf16 then gives wrong vectors on AMX.
        rest = fastest if self.fixed_steps else "f32"
        self._options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": rest if precision == "int8" else self.precision,
            "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_BY_OPENVINO,
            # With pinning, all workers would use the same first processors.
            "ENABLE_CPU_PINNING": False,
        }
        if precision == "int8":
            self._options |= int8.PROPERTIES
            if self.fixed_steps:
                int8.quantise(self._graph, int8.load_ranges(folder, threads))
            else:
                int8.compress(self._graph)
        self._open(threads)

    def _open(self, threads: int) -> None:
        self.threads = self.num_streams = threads
        together = self._compile(num_streams=1)
        self._together = together.create_infer_request()
        side_by_side = self._compile(num_streams=threads) if threads > 1 else together
        self._side_by_side = [side_by_side.create_infer_request() for _ in range(threads)]

    def _compile(self, num_streams: int) -> Any:
        """Return the graph, compiled for `num_streams` passes side by side."""
        options = {"INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": num_streams}
        return core().compile_model(self._graph, "CPU", self._options | options)

    def start(self, packings: Sequence[Packing], together: bool = False) -> "list[OpenVinoPass]":
        requests = [self._together] if together else self._side_by_side
        return [OpenVinoPass(request, packing) for request, packing in zip(requests, packings, strict=False)]

    def start_aside(self, packings: Sequence[Packing]) -> "list[OpenVinoPass]":
        return [OpenVinoPass(request, packing) for request, packing in zip(self._aside, packings, strict=False)]

    @cached_property
    def _aside(self) -> list[Any]:
        compiled = at_low_priority(partial(self._compile, num_streams=self.num_streams))
        return [compiled.create_infer_request() for _ in range(self.num_streams)]

    def resized(self, threads: int) -> "OpenVinoEngine":
        engine = copy(self)
        vars(engine).pop("_aside", None)
        engine._open(threads)
        return engine


class OpenVinoPass:
    """A pass as a running inference request, which keeps its inputs, because OpenVINO reads them in place."""

    def __init__(self, request: Any, packing: Packing):
        request.wait()  # a pass goes on if another one, which was to run beside it, could not start
        self.request, request.packing = request, packing
        request.start_async(dict(enumerate(packing)), share_inputs=True)

    def ends_within(self, seconds: float) -> bool:
        return bool(self.request.wait_for(int(seconds * 1_000)))

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        self.request.wait()
        tokens: NDArray[np.float32] = self.request.get_output_tensor(0).data
        flat = tokens.reshape(-1, tokens.shape[-1])
        return {how: pool(how, flat, spans) for how in poolings}
