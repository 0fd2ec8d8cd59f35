"""How the tokens of a batch lie in memory: one text after the other, without padding.

Only attention needs texts as rows of equal length; all other layers, three quarters of the work, run on packed tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Added to the attention scores of padding, so that the softmax leaves nothing of it.
MASKED = np.float32(-1e9)


class Packing(NamedTuple):
    """The inputs of a forward pass over `tokens` in all, in `rows` texts of at most `length` tokens, each rounded up.

    `ids` and `positions` are int32 `[tokens]`. `places` int32 `[rows, length]` says which token stands where in a row,
    `bias` float32 `[rows, 1, 1, length]` is 0 for a token and `MASKED` for padding, and `back` int32 `[tokens]` says
    where in the flattened rows each token stands.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    places: NDArray[np.int32]
    bias: NDArray[np.float32]
    back: NDArray[np.int32]


def _round_up(size: int) -> int:
    """The next of a few sizes, at most an eighth larger: engines compile code for each new size, and keep it."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def pack(texts: Sequence[Sequence[int]]) -> tuple[Packing, NDArray[np.intp], NDArray[np.intp]]:
    """The packing of the texts' token ids, where each text starts in it, and how long each is."""
    lengths = np.fromiter(map(len, texts), np.intp, len(texts))
    starts = np.cumsum(lengths) - lengths
    num_tokens = int(lengths.sum())
    ids = np.zeros(_round_up(num_tokens), np.int32)
    ids[:num_tokens] = np.fromiter((id_ for text in texts for id_ in text), np.int32, num_tokens)
    columns = np.arange(_round_up(int(lengths.max())), dtype=np.int32)[None, :]
    is_token = np.zeros((_round_up(len(texts)), columns.size), bool)
    is_token[: len(texts)] = columns < lengths[:, None]
    positions, places, back = np.zeros_like(ids), np.zeros(is_token.shape, np.int32), np.zeros_like(ids)
    positions[:num_tokens] = np.broadcast_to(columns, is_token.shape)[is_token]
    places[is_token] = np.arange(num_tokens, dtype=np.int32)
    back[:num_tokens] = np.flatnonzero(is_token)
    bias = np.where(is_token, np.float32(0), MASKED)[:, None, None, :]
    packing = Packing(ids, positions, places, bias, back)
    return packing, starts, lengths


def _mean(tokens: NDArray[np.float32], starts: NDArray[np.intp], lengths: NDArray[np.intp]) -> NDArray[np.float32]:
    means: NDArray[np.float32] = np.add.reduceat(tokens, starts, axis=0)
    means /= lengths[:, None]
    return means


def _max(tokens: NDArray[np.float32], starts: NDArray[np.intp], _: NDArray[np.intp]) -> NDArray[np.float32]:
    return np.maximum.reduceat(tokens, starts, axis=0)


def _cls(tokens: NDArray[np.float32], starts: NDArray[np.intp], _: NDArray[np.intp]) -> NDArray[np.float32]:
    return tokens[starts]


_POOLINGS = {"mean": _mean, "max": _max, "cls": _cls}


def pool(
    how: str, tokens: NDArray[np.float32], starts: NDArray[np.intp], lengths: NDArray[np.intp]
) -> NDArray[np.float32]:
    """Packed token vectors `[tokens, dimension]` as one vector a text, `[rows, dimension]`."""
    return _POOLINGS[how](tokens, starts, lengths)
