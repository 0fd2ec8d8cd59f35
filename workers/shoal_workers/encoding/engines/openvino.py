"""The OpenVINO engine, for any CPU. It needs the prepared graph, and no torch."""

import logging
import os
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal.errors import ModelMismatch
from shoal_workers.encoding.engines import INT8_VERSION, Pooled, int8
from shoal_workers.encoding.engines.compile_cache import load_or_make
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.pooling import pool
from shoal_workers.model.graph import core
from shoal_workers.model.model import GRAPH, Model
from shoal_workers.process import processors
from shoal_workers.process.processors import at_low_priority

log = logging.getLogger(__name__)

#: Number of batch shapes for which a stream keeps compiled code. Code for a shape takes up to 1 MB, and 1 ms to compile
#: again. With OpenVINO's higher default, a worker's memory doubles as the worker meets more shapes.
_KEPT_BY_OPENVINO = 64

#: oneDNN keeps no code that streams share, because a stream sometimes gets wrong code if that cache is full. Measured
#: in f32 with two streams and rows of 64 tokens: wrong vectors in 33 of 286 passes with room for one primitive, in 3 of
#: 324 with room for 32, and in none of 1,126 without a cache.
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
        self._folder, self._state = folder, _state(folder)
        self.threads = threads
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = _KEPT_BY_ONEDNN
        # In int8, everything except the products is computed in the fastest precision; without fixed steps in f32,
        # because bf16 then gives wrong vectors on AMX.
        rest = fastest if self.fixed_steps else "f32"
        options: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": rest if precision == "int8" else self.precision,
            "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_BY_OPENVINO,
            "CACHE_MODE": "OPTIMIZE_SIZE",  # the file refers to the weights in the folder instead of copying them
            # With pinning, all workers would use the same first processors.
            "ENABLE_CPU_PINNING": False,
        }
        if precision == "int8":
            options |= int8.PROPERTIES
        self._graph = _Graph(folder, self.precision, options, self.fixed_steps)
        together = self._graph.compile(num_streams=1)
        self._together = together.create_infer_request()
        self.num_streams = threads
        side_by_side = self._graph.compile(num_streams=threads) if threads > 1 else together
        self._side_by_side = [side_by_side.create_infer_request() for _ in range(threads)]

    def start(self, packings: Sequence[Packing], together: bool = False) -> "list[OpenVinoPass]":
        return _started([self._together] if together else self._side_by_side, packings)

    def start_aside(self, packings: Sequence[Packing]) -> "list[OpenVinoPass]":
        return _started(self._aside, packings)

    @cached_property
    def _aside(self) -> list[Any]:
        if _state(self._folder) == self._state:
            compiled = at_low_priority(partial(self._graph.compile, num_streams=self.num_streams))
        else:  # the files are another model by now, so passes aside run at normal priority
            compiled = self._side_by_side[0].get_compiled_model()
        return [compiled.create_infer_request() for _ in range(self.num_streams)]

    def resized(self, threads: int) -> "OpenVinoEngine":
        if _state(self._folder) != self._state:
            raise ModelMismatch(f"the model in {self._folder} was prepared anew: start the worker again")
        return type(self)(self._folder, self.precision, threads, self.fixed_steps)


def _started(requests: Sequence[Any], packings: Sequence[Packing]) -> "list[OpenVinoPass]":
    """Start a pass over each packing. If one cannot start, wait for the passes that did."""
    passes: list[OpenVinoPass] = []
    try:
        for request, packing in zip(requests, packings, strict=False):
            passes.append(OpenVinoPass(request, packing))
    except Exception:
        for started in passes:
            started.request.wait()  # the pass reads the packing until it ends
        raise
    return passes


def _state(folder: Path) -> tuple[int, ...]:
    state = (folder / GRAPH).stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


class _Graph:
    """The prepared graph, compiled once for all workers and kept in a file of its folder if the folder is writable."""

    def __init__(self, folder: Path, precision: str, options: dict[str, Any], fixed_steps: bool):
        self._folder = folder
        self._precision = precision
        self._options = options
        self._fixed_steps = fixed_steps
        self._compiled = self._load() if os.access(folder, os.W_OK) else b""

    def compile(self, num_streams: int) -> Any:
        """Return the graph, compiled for `num_streams` passes side by side."""
        options = self._options | {"NUM_STREAMS": num_streams}
        if self._compiled:
            try:
                weights = {"WEIGHTS_PATH": str((self._folder / GRAPH).with_suffix(".bin"))}
                return core().import_model(self._compiled, "CPU", options | weights)
            except RuntimeError as error:
                self._compiled = b""
                self._warn(error)
        return core().compile_model(self._read(), "CPU", options)

    def _load(self) -> bytes:
        """Return the bytes of the compiled graph; empty if its file can be neither read nor written."""
        state = (self._folder / GRAPH).stat()
        processor = core().get_property("CPU", "FULL_DEVICE_NAME")
        computes_in = (self._precision, self._options["INFERENCE_PRECISION_HINT"], self._fixed_steps)
        made_for = (ov.__version__, INT8_VERSION, processor, *computes_in, state.st_size, state.st_mtime_ns)
        name = blake2b(repr(made_for).encode(), digest_size=8).hexdigest()
        try:
            return load_or_make(self._folder / "cache" / name, self._make)
        except (OSError, RuntimeError) as error:
            self._warn(error)
            return b""

    def _make(self) -> bytes:
        contents: bytes = core().compile_model(self._read(), "CPU", self._options).export_model().getvalue()
        return contents

    def _read(self) -> Any:
        graph = core().read_model(self._folder / GRAPH)
        if self._precision != "int8":
            return graph
        if self._fixed_steps:
            int8.quantise(graph, self._ranges)
        else:
            int8.compress(graph)
        return graph

    @cached_property
    def _ranges(self) -> list[int8.Range]:
        return int8.load_ranges(self._folder, self._options["INFERENCE_NUM_THREADS"])

    def _warn(self, error: Exception) -> None:
        reason = str(error).strip().rpartition("\n")[2]
        log.warning(
            "%s cannot be used (%s), so the graph is compiled at every start: delete it, or make it writable",
            self._folder / "cache",
            reason,
        )


class OpenVinoPass:
    """A pass as a running inference request. It keeps its inputs alive, because OpenVINO reads them in place."""

    def __init__(self, request: Any, packing: Packing):
        self.request, self._packing = request, packing
        request.start_async(dict(enumerate(packing)), share_inputs=True)

    def ends_within(self, seconds: float) -> bool:
        return bool(self.request.wait_for(int(seconds * 1_000)))

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        self.request.wait()
        tokens: NDArray[np.float32] = self.request.get_output_tensor(0).data
        flat = tokens.reshape(-1, tokens.shape[-1])
        return {how: pool(how, flat, spans) for how in poolings}
