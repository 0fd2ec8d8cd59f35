"""The OpenVINO engine: the default on CPUs. It needs the exported graph and no torch."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal_workers.encoding.engines import Pooled, int8
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.pooling import pool
from shoal_workers.model.model import GRAPH
from shoal_workers.process import processors

#: How much compiled code is kept for shapes of batches seen before. Code for a shape takes up to 1 MB and 1 ms to make
#: anew; without limits, which are higher by default, a worker's memory doubles as it meets ever more shapes.
_KEPT_BY_ONEDNN, _KEPT_BY_OPENVINO = "32", 64


class OpenVinoEngine:
    """The prepared graph, compiled twice: for one pass on all threads, and for passes side by side on one thread each.

    Threads of one pass wait for each other in some sixty places, which costs much where other processes need the
    processors. The compiled forms are cached beside the graph where the folder can be written to.
    """

    name = "openvino"

    def __init__(self, folder: Path, precision: str, threads: int):
        fastest = "bf16" if processors.has_bf16() else "f32"
        self.precision = fastest if precision == "auto" else precision
        self.threads = threads
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KEPT_BY_ONEDNN)
        options: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": fastest if precision == "int8" else self.precision,
            "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_BY_OPENVINO,
            # Every worker would pin itself to the same first processors.
            "ENABLE_CPU_PINNING": False,
        }
        if os.access(folder, os.W_OK):
            options["CACHE_DIR"] = str(folder / "cache")
        core = ov.Core()
        graph: Any = str(folder / GRAPH)  # a path is quicker: with a warm cache the graph is not even read
        if precision == "int8":
            graph = core.read_model(graph)
            int8.compress(graph)
            options |= int8.PROPERTIES
        together = core.compile_model(graph, "CPU", options | {"NUM_STREAMS": 1})
        self._together = together.create_infer_request()
        self.num_streams = threads
        side_by_side = core.compile_model(graph, "CPU", options | {"NUM_STREAMS": threads}) if threads > 1 else together
        self._side_by_side = [side_by_side.create_infer_request() for _ in range(threads)]

    def start(self, packings: Sequence[Packing]) -> "list[OpenVinoPass]":
        """See `Engine.start`."""
        requests = self._side_by_side if len(packings) > 1 else [self._together]
        passes = [OpenVinoPass(*pair) for pair in zip(requests, packings, strict=False)]
        for n, running in enumerate(passes):
            try:
                running.start()
            except Exception:
                for started in passes[:n]:
                    started.wait_only()
                raise
        return passes


class OpenVinoPass:
    """One inference request under way. Holds its inputs, which OpenVINO reads in place."""

    def __init__(self, request: Any, packing: Packing):
        self._request = request
        self._packing = packing

    def start(self) -> None:
        """Start the request."""
        self._request.start_async(dict(enumerate(self._packing)), share_inputs=True)

    def wait_only(self) -> None:
        """Wait for the request, whose result is not wanted: until its end it reads the packing."""
        self._request.wait()

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        """See `ForwardPass.wait`."""
        self._request.wait()
        tokens: NDArray[np.float32] = self._request.get_output_tensor(0).data
        flat = tokens.reshape(-1, tokens.shape[-1])
        return {how: pool(how, flat, spans) for how in poolings}
