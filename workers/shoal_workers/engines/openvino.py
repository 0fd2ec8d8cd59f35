"""The OpenVINO engine: the default on CPUs. It needs the exported graph and no torch."""

import os
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal_workers import cpu
from shoal_workers.packing import Packing

#: Name of the exported graph in a prepared folder.
GRAPH = "openvino.xml"


class OpenVinoEngine:
    """Runs the exported graph. Its compiled form is cached beside it, where it may be: a second start is quick."""

    name = "openvino"

    def __init__(self, folder: Path, precision: str, threads: int):
        self.precision = ("bf16" if cpu.has_bf16() else "f32") if precision == "auto" else precision
        self.threads = threads
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": self.precision,
            # Every worker would pin itself to the same first processors.
            "ENABLE_CPU_PINNING": False,
        }
        if os.access(folder, os.W_OK):
            options["CACHE_DIR"] = str(folder / "cache")
        compiled = ov.Core().compile_model(str(folder / GRAPH), "CPU", options)
        self._request = compiled.create_infer_request()

    def forward(self, packing: Packing) -> NDArray[np.float32]:
        """See `Engine.forward`."""
        self._request.infer(dict(enumerate(packing)), share_inputs=True)
        tokens: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return tokens
