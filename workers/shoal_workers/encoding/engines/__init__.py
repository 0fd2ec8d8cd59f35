"""Engines turn token ids into vectors, each in one file with the one library it needs. Imports model and packing."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.model.model import Model

#: Version of vectors in 8 bits with `fixed_steps`, raised by one whenever these come to differ by more than rounding.
INT8_VERSION = 2

#: Version of the vectors of the engine avx512, raised by one in the same way.
AVX512_VERSION = 1

#: For each pooling, the vectors that it makes: see `shoal_workers.encoding.packing.pool`.
Pooled = dict[str, NDArray[np.float32]]


class ForwardPass(Protocol):
    """A pass that the engine computes at this moment, or has computed."""

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        """Wait for the end of the pass; return the vectors of the texts at `spans`. Raises what the library raises."""
        ...

    def ends_within(self, seconds: float) -> bool:
        """Wait `seconds` at most for the end of a pass that runs aside; return True if it has ended."""
        ...


class Engine(Protocol):
    """A loaded model. Not thread-safe.

    `num_streams` is the number of passes that the engine computes side by side, each on a thread of its own.
    `fixed_steps` is true where it rounds activations with steps that were measured for the model: some int8 engines.
    `is_ragged` is true where it takes texts one behind the other (`packing.join`) in place of rows of one length.
    """

    name: str
    precision: str
    threads: int
    num_streams: int
    fixed_steps: bool
    is_ragged: bool

    def start(self, packings: Sequence[Packing], together: bool = False) -> Sequence[ForwardPass]:
        """Start at most `num_streams` passes side by side, or one `together`, once earlier ones were waited for."""
        ...

    def start_aside(self, packings: Sequence[Packing]) -> Sequence[ForwardPass]:
        """Start passes on threads of low priority, after those of an earlier call were waited for."""
        ...

    def resized(self, threads: int) -> "Engine":
        """Return an engine of the same model with so many threads, made on another thread while this one computes."""
        ...


def open_engine(
    name: str, model: Model, folder: Path, precision: str, threads: int, may_fix_steps: bool = True
) -> Engine:
    """Return the engine of that name with the model loaded, with `fixed_steps` only if it may."""
    if name == "torch":
        from shoal_workers.encoding.engines.torch import TorchEngine

        return TorchEngine(model, precision, threads)
    if name == "avx512":
        from shoal_workers.encoding.engines.avx512 import Avx512Engine

        return Avx512Engine(model, folder, precision, threads)
    from shoal_workers.encoding.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(folder, precision, threads, None if may_fix_steps else False)
