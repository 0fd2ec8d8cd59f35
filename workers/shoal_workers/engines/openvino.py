"""The OpenVINO engine: the default on CPUs. It needs the exported graph and no torch."""

from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shoal_workers import cpu
from shoal_workers.engines import Forward

#: Name of the exported graph in a prepared folder.
GRAPH = "openvino.xml"


class OpenVinoEngine:
    """Runs the exported graph; its compiled form is cached beside it, which makes a second start quick."""

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
            "CACHE_DIR": str(folder / "cache"),
        }
        compiled = ov.Core().compile_model(str(folder / GRAPH), "CPU", options)
        self._request = compiled.create_infer_request()

    def forward(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Forward:
        """See `Engine.forward`."""
        self._request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True)
        return Forward(self._request.get_output_tensor(0).data, self._request.get_output_tensor(1).data)
