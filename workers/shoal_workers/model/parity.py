"""The parity check: a worker serves only if its engine reproduces stored fp32 vectors of a few sentences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from shoal.errors import ModelMismatch
from shoal_workers.model.model import Head

#: Name of the file of reference vectors in a prepared folder.
FILE = "parity.safetensors"

#: Lowest cosine to the reference with which a worker serves, and the lowest with weights in 8 bits.
MIN_COSINE, MIN_COSINE_INT8 = 0.999, 0.98

#: Sentences to compare: short and long, in several scripts, with digits and punctuation, and an empty one.
TEXTS = (
    "",
    "storm",
    "Heavy rain closes the coast road for a third day",
    "What is the capital of Burkina Faso, and who wrote its anthem?",
    "Der Zug nach Zürich fällt heute wegen Bauarbeiten aus.",
    "価格は昨年より12.5%上がった。",
    "naïve café — £3.20 (was £4.00!) 😀",
    "The committee met on Tuesday to discuss the budget, the repair of the harbour wall, the shortage of teachers in "
    "the northern schools, and a petition signed by four thousand residents who want the night bus back. " * 4,
)

#: Pairs of texts whose scores are compared with stored scores. A worker refuses to serve if a difference, divided by
#: (1 + the stored score's absolute value), is over the limit.
PAIRS = tuple(zip(TEXTS, reversed(TEXTS), strict=True))
MAX_DIFFERENCE, MAX_DIFFERENCE_INT8 = 0.05, 0.15

#: Length of a profile of weights of ids: weights whose ids are equal modulo this number are added.
MAX_PLACES = 1_024

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
Score = Callable[[Sequence[tuple[str, str]]], NDArray[np.float32]]


def check(folder: Path, encode: Encode, min_cosine: float = MIN_COSINE, name: str = "vectors") -> None:
    """Raise ModelMismatch if a vector of the engine has too low a cosine to the stored array.

    `name` is `vectors`, or the output of a head, from which `profile` makes vectors.
    """
    reference = load_file(folder / FILE)[name]
    vectors = encode(TEXTS)
    are_zero = ~(vectors.any(axis=1) | reference.any(axis=1))  # for example a static model's vectors of an empty text
    lowest = float(((vectors * reference).sum(axis=1) + are_zero).min())
    if not lowest >= min_cosine:  # true for NaN too
        raise ModelMismatch(
            f"the engine's {name} have cosine {lowest:.5f} to the fp32 reference, under {min_cosine}: "
            "prepare the model again (shoal model prepare --force) or use --precision f32"
        )


def profile(outputs: Sequence[Any], head: Head) -> NDArray[np.float32]:
    """Return a normalised vector for the output of each text: the mean of its vectors, or its weights by word.

    Weights of ids are added up in `MAX_PLACES` sums, because there may be many ids.
    """
    places = MAX_PLACES if head.kind == "ids" else head.size
    found = np.zeros((len(outputs), places), np.float32)
    for row, output in zip(found, outputs, strict=True):
        if head.kind not in ("vectors", "rest"):
            np.add.at(row, output.indices % places, output.values)
        elif len(output):
            row[:] = (output / np.maximum(np.linalg.norm(output, axis=1, keepdims=True), 1e-12)).mean(axis=0)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return found


def check_scores(folder: Path, score: Score, max_difference: float = MAX_DIFFERENCE) -> None:
    """Raise ModelMismatch if a difference from a stored score, divided by 1 + its absolute value, is too large."""
    reference = load_file(folder / FILE)["vectors"][:, 0]
    largest = float((np.abs(score(PAIRS) - reference) / (1 + np.abs(reference))).max())
    if not largest <= max_difference:  # true for NaN too
        raise ModelMismatch(
            f"the engine's scores differ by {largest:.5f} from the fp32 reference, over {max_difference}: "
            "prepare the model again (shoal model prepare --force) or use --precision f32"
        )
