"""Chunks cover their text, have the tokens of their own characters, and do not depend on the pieces of the text."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

import shoal_workers.encoding.chunking
from shoal_workers.encoding.chunking import PIECE_CHARS, Chunker, TokenizedChunk
from shoal_workers.encoding.tokenizer import MAX_CHARS_PER_TOKEN, MAX_WORD_CHARS, Tokenizer

MAX_TOKENS = 48
SENTENCES = "The storm hit Europe. Rain falls in the market! Is it over? The climate change rises… “Nobody” said so."
ODD = {
    "empty": "",
    "spaces": " \t\r\n\u3000" * 900,
    "one letter": "a",
    "lines": "storm in europe\r\nrain\r\n\r\nmarket falls and rises\r\n" * 90,
    "emoji": "👩‍👩‍👧‍👦👍🏽🏳️‍🌈" * 200,
    "accents": "e\u0301a\u0308o\u0302" * 700,
    "marks alone": "\u0301" * 3_000,
    "devanagari": "नमस्ते दुनिया। यह एक परीक्षा है। " * 120,
    "chinese": "價格上漲。市場下跌！" * 300,  # noqa: RUF001
    "chinese without stops": "價格上漲市場下跌" * 300,
    "no white space": "storm,rain;europe/market-" * 300,
    "one word": "a" * 20_000,
    "long words": ("y" * 300 + " storm ") * 60,
    "nothing to read": "\u200b\0" * 4_000,
    "nothing to read within": "storm" + "\u200b" * 9_000 + "rain",
    "much white space": "storm" + " " * 40_000 + "rain",
    "sentences": SENTENCES * 60,
    "points": "." * 9_000,
    "hangul": "한국의 기후 변화. " * 300,
}
PARTS = [*SENTENCES.split(), "。", "\r\n", "\n\n", "  ", "價格", "👩‍👧", "e\u0301", "x" * 200, "\u200b"]
TEXTS = st.text(max_size=300) | st.lists(st.sampled_from(PARTS), max_size=150).map(" ".join)
SIZES = st.integers(1, 40)


@pytest.fixture(scope="module")
def word_piece(tiny_source: Path) -> Tokenizer:
    return Tokenizer(tiny_source / "tokenizer.json", MAX_TOKENS)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer like RoBERTa's. A word has other tokens after a space than without it, and an emoji has several."""
    plain = tokenizers.Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator([SENTENCES, SENTENCES.lower()], trainer)
    plain.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    path = tmp_path_factory.mktemp("byte_level") / "tokenizer.json"
    plain.save(str(path))
    return Tokenizer(path, MAX_TOKENS)


