"""Packing: every token is where it should be, attention stays within a text, and little of a row is padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_workers.encoding.packing import MASKED, MIN_SHARED_LENGTH, join, pack, pool

TEXTS = st.lists(st.lists(st.integers(1, 30_000), min_size=1, max_size=300), min_size=1, max_size=40)


@given(TEXTS, st.booleans())
def test_every_text_stands_whole_in_one_row(texts: list[list[int]], shares_rows: bool) -> None:
    packing, (starts, lengths) = pack(texts, shares_rows)
    length = packing.ids.shape[1]
    for text, start, size in zip(texts, starts, lengths, strict=True):
        row, column = divmod(start, length)
        assert packing.ids[row, column : column + size].tolist() == text
        assert packing.positions[row, column : column + size].tolist() == list(range(size))
        assert column + size <= length


@given(TEXTS, st.booleans())
def test_tokens_attend_to_their_own_text_alone(texts: list[list[int]], shares_rows: bool) -> None:
    packing, (starts, lengths) = pack(texts, shares_rows)
    rows, length = packing.ids.shape
    expected = np.full((rows, length, length), MASKED)
    padding = np.ones((rows, length), bool)
    for start, size in zip(starts, lengths, strict=True):
        row, column = divmod(start, length)
        expected[row, column : column + size, column : column + size] = 0
        padding[row, column : column + size] = False
    expected[padding[:, :, None] & padding[:, None, :]] = 0  # what padding looks at is of no account
    assert np.array_equal(packing.bias[:, 0], expected)


@given(TEXTS)
def test_an_own_row_begins_with_its_text(texts: list[list[int]]) -> None:
    packing, (starts, _) = pack(texts, shares_rows=False)
    assert len(packing.ids) == len(texts)
    assert not (starts % packing.ids.shape[1]).any()


def test_headlines_fill_their_rows() -> None:
    lengths = np.random.default_rng(0).integers(6, 15, 64)
    packing, _ = pack([[1] * length for length in lengths])
    assert packing.ids.size <= lengths.sum() * 1.1


def test_a_short_text_joins_the_row_of_a_long_one() -> None:
    packing, _ = pack([[1] * 10, [1] * 240])
    assert packing.ids.shape == (1, 256)


@pytest.mark.parametrize(("how", "reduce"), [("mean", np.mean), ("max", np.max), ("cls", lambda rows, axis: rows[0])])
@given(texts=TEXTS, seed=st.integers(0, 9))
def test_pooling_takes_each_text_by_itself(how: str, reduce: object, texts: list[list[int]], seed: int) -> None:
    packing, places = pack(texts)
    tokens = np.random.default_rng(seed).normal(size=(packing.ids.size, 3)).astype(np.float32)
    expected = [reduce(tokens[start : start + size], axis=0) for start, size in zip(*places, strict=True)]  # type: ignore[operator]
    assert np.allclose(pool(how, tokens, places), expected, atol=1e-5)


@given(TEXTS)
def test_joined_texts_stand_one_behind_the_other(texts: list[list[int]]) -> None:
    packing, (starts, lengths) = join(texts)
    places = zip(starts, lengths, strict=True)
    assert [packing.ids[0, start : start + length].tolist() for start, length in places] == texts
    assert packing.positions[0].tolist() == [n for text in texts for n in range(len(text))]


@pytest.mark.parametrize("how", ["mean", "max", "cls", "tokens"])
@given(texts=TEXTS, seed=st.integers(0, 9))
def test_pooling_of_joined_texts_gives_the_same_numbers(how: str, texts: list[list[int]], seed: int) -> None:
    packing, places = join(texts)
    tokens = np.random.default_rng(seed).normal(size=(packing.ids.size, 3)).astype(np.float32)
    assert np.array_equal(pool(how, tokens, places, are_joined=True), pool(how, tokens, places))


@pytest.mark.parametrize("size", [8, 16, 32])
def test_texts_that_fill_the_shortest_rows_get_those(size: int) -> None:
    packing, _ = pack([[1] * size] * 64)
    assert packing.ids.shape == (64 * size // MIN_SHARED_LENGTH, MIN_SHARED_LENGTH)


def test_headlines_alone_have_one_shape() -> None:
    shapes = {pack([[1] * length])[0].ids.shape for length in range(1, 17)}
    assert shapes == {(1, 16)}


def test_batches_of_headlines_have_few_shapes() -> None:
    random = np.random.default_rng(0)
    packings = [pack([[1] * length for length in random.integers(6, 15, 32)])[0] for _ in range(100)]
    shapes = {packing.ids.shape for packing in packings}
    assert len(shapes) <= 12
    assert all(length % 16 == 0 for _, length in shapes)
