"""The outputs of transformers for a few texts and a random model, from files of `random_models.py`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from shoal_workers.encoding.packing import Packing, TextSpans, pack

#: Name of the file with the outputs.
FILE = "expected.safetensors"


class ExpectedOutputs:
    """The texts of a model, and its token vectors `[tokens, dimension]` or its scores `[labels]` for each."""

    def __init__(self, folder: Path):
        arrays = load_file(folder / FILE)
        numbers = range(len(arrays) // 3)
        self.texts = [arrays[f"ids{n}"] for n in numbers]
        self.types = [arrays[f"types{n}"] for n in numbers]
        self.has_scores = "scores0" in arrays
        self.outputs = [arrays[f"{'scores' if self.has_scores else 'tokens'}{n}"] for n in numbers]

    def pack(
        self, numbers: Sequence[int], num_positions: int, how: Callable[..., tuple[Packing, TextSpans]] = pack
    ) -> tuple[Packing, TextSpans]:
        """Return the texts with these numbers, packed by `how`, with their token types if the model has scores."""
        offsets = [self.types[n].astype(np.int32) * num_positions for n in numbers] if self.has_scores else None
        return how([self.texts[n].tolist() for n in numbers], offsets=offsets)

    def errors(self, numbers: Sequence[int], spans: TextSpans, found: NDArray[np.float32]) -> tuple[float, float]:
        """Return the largest error and the lowest cosine of the outputs `found`, `[rows, length, dimension]`."""
        flat = found.reshape(-1, found.shape[-1])
        pairs = [
            (flat[start] if self.has_scores else flat[start : start + length], self.outputs[n])
            for n, start, length in zip(numbers, *spans, strict=True)
        ]
        lengths = [np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1) for one, other in pairs]
        cosines = [(one * other).sum(-1) / size for (one, other), size in zip(pairs, lengths, strict=True)]
        return max(float(np.abs(one - other).max()) for one, other in pairs), min(float(c.min()) for c in cosines)
