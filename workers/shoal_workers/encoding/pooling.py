"""Pooling: token vectors to one vector for each text."""

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.packing import TextSpans


def _mean(tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    means = _reduced(np.add, tokens, spans)
    means /= spans.lengths[:, None]
    return means


def _max(tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    return _reduced(np.maximum, tokens, spans)


def _cls(tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    return tokens[spans.starts]


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


def _tokens(tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    return np.concatenate([tokens[start : start + length] for start, length in zip(*spans, strict=True)])


_POOLINGS = {"mean": _mean, "max": _max, "cls": _cls, "tokens": _tokens}


def pool(how: str, tokens: NDArray[np.float32], spans: TextSpans) -> NDArray[np.float32]:
    """Pool the token vectors `[rows x length, dimension]` of a packing to one vector a text, `[texts, dimension]`.

    `how` is mean, max or cls; with `tokens`, the vectors of all tokens are returned text after text, without padding.
    """
    return _POOLINGS[how](tokens, spans)
