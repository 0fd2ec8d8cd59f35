"""Engines compute vectors from token ids. Each module imports its one library. Imports model and packing."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadSetting
from shoal_workers.encoding.packing import Packing, TextSpans
from shoal_workers.model.model import Model

#: Version of int8 vectors with `fixed_steps`. A change that alters these vectors by more than rounding raises the
#: version by one.
INT8_VERSION = 2

#: Version of the vectors of the kernel's engines. A change that alters them by more than rounding raises it by one.
KERNEL_VERSION = 1

#: The kernel's engines, each with its name in fingerprints: avx2 and neon compute the same bits, so they share one.
KERNEL_ENGINES = {"avx512": "avx512", "avx2": "avx2", "neon": "avx2"}

#: The vectors of each pooling, as `shoal_workers.encoding.pooling.pool` returns them.
Pooled = dict[str, NDArray[np.float32]]


class ForwardPass(Protocol):
    """A forward pass over one `Packing`, running or ended. Every engine has its own class."""

    def wait(self, spans: TextSpans, poolings: Iterable[str]) -> Pooled:
        """Wait for the end of the pass; return the vectors of the texts at `spans`. Raises the library's exceptions."""
        ...

    def ends_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of a pass that runs aside; return True if it has ended."""
        ...


class Engine(Protocol):
    """A model loaded by one runtime, ready to compute passes. Not thread-safe.

    `num_streams` is the number of passes that the engine computes side by side, each on its own thread. `fixed_steps`
    is true if an int8 engine rounds activations with steps that were measured for the model. `is_ragged` is true if the
    engine expects texts in one row (`packing.join`) instead of rows of equal length.
    """

    name: str
    precision: str
    threads: int
    num_streams: int
    fixed_steps: bool
    is_ragged: bool

    def start(self, packings: Sequence[Packing], together: bool = False) -> Sequence[ForwardPass]:
        """Start up to `num_streams` passes side by side; if `together`, one on all threads. No pass may be running."""
        ...

    def start_aside(self, packings: Sequence[Packing]) -> Sequence[ForwardPass]:
        """Start passes on threads of low priority. Earlier passes of low priority must have ended."""
        ...

    def resized(self, threads: int) -> "Engine":
        """Return an engine for the same model with this number of threads. May be called while this engine computes."""
        ...


def open_engine(
    name: str, model: Model, folder: Path, precision: str, threads: int, may_fix_steps: bool = True
) -> Engine:
    """Return the engine of that name with the model loaded; `fixed_steps` are used only if `may_fix_steps`.

    Raises BadSetting if the engine cannot run here, or does not compute the model.
    """
    if name != "openvino" and not model.num_weights:
        kind = "a static model" if model.is_static else "whose graph Shoal did not make"
        raise BadSetting(f"{name} does not compute {model.name}, {kind}: openvino does")
    if name == "torch":
        from shoal_workers.encoding.engines.torch import TorchEngine

        return TorchEngine(model, precision, threads)
    if name in KERNEL_ENGINES:
        from shoal_workers.encoding.engines.kernel import KernelEngine

        return KernelEngine(name, model, folder, precision, threads)
    from shoal_workers.encoding.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(folder, precision, threads, may_fix_steps)
