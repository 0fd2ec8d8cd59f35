"""Token ids equal the ids of the tokenizers library, for long and odd texts, and for both sides of truncation."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidRequest, TooLarge
from shoal_workers.encoding.tokenizer import CHARS_PER_TOKEN, Tokenizer, Tokens

MAX_TOKENS = 48
SIDES = ("right", "left")
ODD = [
    "",
    " ",
    "\0",
    "a\0b",
    "\n\t",
    "é" * 300,
    "価格" * 400,
    "😀" * 100,
    "x" * 101,
    "a" * 5_000,
    "\u200b" * 2_000,
    "\ufeff",
    *("a " * num_words for num_words in (MAX_TOKENS - 3, MAX_TOKENS - 2, MAX_TOKENS - 1)),
]


@pytest.fixture(scope="module")
def ours(tiny_source: Path) -> Tokenizer:
    return Tokenizer(tiny_source / "tokenizer.json", MAX_TOKENS)


@pytest.fixture(scope="module")
def plain(tiny_source: Path) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_source / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def expected(plain: tokenizers.Tokenizer, text: str, side: str) -> Tokens:
    found = plain.encode(text, add_special_tokens=False)
    ids, room = found.ids, MAX_TOKENS - 2
    kept = ids[:room] if side == "right" else ids[max(0, len(ids) - room) :]
    first, last = plain.token_to_id("[CLS]"), plain.token_to_id("[SEP]")
    assert first is not None
    assert last is not None
    if len(ids) <= room:
        return Tokens((first, *kept, last))
    characters = found.offsets[room - 1][1] if side == "right" else len(text) - found.offsets[-room][0]
    return Tokens((first, *kept, last), True, characters)


@given(text=st.text(), repeat=st.integers(1, 60), side=st.sampled_from(SIDES))
def test_tokens_of_any_text(ours: Tokenizer, plain: tokenizers.Tokenizer, text: str, repeat: int, side: str) -> None:
    assert ours.encode([text * repeat], side) == [expected(plain, text * repeat, side)]


HUGE = [
    "storm rain europe market " * 40_000,
    ("y" * (MAX_TOKENS * CHARS_PER_TOKEN - 3) + " storm rain ") * 200,
    "storm,rain;europe/market-" * 40_000,
    "價格上漲" * 50_000,
]


@pytest.mark.parametrize("side", SIDES)
def test_odd_and_huge_texts_have_the_librarys_tokens(ours: Tokenizer, plain: tokenizers.Tokenizer, side: str) -> None:
    assert ours.encode([], side) == []
    assert ours.encode(ODD + HUGE, side) == [expected(plain, text, side) for text in ODD + HUGE]


SPARSE = ("storm" + " " * 1_000_000 + "rain", "a" * 2**20, "한" * 2**20, "\u200b" * 2**20)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("text", SPARSE, ids=["spaces", "one word", "hangul", "nothing"])
def test_no_text_is_read_beyond_its_limit(ours: Tokenizer, plain: tokenizers.Tokenizer, text: str, side: str) -> None:
    (tokens,) = ours.encode([text], side)
    read = text[: ours.max_chars] if side == "right" else text[-ours.max_chars :]
    in_part = expected(plain, read, side)
    assert tokens == Tokens(in_part.ids, True, in_part.characters or len(read))


@pytest.mark.parametrize("side", SIDES)
def test_models_of_low_and_high_limits(tiny_source: Path, plain: tokenizers.Tokenizer, side: str) -> None:
    low, high = (Tokenizer(tiny_source / "tokenizer.json", max_tokens) for max_tokens in (9, 8_192))
    for length in (37, 60, 500):  # the text is one word
        assert low.encode(["日" * length], side) == [Tokens(tuple(plain.encode("日" * 7).ids), True, 7)]
    assert high.max_chars == 16 * 8_192
    (tokens,) = high.encode(["internationalisation " * 20_000], side)
    assert len(tokens.ids) == 8_192


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("first", ["storm", "the market falls " * 100])
@pytest.mark.parametrize("second", ["rain", "a " * 44, "storm rain europe " * 30, "storm rain europe " * 40_000])
def test_the_characters_of_a_truncated_pair_are_the_read_characters_of_its_second_text(
    ours: Tokenizer, plain: tokenizers.Tokenizer, first: str, second: str, side: str
) -> None:
    (pair,) = ours.encode_pairs([(first, second)], side)
    assert pair.truncated == (len(first) + len(second) > 100)
    assert bool(pair.characters) == pair.truncated
    read = second[: pair.characters or None] if side == "right" else second[-pair.characters :]
    second_ids = [number for number, kind in zip(pair.ids, pair.types, strict=True) if kind == 1]
    assert plain.encode(read, add_special_tokens=False).ids == second_ids[:-1]
    assert read == second or len(read.strip()) + (side == "left") == len(read)


def test_a_text_is_described_token_by_token(ours: Tokenizer, plain: tokenizers.Tokenizer) -> None:
    first, *pieces, last = ours.describe("storm  rain", special_tokens=True)
    assert (first["text"], last["text"]) == ("[CLS]", "[SEP]")
    assert {(piece["special"], piece["start"], piece["stop"]) for piece in (first, last)} == {(True, None, None)}
    assert [(piece["text"], piece["start"], piece["stop"]) for piece in pieces] == [("storm", 0, 5), ("rain", 7, 11)]
    assert [piece["id"] for piece in pieces] == plain.encode("storm rain", add_special_tokens=False).ids
    assert ours.describe("storm  rain", special_tokens=False) == pieces
    assert ours.describe("", special_tokens=False) == []
    assert len(ours.describe("a " * (ours.max_chars // 2), special_tokens=False)) > MAX_TOKENS
    with pytest.raises(TooLarge, match="8,193 characters, and 8,192 can be tokenized"):
        ours.describe("a" * (ours.max_chars + 1), special_tokens=True)


@pytest.mark.parametrize("text", ["the storm in europe", ""])
def test_the_ids_of_a_text_are_decoded_to_the_text_and_an_unknown_id_is_refused(ours: Tokenizer, text: str) -> None:
    ids = [piece["id"] for piece in ours.describe(text, special_tokens=True)]
    for special_tokens, expected in ((True, " ".join(["[CLS]", *text.split(), "[SEP]"])), (False, text)):
        assert ours.decode(" ".join(map(str, ids)), special_tokens) == (expected, len(ids))
    num_words = ours._tokenizer.get_vocab_size()
    assert ours.decode(f"1 {num_words - 1}", special_tokens=True)[1] == 2
    for word in ("a", "-1", str(num_words), "9" * 5_000, "\u0663"):
        with pytest.raises(InvalidRequest, match=r"the id of a token is .*: it takes a whole number from 0 to"):
            ours.decode(f"1 {word}", special_tokens=True)
