"""Chunking cuts a long text, piece by piece, into chunks of limited length that end with a sentence if possible."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import Options
from shoal.errors import InvalidRequest
from shoal_workers.encoding.tokenizer import MAX_CHARS_PER_TOKEN, MAX_WORD_CHARS, Tokenizer, Tokens, cut_text

#: Number of characters in a piece, the part of a text that is cut in one step: about 8 chunks of 250 tokens. Other jobs
#: wait during a step. With Hangul, the slowest script, a step takes 50 ms.
PIECE_CHARS = 8_192

#: A piece has room for this number of chunks of the largest size, so pieces are shorter if chunks are short.
PIECE_CHUNKS = 4

#: The end of a sentence and all white space before the next sentence: punctuation and quotation marks before white
#: space, the full stops of Chinese and Japanese, and empty lines.
_SENTENCE_END = re.compile(
    r"[.!?…؟।॥][\"'”’»)\]]{0,4}\s+"  # noqa: RUF001
    r"|[。！？｡][”’」』）》】]{0,4}(?![。！？｡])\s*"  # noqa: RUF001
    r"|\n\s*\n\s*"
)

_VISIBLE = re.compile(r"\S")

#: All code points of white space.
_WHITE_SPACE = [code for code in range(0x3001) if chr(code).isspace()]

#: The character that joins two emoji into one.
_ZERO_WIDTH_JOINER = "\u200d"

#: First and last character for a skin colour. Such a character modifies the emoji before it.
_SKIN_COLOURS = ("\U0001f3fb", "\U0001f3ff")

#: Ranks of boundaries, from worst to best. `JOINED` means that the next character belongs to the previous one.
JOINED, WITHIN_WORD, WORD, SENTENCE = range(4)


class TokenizedChunk(NamedTuple):
    """The part `text[start:stop]` of a text, and its tokens, including the prompt and special tokens."""

    start: int
    stop: int
    tokens: Tokens


class _Span(NamedTuple):
    """A chunk before tokenizing, with the white space at its end. It `is_indivisible` if it has no boundary inside."""

    start: int
    stop: int
    is_indivisible: bool = True


class Boundaries(NamedTuple):
    """The positions in a piece where a chunk may begin or end, in order, including the beginning and end of the piece.

    For each boundary, `places` is its position in characters, `num_tokens` the number of tokens before it, and `ranks`
    its rank.
    """

    places: NDArray[np.intp]
    num_tokens: NDArray[np.intp]
    ranks: NDArray[np.intp]


class Chunker:
    """Cuts texts into chunks of at most `chunk_tokens` tokens. Neighbouring chunks share at most `overlap` tokens.

    `prompt` is put before each chunk. The tokens of the prompt and special tokens do not count. A single character that
    has more tokens than allowed is still a chunk. At most half of a chunk's tokens may overlap.
    """

    def __init__(self, tokenizer: Tokenizer, chunk_tokens: int, overlap: int = 0, prompt: str = ""):
        self._tokenizer = tokenizer
        self._chunk_tokens = chunk_tokens
        self._overlap = overlap
        self._prompt = prompt
        self._max_chars = max(MAX_WORD_CHARS, MAX_CHARS_PER_TOKEN * chunk_tokens)
        self.num_added = len(tokenizer.encode([prompt])[0].ids)

    def cut(self, text: str, start: int = 0, covered: int = 0) -> tuple[list[TokenizedChunk], int | None]:
        """Return the next chunks from `start` on, and the start of the chunk after them (None at the end of the text).

        `covered` is the end of the previous chunk. If the next chunk would not reach beyond `covered`, it begins at
        `covered` instead.
        """
        visible = _visible_from(text, start)
        if visible == len(text):
            return self._tokenized(text, [_Span(0, 0)]), None
        most = self._chunk_tokens
        while True:
            spans, following = self._plan(text, visible, most)
            chunks = self._tokenized(text, spans)
            excess = [len(chunk.tokens.ids) - self.num_added - self._chunk_tokens for chunk in chunks]
            is_too_long = [more > 0 and not span.is_indivisible for more, span in zip(excess, spans, strict=True)]
            if not is_too_long[0]:
                break
            most = max(1, most - excess[0])  # a chunk may have more tokens alone than within the text
        if chunks[0].stop <= covered and _visible_from(text, covered) < len(text):
            return self.cut(text, covered, covered)
        num_fit = [*is_too_long, True].index(True) if most == self._chunk_tokens else 1
        return chunks[:num_fit], chunks[num_fit].start if num_fit < len(chunks) else following

    def _tokenized(self, text: str, spans: Sequence[_Span]) -> list[TokenizedChunk]:
        places = [(span.start, span.start + len(text[span.start : span.stop].rstrip())) for span in spans]
        parts = [self._prompt + text[start:stop] for start, stop in places]
        tokens = self._tokenizer.encode(parts, num_chars=self._tokenizer.max_chars)
        return [TokenizedChunk(*place, found) for place, found in zip(places, tokens, strict=True)]

    def _plan(self, text: str, start: int, most: int) -> tuple[list[_Span], int | None]:
        """Return the chunks of at most `most` tokens in the next piece, and the start of the chunk after them."""
        size = max(min(PIECE_CHARS, PIECE_CHUNKS * self._max_chars), self._max_chars + 2 * MAX_WORD_CHARS)
        piece, splits_word = cut_text(text[start : start + size + 1], size, "right")
        is_end = start + len(piece) == len(text)
        found, first = self._boundaries(piece, splits_word), 0
        places: list[int] = (found.places + start).tolist()
        end, spans = len(places) - 1, list[_Span]()
        while (reach := self._reach(found, first, most)) < end:
            is_rest = reach == first and first + 1 == end
            if is_rest and not is_end and first > 0:
                break
            if reach == first and places[first + 1] - places[first] > self._max_chars:
                stop = _before_joined(text, places[first], places[first] + self._max_chars)
                following = _visible_from(text, stop)
                return [*spans, _Span(places[first], stop, True)], following if following < len(text) else None
            if is_rest:
                break
            last = self._last(found, first, max(reach, first + 1), most)
            spans.append(_Span(places[first], places[last], last == first + 1))
            first = self._following(found, first, last, most)
        if is_end:
            return [*spans, _Span(places[first], places[end], first + 1 == end)], None
        return spans, places[first]

    def _boundaries(self, piece: str, splits_word: bool) -> Boundaries:
        """Return the boundaries of the piece. If its end may split a word, boundaries near the end are left out."""
        starts, stops = np.array(self._tokenizer.offsets(piece), np.intp).reshape(-1, 2).T
        if splits_word:
            is_sure = stops <= len(piece) - MAX_WORD_CHARS
            starts, stops = starts[is_sure], stops[is_sure]
        codes = np.frombuffer(piece.encode("utf-32-le"), "<u4")
        is_space = np.isin(codes, _WHITE_SPACE)
        visible = np.where(is_space, len(piece), np.arange(len(piece)))
        visible = np.minimum.accumulate(visible[::-1])[::-1]  # for each position, the next visible character
        visible = np.append(visible, len(piece))
        before = np.maximum.accumulate(stops)
        after = np.minimum.accumulate(starts[::-1])[::-1][1:]
        numbers = 1 + np.flatnonzero(before[:-1] <= after)
        places = visible[after[numbers - 1]]
        is_new = (np.diff(places, prepend=0) > 0) & (places < len(piece))
        numbers, places = numbers[is_new], places[is_new]
        sentences = [match.end() for match in _SENTENCE_END.finditer(piece)]
        ranks = np.where(np.isin(places, sentences), SENTENCE, np.where(is_space[places - 1], WORD, WITHIN_WORD))
        ranks[[n for n, place in enumerate(places.tolist()) if _is_joined(piece, place)]] = JOINED
        return Boundaries(
            np.concatenate([[0], places, [len(piece)]]),
            np.concatenate([[0], numbers, [len(starts)]]),
            np.concatenate([[SENTENCE], ranks, [SENTENCE]]),
        )

    def _reach(self, found: Boundaries, first: int, most: int) -> int:
        """Return the last boundary at which a chunk that begins at the boundary `first` may end."""
        by_tokens = found.num_tokens.searchsorted(found.num_tokens[first] + most, "right")
        by_chars = found.places.searchsorted(found.places[first] + self._max_chars, "right")
        return int(min(by_tokens, by_chars)) - 1

    def _last(self, found: Boundaries, first: int, reach: int, most: int) -> int:
        """Return the end of a chunk: the last boundary of the highest rank in its second half, otherwise `reach`."""
        least = found.num_tokens[first] + max(most // 2, self._overlap + 1)
        late = found.ranks[found.num_tokens.searchsorted(least) : reach + 1]
        return reach - int(late[::-1].argmax()) if late.size else reach

    def _following(self, found: Boundaries, first: int, last: int, most: int) -> int:
        """Return where the next chunk begins after the chunk from `first` to `last`: before a word, if possible."""
        nearest = int(found.num_tokens.searchsorted(found.num_tokens[last] - self._overlap))
        begin = max(first + 1, nearest)
        words = np.flatnonzero(found.ranks[begin : last + 1] > WITHIN_WORD)
        begin += int(words[0]) if words.size else 0
        while begin < last and self._reach(found, begin, most) <= last:  # a chunk from `begin` would add nothing
            begin += 1
        return begin


def open_chunker(tokenizer: Tokenizer, model: str, options: Options, prompt: str) -> Chunker:
    """Return the chunker for these options; raise InvalidRequest if `chunk_tokens` is above the model's limit."""
    assert options.chunk_tokens is not None
    chunker = Chunker(tokenizer, options.chunk_tokens, options.chunk_overlap, prompt)
    if (most := tokenizer.max_tokens - chunker.num_added) < options.chunk_tokens:
        raise InvalidRequest(
            f"chunk_tokens is {options.chunk_tokens:,}: {model} takes {tokenizer.max_tokens:,} tokens, "
            f"{chunker.num_added} of them for special tokens and the prompt, so it takes at most {most:,}"
        )
    return chunker


def _visible_from(text: str, place: int) -> int:
    """Return the position of the first visible character at or after `place`, or the length of the text."""
    found = _VISIBLE.search(text, place)
    return len(text) if found is None else found.start()


def _before_joined(text: str, first: int, place: int) -> int:
    """Return the last position after `first` and up to `place` whose character does not belong to the previous one."""
    return next((n for n in range(place, first, -1) if not _is_joined(text, n)), place)


def _is_joined(text: str, place: int) -> bool:
    """Return True if the character at `place` belongs to the previous one, as an accent does."""
    if text[place].isascii():
        return False
    is_joiner = _ZERO_WIDTH_JOINER in text[place - 1 : place + 1]
    is_colour = _SKIN_COLOURS[0] <= text[place] <= _SKIN_COLOURS[1]
    return is_joiner or is_colour or unicodedata.category(text[place]).startswith("M")
