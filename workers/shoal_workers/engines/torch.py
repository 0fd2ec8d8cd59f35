"""The torch engine: Sentence Transformers itself. The reference for every other engine, and the one for GPUs."""

import numpy as np
import torch
from numpy.typing import NDArray

from shoal_workers.graph import packed_module
from shoal_workers.model import Model
from shoal_workers.packing import Packing
from shoal_workers.reference import load

_DTYPES = {"auto": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16}


class TorchEngine:
    """Runs the original model on the GPU if there is one, else on the CPU."""

    name = "torch"

    def __init__(self, model: Model, precision: str, threads: int):
        torch.set_num_threads(threads)
        self.threads = threads
        self.precision = "f32" if precision == "auto" else precision
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._dtype = _DTYPES[precision]
        self._module = packed_module(load(model.source, self._device)).to(self._dtype)

    @torch.inference_mode()
    def forward(self, packing: Packing) -> NDArray[np.float32]:
        """See `Engine.forward`."""
        tensors = [torch.from_numpy(array).to(self._device) for array in packing]
        tensors[3] = tensors[3].to(self._dtype)  # the bias, the only input that is not a whole number
        tokens: NDArray[np.float32] = self._module(*tensors).float().cpu().numpy()
        return tokens
