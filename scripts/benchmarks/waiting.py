"""A worker like `shoal worker` whose engine only waits `PASS_S`: `waiting.py PASS_S`. It is never shipped.

With a wait of 0, a request costs what the API and the queue cost.
"""

import logging
import sys
import time
from collections.abc import Iterable, Sequence

import numpy as np

from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.engines import Pooled
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.model import Model, prepared_folder
from shoal_workers.service import service


class WaitingEngine:
    """An engine that takes `pass_s` for a forward pass and returns the same vector for every text."""

    name, precision, threads, num_streams, fixed_steps, is_ragged = "waiting", "none", 1, 1, False, False

    def __init__(self, dimension: int, pass_s: float):
        #: Numbers like those of a real vector, which have as many digits.
        self._vector = np.random.default_rng(7).standard_normal(dimension, dtype=np.float32)
        self._pass_s = pass_s

    def start(self, packings: Sequence[Packing], together: bool = False) -> "list[WaitingEngine]":
        """See `Engine.start`."""
        return [self] * len(packings)

    def start_aside(self, packings: Sequence[Packing]) -> "list[WaitingEngine]":
        """See `Engine.start_aside`."""
        return self.start(packings)

    def resized(self, threads: int) -> "WaitingEngine":
        """See `Engine.resized`."""
        return self

    def ends_within(self, seconds: float) -> bool:
        """See `ForwardPass.ends_within`."""
        return True

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        """See `ForwardPass.wait`."""
        time.sleep(self._pass_s)
        return {how: np.tile(self._vector, (len(spans.starts), 1)) for how in poolings}


def main(pass_s: str) -> None:
    """Serve until told to stop."""
    settings = Settings.from_environment()
    logging.basicConfig(level=settings.log_level.upper())
    folder = prepared_folder(settings.home_folder, settings.model)
    model = Model.open(folder)
    tokenizer = Tokenizer(folder / "tokenizer.json", model.max_tokens)
    service.serve(settings, Encoder(model, tokenizer, WaitingEngine(model.dimension, float(pass_s))))


if __name__ == "__main__":
    main(*sys.argv[1:])
