"""A worker like `shoal worker`, but with an engine that only waits: a program of the benchmarks, never shipped."""

import logging
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.model import Model, prepared_folder
from shoal_workers.process import service

#: What a forward pass takes.
PASS_S = 0.020


class WaitingEngine:
    """Takes its time and returns the same numbers for every text."""

    name, precision, threads = "waiting", "none", 1

    def __init__(self, dimension: int):
        self._dimension = dimension

    def forward(self, _: Packing, places: TextSpans, poolings: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        """See `Engine.forward`."""
        time.sleep(PASS_S)
        return {how: np.ones((len(places.starts), self._dimension), np.float32) for how in poolings}


def main() -> None:
    """Runs until told to stop."""
    settings = Settings.from_environment()
    logging.basicConfig(level=settings.log_level.upper())
    folder = prepared_folder(settings.home_folder, settings.model)
    model = Model.open(folder)
    tokenizer = Tokenizer(folder / "tokenizer.json", model.max_tokens)
    service.serve(settings, Encoder(model, tokenizer, WaitingEngine(model.dimension)))


if __name__ == "__main__":
    main()
