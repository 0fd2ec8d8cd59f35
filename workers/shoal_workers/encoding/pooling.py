"""Pooling: token vectors to one vector for each text."""

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.packing import TextSpans

_REDUCTIONS = {"mean": np.add, "max": np.maximum}


def pool(how: str, tokens: NDArray[np.float32], spans: TextSpans, are_joined: bool = False) -> NDArray[np.float32]:
    """Pool the token vectors `[rows x length, dimension]` of a packing to one vector a text, `[texts, dimension]`.

    `how` is mean, max or cls; with `tokens`, the vectors of all tokens are returned text after text, without padding.
    Texts that `are_joined`, one behind the other without padding (`packing.join`), take fewer steps.
    """
    if how == "cls":
        return tokens[spans.starts]
    if how == "tokens":
        return np.concatenate([tokens[start : start + length] for start, length in zip(*spans, strict=True)])
    operation = _REDUCTIONS[how]
    reduced = operation.reduceat(tokens, spans.starts, axis=0) if are_joined else _reduced(operation, tokens, spans)
    if how == "mean":
        reduced /= spans.lengths[:, None]
    return reduced


def _reduced(operation: np.ufunc, tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    """Reduce the tokens of each text to one vector.

    `reduceat` reduces from each boundary to the next, so every other result lies between two texts and is dropped.
    """
    order = np.argsort(spans.starts)
    starts = spans.starts[order]
    boundaries = np.stack([starts, starts + spans.lengths[order]], axis=1).ravel()
    if boundaries[-1] == len(tokens):
        boundaries = boundaries[:-1]
    reduced = np.empty((len(order), tokens.shape[1]), np.float32)
    reduced[order] = operation.reduceat(tokens, boundaries, axis=0)[::2]
    return reduced
