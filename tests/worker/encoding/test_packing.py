"""Packing puts every token into its place, keeps attention within a text, and needs little padding."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_workers.encoding.packing import MASKED, MIN_SHARED_LENGTH, join, pack
from shoal_workers.encoding.pooling import pool

TEXTS = st.lists(st.lists(st.integers(1, 30_000), min_size=1, max_size=300), min_size=1, max_size=40)


@given(TEXTS, st.booleans())
def test_every_text_is_whole_in_one_row(texts: list[list[int]], shares_rows: bool) -> None:
    packing, (starts, lengths) = pack(texts, shares_rows)
    length = packing.ids.shape[1]
    for text, start, size in zip(texts, starts, lengths, strict=True):
        row, column = divmod(start, length)
        assert packing.ids[row, column : column + size].tolist() == text
        assert packing.positions[row, column : column + size].tolist() == list(range(size))
        assert column + size <= length
        assert shares_rows or column == 0


@given(TEXTS, st.booleans())
def test_tokens_attend_only_to_their_own_text(texts: list[list[int]], shares_rows: bool) -> None:
    packing, (starts, lengths) = pack(texts, shares_rows)
    rows, length = packing.ids.shape
    expected = np.full((rows, length, length), MASKED)
    padding = np.ones((rows, length), bool)
    for start, size in zip(starts, lengths, strict=True):
        row, column = divmod(start, length)
        expected[row, column : column + size, column : column + size] = 0
        padding[row, column : column + size] = False
    expected[padding[:, :, None] & padding[:, None, :]] = 0  # the attention of padding does not matter
    assert np.array_equal(packing.bias[:, 0], expected)


def test_headlines_fill_their_rows() -> None:
    lengths = np.random.default_rng(0).integers(6, 15, 64)
    packing, _ = pack([[1] * length for length in lengths])
    assert packing.ids.size <= lengths.sum() * 1.1
    packing, _ = pack([[1] * 8] * 64)
    assert packing.ids.shape == (64 * 8 // MIN_SHARED_LENGTH, MIN_SHARED_LENGTH)


REDUCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "cls": lambda rows: rows[0],
    "lasttoken": lambda rows: rows[-1],
    "tokens": lambda rows: rows,
}


@pytest.mark.parametrize("how", REDUCTIONS)
@given(texts=TEXTS, seed=st.integers(0, 9))
def test_pooling_makes_the_vector_of_a_text_from_its_own_tokens(how: str, texts: list[list[int]], seed: int) -> None:
    for packing, places in (pack(texts), join(texts)):
        tokens = np.random.default_rng(seed).normal(size=(packing.ids.size, 3)).astype(np.float32)
        parts = [REDUCTIONS[how](tokens[start : start + size]) for start, size in zip(*places, strict=True)]
        expected = np.concatenate(parts) if how == "tokens" else np.stack(parts)
        assert np.allclose(pool(how, tokens, places), expected, atol=1e-5)
    assert np.array_equal(pool(how, tokens, places, are_joined=True), pool(how, tokens, places))


@given(TEXTS)
def test_joined_texts_follow_each_other(texts: list[list[int]]) -> None:
    packing, (starts, lengths) = join(texts)
    places = zip(starts, lengths, strict=True)
    assert [packing.ids[0, start : start + length].tolist() for start, length in places] == texts
    assert packing.positions[0].tolist() == [n for text in texts for n in range(len(text))]
    assert not packing.bias.size
    unseen = [len(text) - 1 for text in texts]
    bias = join(texts, num_unseen=unseen)[0].bias.ravel().tolist()
    assert bias == ([value for n in unseen for value in [0, *[MASKED] * n]] if any(unseen) else [])


def test_single_headlines_have_one_shape() -> None:
    shapes = {pack([[1] * length])[0].ids.shape for length in range(1, 17)}
    assert shapes == {(1, 16)}
    assert pack([[1] * 10, [1] * 240])[0].ids.shape == (1, 256)


def test_batches_of_headlines_have_few_shapes() -> None:
    random = np.random.default_rng(0)
    packings = [pack([[1] * length for length in random.integers(6, 15, 32)])[0] for _ in range(100)]
    shapes = {packing.ids.shape for packing in packings}
    assert len(shapes) <= 12
    assert all(length % 16 == 0 for _, length in shapes)
