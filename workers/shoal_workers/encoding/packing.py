"""Packing puts the tokens of a batch into rows of equal length."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.bucketing import ATTENTION_LENGTH

#: Added to the attention scores between tokens of two texts, so that their weights after the softmax are 0.
MASKED = np.float32(-1e9)

#: Least length of a row, in tokens. Nearly all headlines fit, so passes over single headlines have the same shape.
#: Measured: a change of the shape costs an engine more time than the padding.
MIN_ROW_LENGTH = 16

#: Least row length of a batch with several rows, in tokens. Shorter rows are hard to fill.
MIN_SHARED_LENGTH = 32

#: With several rows, the row length is a multiple of this number of tokens. Attention over other lengths is slower.
SHARED_STEP = 16

#: Up to this number of tokens, several texts share a single row. For more tokens, row lengths are tried up to this
#: length or up to twice the longest text, whichever is more.
MAX_ROW_LENGTH = 96


class Packing(NamedTuple):
    """The inputs of a forward pass over `rows` rows of `length` tokens each, with padding.

    `ids` and `positions` are int32 `[rows, length]`. A position counts from the beginning of its text, plus an offset
    for the token's type. `bias` is float32 `[rows, 1, length, length]`: 0 between two tokens of the same text, and
    `MASKED` between all others. After `join` it is `[1, 1, 1, tokens]`: `MASKED` for tokens to which no token attends,
    and 0 for all others; it is empty if all tokens are attended to.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    bias: NDArray[np.float32]


class TextSpans(NamedTuple):
    """The spans of texts in the flattened rows: index of the first token and number of tokens, both int `[texts]`."""

    starts: NDArray[np.intp]
    lengths: NDArray[np.intp]


_NO_BIAS = np.zeros((1, 1, 0, 0), np.float32)


def pack(
    texts: Sequence[Sequence[int]],
    shares_rows: bool = True,
    offsets: Sequence[Sequence[int] | NDArray[np.int32]] | None = None,
    num_unseen: Sequence[int] | None = None,
) -> tuple[Packing, TextSpans]:
    """Return the packed token ids and the spans of the texts. `offsets` are added to the positions of tokens.

    No token attends to the last `num_unseen` tokens of each text.
    """
    lengths = [len(text) for text in texts]
    num_rows, row_length, starts = _share_rows(lengths) if shares_rows else _own_rows(lengths)
    spans = TextSpans(np.array(starts), np.array(lengths))
    owner_of_token = np.repeat(np.arange(len(texts)), spans.lengths)
    position = np.arange(len(owner_of_token)) - (np.cumsum(spans.lengths) - spans.lengths)[owner_of_token]
    place = spans.starts[owner_of_token] + position
    ids, positions, owners = (np.zeros(num_rows * row_length, np.int32) for _ in range(3))
    ids[place] = np.fromiter(chain.from_iterable(texts), np.int32, len(place))
    positions[place] = position if offsets is None else position + np.concatenate(offsets)
    owners[place] = owner_of_token + 1
    owner = owners.reshape(num_rows, 1, row_length, 1)
    if num_unseen is not None:
        is_unseen = position >= (spans.lengths - num_unseen)[owner_of_token]
        owners = owners.copy()
        owners[place[is_unseen]] = -1
    bias = np.where(owner == owners.reshape(num_rows, 1, 1, row_length), np.float32(0), MASKED)
    return Packing(ids.reshape(num_rows, -1), positions.reshape(num_rows, -1), bias), spans


def join(
    texts: Sequence[Sequence[int]],
    offsets: Sequence[Sequence[int] | NDArray[np.int32]] | None = None,
    num_unseen: Sequence[int] | None = None,
) -> tuple[Packing, TextSpans]:
    """Return the token ids of all texts in one row, without padding, and the spans of the texts, like `pack`."""
    lengths = [len(text) for text in texts]
    ids = np.fromiter(chain.from_iterable(texts), np.int32, sum(lengths))
    positions = np.fromiter(chain.from_iterable(map(range, lengths)), np.int32, len(ids))
    if offsets is not None:
        positions += np.concatenate(offsets)
    spans = TextSpans(np.array(list(accumulate(lengths[:-1], initial=0))), np.array(lengths))
    bias = _NO_BIAS
    if num_unseen and any(num_unseen):
        ends = np.repeat(spans.starts + spans.lengths - num_unseen, lengths)
        bias = np.where(np.arange(len(ids)) < ends, np.float32(0), MASKED)[None, None, None]
    return Packing(ids[None], positions[None], bias), spans


def _own_rows(lengths: Sequence[int]) -> tuple[int, int, list[int]]:
    row_length = round_up(max(lengths))
    return len(lengths), row_length, [n * row_length for n in range(len(lengths))]


def _share_rows(lengths: Sequence[int]) -> tuple[int, int, list[int]]:
    """Return the number and the length of the cheapest rows for the texts, and the start of each text in the rows."""
    num_tokens, longest = sum(lengths), max(lengths)
    if len(lengths) == 1:
        return 1, round_up(num_tokens), [0]
    if num_tokens <= MAX_ROW_LENGTH:
        return 1, round_up(num_tokens), _fill(lengths, round_up(num_tokens))[1]
    best = (float("inf"), 0, 0, [0])
    for least, row_length in sorted((_cost(-(-num_tokens // size), size), size) for size in _row_lengths(longest)):
        if least >= best[0]:
            break
        num_rows, starts = _fill(lengths, row_length)
        best = min(best, (_cost(num_rows, row_length), num_rows, row_length, starts))
    return best[1:]


def _row_lengths(longest: int) -> list[int]:
    """Return the row lengths to try for several rows, if the longest text has `longest` tokens."""
    sizes, size = [], -(-max(longest, MIN_SHARED_LENGTH) // SHARED_STEP) * SHARED_STEP
    while size <= max(2 * longest, MAX_ROW_LENGTH):
        sizes.append(size)
        size = round_up(size + SHARED_STEP)
    return sizes


def _cost(num_rows: int, row_length: int) -> float:
    return num_rows * row_length * (1 + row_length / ATTENTION_LENGTH)


def _fill(lengths: Sequence[int], row_length: int) -> tuple[int, list[int]]:
    """Place the texts by best-fit decreasing (Johnson, 1973); return the number of rows and the start of each text."""
    starts = [0] * len(lengths)
    rooms: list[tuple[int, int]] = []  # the free tokens and the number of each row, sorted
    num_rows = 0
    for n in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        place = bisect_left(rooms, (lengths[n], 0))
        if place < len(rooms):
            room, row = rooms.pop(place)
        else:
            room, row = row_length, num_rows
            num_rows += 1
        starts[n] = (row + 1) * row_length - room
        insort(rooms, (room - lengths[n], row))
    return num_rows, starts


def round_up(size: int) -> int:
    """Round up to one of a few sizes, by at most an eighth from 64 on: engines compile code for each size."""
    step = max(8, 1 << max(0, size.bit_length() - 4))
    return max(MIN_ROW_LENGTH, -(-size // step) * step)
