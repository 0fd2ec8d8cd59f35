"""Engines: what turns token ids into vectors. Each lives in one file, with the one library it needs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.model.model import Model


class Engine(Protocol):
    """A loaded model. Not thread-safe: one worker, one engine."""

    name: str
    precision: str
    threads: int

    def forward(self, packing: Packing, places: TextSpans, poolings: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        """The batch's vectors as each of the poolings makes them: see `shoal_workers.encoding.packing.pool`."""
        ...


def open_engine(name: str, model: Model, folder: Path, precision: str, threads: int) -> Engine:
    """The engine of that name with the model loaded."""
    if name == "torch":
        from shoal_workers.encoding.engines.torch import TorchEngine

        return TorchEngine(model, precision, threads)
    from shoal_workers.encoding.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(folder, precision, threads)