@pytest.fixture(params=["word_piece", "byte_level"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Tokenizer)
    return found


def chunks_of(chunker: Chunker, text: str) -> Iterator[TokenizedChunk]:
    start, covered = 0, 0
    while True:
        chunks, following = chunker.cut(text, start, covered)
        yield from chunks
        if following is None:
            return
        assert start < following < len(text)
        start, covered = following, chunks[-1].stop


def check(tokenizer: Tokenizer, text: str, size: int, overlap: int = 0, prompt: str = "") -> list[TokenizedChunk]:
    chunks = list(chunks_of(Chunker(tokenizer, size, overlap, prompt), text))
    assert [chunk.tokens for chunk in chunks] == tokenizer.encode(
        [prompt + text[chunk.start : chunk.stop] for chunk in chunks], num_chars=tokenizer.max_chars
    )
    reached = 0
    for n, chunk in enumerate(chunks):
        part = text[chunk.start : chunk.stop]
        assert part == part.strip()
        assert not text[reached : chunk.start].strip(), "characters between two chunks are lost"
        assert chunk.stop > reached or not text.strip(), "a chunk adds nothing to the previous chunk"
        assert len(part) <= max(MAX_WORD_CHARS, MAX_CHARS_PER_TOKEN * size)
        assert n == 0 or chunk.start > chunks[n - 1].start
        assert overlap or chunk.start >= reached
        reached = chunk.stop
    assert not text[reached:].strip(), "the end of the text is lost"
    return chunks


@pytest.mark.parametrize(("size", "overlap"), [(5, 2), (46, 23), pytest.param(1, 0, marks=pytest.mark.wide)])
def test_chunks_of_odd_texts_cover_them(tokenizer: Tokenizer, size: int, overlap: int) -> None:
    for text in ODD.values():
        check(tokenizer, text, size, overlap)


@given(text=TEXTS, repeat=st.integers(1, 20), size=SIZES, overlap=st.integers(0, 20))
def test_chunks_of_any_text_cover_it(tokenizer: Tokenizer, text: str, repeat: int, size: int, overlap: int) -> None:
    text = text * repeat
    for chunk in check(tokenizer, text, size, min(overlap, size // 2)):
        assert len(chunk.tokens.ids) <= size + 2 or is_one(text[chunk.start : chunk.stop])


def is_one(text: str) -> bool:
    """Return True for a single character with its marks, or for joined characters, which a chunk cannot split."""
    return len(re.sub("[\u200d\ufe0f\u0300-\u036f🏻-🏿]", "", text)) <= 3


@given(text=TEXTS, repeat=st.integers(1, 20), size=SIZES, overlap=st.integers(0, 20))
def test_pieces_change_no_chunk(word_piece: Tokenizer, text: str, repeat: int, size: int, overlap: int) -> None:
    text = re.sub("[^\\s]{60,}", "storm", text * repeat)  # the text has no longer words, which a piece may split
    found = []
    for piece_chars in (1, 10**7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shoal_workers.encoding.chunking, "PIECE_CHARS", piece_chars)
            found.append(check(word_piece, text, size, min(overlap, size // 2)))
    assert found[0] == found[1]


def test_chunks_end_at_sentences_or_else_at_words_and_split_no_marks_or_joined_emoji(tokenizer: Tokenizer) -> None:
    text = SENTENCES * 40
    chunks = check(tokenizer, text, 46)
    assert len(chunks) > 10
    assert {chunk.stop for chunk in chunks} <= {match.end() for match in re.finditer(r"[.!?…]", text)}
    text = re.sub("[.!?…]", " ", SENTENCES) * 30
    for chunk in check(tokenizer, text, 40, 10):
        assert text[chunk.stop : chunk.stop + 1] in ("", " ")
        assert text[max(0, chunk.start - 1)] == " " or chunk.start == 0
    for name in ("emoji", "accents", "devanagari"):
        for chunk in check(tokenizer, ODD[name], 46):
            assert ODD[name][chunk.start] not in "\u200d\ufe0f\u0301\u0308\u0302🏽ु्ा"
            assert ODD[name][chunk.stop - 1] != "\u200d"


def test_chunks_have_the_most_tokens_and_the_overlap_that_are_allowed(word_piece: Tokenizer) -> None:
    text = " ".join(["storm", "rain", "europe"][n % 3] for n in range(1_000))
    assert [len(chunk.tokens.ids) for chunk in check(word_piece, text, 40)] == [42] * 25
    chunks = check(word_piece, text, 40, 10)
    assert [len(chunk.tokens.ids) for chunk in chunks] == [42] * 33  # each chunk begins 30 tokens after the last one
    shared = [text[after.start : before.stop] for before, after in itertools.pairwise(chunks)]
    assert {len(word_piece.offsets(part)) for part in shared} == {10}
    prompted = check(word_piece, "rain europe market falls " * 50, 20, prompt="storm storm: ")
    assert {len(chunk.tokens.ids) for chunk in prompted} == {20 + 2 + 3}  # the prompt of each chunk does not count
    assert len({chunk.tokens.ids[:4] for chunk in prompted}) == 1


def test_a_short_text_is_one_chunk_also_without_visible_characters(tokenizer: Tokenizer) -> None:
    for text in ("", " ", "\r\n" * 9_000):
        (chunk,) = check(tokenizer, text, 5)
        assert (chunk.start, chunk.stop, len(chunk.tokens.ids)) == (0, 0, 2)
    (chunk,) = check(tokenizer, SENTENCES[:21], 46)
    assert (chunk.start, chunk.stop) == (0, 21)
    assert [chunk.tokens] == tokenizer.encode([SENTENCES[:21]])


class Counting:
    """The library behind one of Shoal's tokenizers. It notes how many characters each call passes to it."""

    def __init__(self, tokenizer: Tokenizer):
        self.sizes: list[int] = []
        self._library = tokenizer._tokenizer
        tokenizer._tokenizer = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.sizes.append(len(text))
        return self._library.encode(text, **options)

    def encode_batch_fast(self, texts: list[str]) -> Any:
        self.sizes += map(len, texts)
        return self._library.encode_batch_fast(texts)


TEN_MILLION = {
    "words": "storm rain " * 909_091,
    "chinese": "價格上漲" * 2_500_000,
    "one word": "a" * 10_000_000,
    "spaces": " " * 10_000_000,
    "nothing": "\u200b" * 10_000_000,
}


@pytest.mark.parametrize("text", TEN_MILLION.values(), ids=TEN_MILLION)
def test_ten_million_characters_are_tokenized_in_small_pieces(tiny_source: Path, text: str) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", MAX_TOKENS)
    counting, chunker, start = Counting(tokenizer), Chunker(tokenizer, 46), 0
    for side in ("right", "left"):
        counting.sizes.clear()
        (tokens,) = tokenizer.encode([text], side)
        assert tokens.truncated
        assert tokens.characters <= max(counting.sizes) <= tokenizer.max_chars
        assert sum(counting.sizes) <= 1.5 * tokenizer.max_chars
    for _ in range(20):
        counting.sizes.clear()
        _, following = chunker.cut(text, start)
        assert 0 <= sum(counting.sizes) <= 2 * PIECE_CHARS
        if following is None:
            break
        assert following - start > sum(counting.sizes) // 9
        start = following
    counting.sizes.clear()
    list(chunks_of(chunker, text := SENTENCES * 2_000))
    assert sum(counting.sizes) < 2.2 * len(text)
