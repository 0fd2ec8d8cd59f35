"""Packing puts every token into its place, keeps attention within a text, and needs little padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal_workers.encoding.packing import MASKED, MIN_SHARED_LENGTH, join, pack

TEXTS = st.lists(st.lists(st.integers(1, 30_000), min_size=1, max_size=300), min_size=1, max_size=40)


@given(TEXTS, st.booleans())
def test_every_text_is_whole_and_attends_only_to_itself(texts: list[list[int]], shares_rows: bool) -> None:
    packing, (starts, lengths) = pack(texts, shares_rows)
    rows, length = packing.ids.shape
    expected = np.full((rows, length, length), MASKED)
    padding = np.ones((rows, length), bool)
    for text, start, size in zip(texts, starts, lengths, strict=True):
        row, column = divmod(start, length)
        own = slice(column, column + size)
        assert packing.ids[row, own].tolist() == text
        assert packing.positions[row, own].tolist() == list(range(size))
        assert shares_rows or column == 0
        expected[row, own, own], padding[row, own] = 0, False
    expected[padding[:, :, None] & padding[:, None, :]] = 0  # the attention of padding tokens does not matter
    assert np.array_equal(packing.bias[:, 0], expected)


def test_headlines_fill_rows_of_few_shapes() -> None:
    def shape(*lengths: int) -> tuple[int, ...]:
        return pack([[1] * length for length in lengths])[0].ids.shape

    random = np.random.default_rng(0)
    lengths = random.integers(6, 15, 64)
    assert np.prod(shape(*lengths)) <= lengths.sum() * 1.1
    assert shape(*[8] * 64) == (64 * 8 // MIN_SHARED_LENGTH, MIN_SHARED_LENGTH)
    assert {shape(length) for length in range(1, 17)} == {(1, 16)}
    assert shape(10, 240) == (1, 256)
    shapes = {shape(*random.integers(6, 15, 32)) for _ in range(100)}
    assert len(shapes) <= 12
    assert all(length % 16 == 0 for _, length in shapes)


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
