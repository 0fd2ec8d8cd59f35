"""Pooling reduces the vectors of a text's tokens to one vector."""

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.packing import TextSpans

_REDUCTIONS = {"mean": np.add, "max": np.maximum}


def pool(how: str, tokens: NDArray[np.float32], spans: TextSpans, are_joined: bool = False) -> NDArray[np.float32]:
    """Pool token vectors `[rows x length, dimension]` to `[texts, dimension]`; the pooling `tokens` keeps them all."""
    if how == "cls":
        return tokens[spans.starts]
    if how == "lasttoken":
        last: NDArray[np.float32] = tokens[spans.starts + spans.lengths - 1]
        return last
    if how == "tokens":
        return np.concatenate([tokens[start : start + length] for start, length in zip(*spans, strict=True)])
    operation = _REDUCTIONS[how]
    reduced = operation.reduceat(tokens, spans.starts, axis=0) if are_joined else _reduced(operation, tokens, spans)
    if how == "mean":
        reduced /= spans.lengths[:, None]
    return reduced


def _reduced(operation: np.ufunc, tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    """Reduce the tokens of each text to one vector. Results for the gaps between texts are dropped."""
    order = np.argsort(spans.starts)
    starts = spans.starts[order]
    boundaries = np.stack([starts, starts + spans.lengths[order]], axis=1).ravel()
    if boundaries[-1] == len(tokens):
        boundaries = boundaries[:-1]
    reduced = np.empty((len(order), tokens.shape[1]), np.float32)
    reduced[order] = operation.reduceat(tokens, boundaries, axis=0)[::2]
    return reduced
