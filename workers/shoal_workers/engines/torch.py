"""The torch engine: Sentence Transformers itself. The reference for every other engine, and the one for GPUs."""

import numpy as np
import torch
from numpy.typing import NDArray

from shoal_workers.engines import Forward
from shoal_workers.model import Model
from shoal_workers.reference import load, pooled_module

_DTYPES = {"auto": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16}


class TorchEngine:
    """Runs the original model on the GPU if there is one, else on the CPU."""

    name = "torch"

    def __init__(self, model: Model, precision: str, threads: int):
        torch.set_num_threads(threads)
        self.threads = threads
        self.precision = "f32" if precision == "auto" else precision
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._module = pooled_module(load(model.source, self._device)).to(_DTYPES[precision])

    @torch.inference_mode()
    def forward(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Forward:
        """See `Engine.forward`."""
        tokens, pooled = self._module(*(torch.from_numpy(array).to(self._device) for array in (ids, mask)))
        return Forward(tokens.float().cpu().numpy(), pooled.float().cpu().numpy())
