"""Engines: what turns token ids into vectors. Each lives in one file, with the one library it needs."""

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal_workers.model import Model


class Forward(NamedTuple):
    """One forward pass: `tokens` is float32 `[rows, length, dimension]`, `pooled` is float32 `[rows, dimension]`.

    Both may be overwritten by the next pass. `pooled` is pooled as the model says and not normalised.
    """

    tokens: NDArray[np.float32]
    pooled: NDArray[np.float32]


class Engine(Protocol):
    """A loaded model. Not thread-safe: one worker, one engine."""

    name: str
    precision: str
    threads: int

    def forward(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Forward:
        """Vectors of the padded token ids, both arrays `[rows, length]`; `mask` is 1 for a token and 0 for padding."""
        ...


def open_engine(name: str, model: Model, folder: Path, precision: str, threads: int) -> Engine:
    """The engine of that name with the model loaded."""
    if name == "torch":
        from shoal_workers.engines.torch import TorchEngine

        return TorchEngine(model, precision, threads)
    from shoal_workers.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(folder, precision, threads)
