"""The model's own tokenizer. It reads only the part of a long text that the model's tokens may need."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, TooLarge

#: For each token that the model takes, this number of characters of a long text is read first. An English token has 4
#: to 5 characters.
CHARS_PER_TOKEN = 4

#: Largest number of characters of a text that are read for each token of the model's limit. The rest is left out even
#: if the limit is not reached. A word of thousands of letters, for example, becomes one unknown token.
MAX_CHARS_PER_TOKEN = 16

#: This number of characters may always be read, even if the model's limit is low. It takes 8 ms in the slowest script,
#: Hangul, because normalising splits its syllables.
MIN_MAX_CHARS = 8_192

#: A cut splits no word that is shorter. WordPiece treats a word of over 100 characters as unknown.
MAX_WORD_CHARS = 128


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of a text or a pair, with special tokens, and whether any of the text was left out.

    If the text was cut, `characters` is the number of characters kept, from the side that was kept; otherwise it is 0.
    For a pair that was cut, only characters of the second text count. `types` says for each token of a pair whether it
    belongs to text 0 or to text 1. The last `num_unseen` tokens of a query are padding, and no token attends to them.
    """

    ids: tuple[int, ...]
    truncated: bool = False
    characters: int = 0
    types: tuple[int, ...] = ()
    is_query: bool = False
    num_unseen: int = 0


class _Part(NamedTuple):
    """The part of a text that was read, without special tokens; `is_partial` is True if the text is longer."""

    num_chars: int
    tokens: Any
    is_partial: bool


class Tokenizer:
    """The tokenizer of a model with a limit of `max_tokens`. It reads at most `max_chars` characters of each text."""

    def __init__(self, path: Path, max_tokens: int):
        self.digest = blake2b(path.read_bytes(), digest_size=16).hexdigest()
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.max_tokens = max_tokens
        self.max_chars = max(MIN_MAX_CHARS, MAX_CHARS_PER_TOKEN * max_tokens)
        self._num_special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        nothing = self._tokenizer.encode("")
        self._added_ids = {
            number for number, is_special in zip(nothing.ids, nothing.special_tokens_mask, strict=True) if is_special
        }

    def encode(self, texts: Sequence[str], side: str = "right", num_chars: int | None = None) -> list[Tokens]:
        """Return the tokens of each text, cut on `side` if too long. The first part that is read has `num_chars`."""
        short = num_chars or CHARS_PER_TOKEN * self.max_tokens
        encodings = self._tokenizer.encode_batch_fast([text if len(text) <= short else "" for text in texts])
        return [
            Tokens(tuple(encoding.ids))
            if len(encoding.ids) <= self.max_tokens and len(text) <= short
            else self._encode_long(text, short, side)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def limited_to(self, max_tokens: int) -> "Tokenizer":
        """Return the same tokenizer with another limit."""
        found = copy(self)
        found.max_tokens = max_tokens
        return found

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], side: str) -> list[Tokens]:
        """Return the tokens of each pair. If a pair is too long, its longer text is cut on `side`."""
        short = CHARS_PER_TOKEN * self.max_tokens
        room = self.max_tokens - self._tokenizer.num_special_tokens_to_add(is_pair=True)
        texts = {text for pair in pairs for text in pair}
        parts = {text: self._read(text, short, side, room) for text in texts}
        self._tokenizer.enable_truncation(self.max_tokens, strategy="longest_first", direction=side)
        try:
            return [self._join(parts[first], parts[second], side, room) for first, second in pairs]
        finally:
            self._tokenizer.no_truncation()

    def _join(self, first: _Part, second: _Part, side: str, room: int) -> Tokens:
        """Return the tokens of a pair. The caller has enabled the tokenizer's truncation."""
        pair = self._tokenizer.post_process(first.tokens, second.tokens)
        ids, types = tuple(pair.ids), tuple(pair.type_ids)
        has_more_tokens = len(first.tokens.ids) + len(second.tokens.ids) > room
        if not has_more_tokens and not first.is_partial and not second.is_partial:
            return Tokens(ids, types=types)
        kept = [place for place, text in zip(pair.offsets, pair.sequence_ids, strict=True) if text == 1]
        characters = second.num_chars
        if len(kept) < len(second.tokens.ids):
            characters = kept[-1][1] if side == "right" else second.num_chars - kept[0][0]
        return Tokens(ids, True, characters, types)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the stop of each token of the whole text, in characters."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def describe(self, text: str, special_tokens: bool) -> list[dict[str, Any]]:
        """Return `id`, `text`, `special`, `start` and `stop` of each token; raise TooLarge for over `max_chars`."""
        if len(text) > self.max_chars:
            raise TooLarge(
                f"a text has {len(text):,} characters, and {self.max_chars:,} can be tokenized: cut it into passages"
            )
        found = self._tokenizer.encode(text, add_special_tokens=special_tokens)
        tokens = zip(found.ids, found.tokens, found.offsets, found.special_tokens_mask, strict=True)
        return [
            {"id": number, "text": token, "special": True, "start": None, "stop": None}
            if is_special
            else {"id": number, "text": text[start:stop], "special": False, "start": start, "stop": stop}
            for number, token, (start, stop), is_special in tokens
        ]

    def decode(self, ids: str, special_tokens: bool) -> tuple[str, int]:
        """Return the text of the ids, and the number of ids. `ids` has spaces between ids. Raises InvalidRequest."""
        words, most = ids.split(), self._tokenizer.get_vocab_size() - 1
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) <= len(str(most)) and int(word) <= most):
                raise InvalidRequest(
                    f"the id of a token is {excerpt(word)}: it takes a whole number from 0 to {most:,}"
                )
        ids_kept = [int(word) for word in words if special_tokens or int(word) not in self._added_ids]
        return self._tokenizer.decode(ids_kept, skip_special_tokens=not special_tokens), len(words)

    def _encode_long(self, text: str, num_chars: int, side: str) -> Tokens:
        room = self.max_tokens - self._num_special
        characters, body, is_partial = self._read(text, num_chars, side, room)
        has_more_tokens = len(body.ids) > room
        body.truncate(room, direction=side)
        if has_more_tokens:
            characters = body.offsets[-1][1] if side == "right" else characters - body.offsets[0][0]
        truncated = has_more_tokens or is_partial
        ids = tuple(self._tokenizer.post_process(body).ids)
        return Tokens(ids, truncated, characters if truncated else 0)

    def _read(self, text: str, num_chars: int, side: str, room: int) -> _Part:
        """Read longer and longer parts of a text until one has more than `room` tokens or no more may be read."""
        while True:
            part, splits_word = cut_text(text, num_chars, side)
            body = self._tokenizer.encode(part, add_special_tokens=False)
            enough = room + MAX_WORD_CHARS if splits_word else room
            if len(body.ids) > enough or len(part) == len(text) or num_chars >= self.max_chars:
                break
            num_chars = min(4 * num_chars, self.max_chars)
        return _Part(len(part), body, len(part) < len(text))


def cut_text(text: str, num_chars: int, side: str) -> tuple[str, bool]:
    """Return at most `num_chars` characters from one side of the text, and whether the cut may be within a word."""
    if len(text) <= num_chars:
        return text, False
    if side == "right":
        ends = range(num_chars, max(0, num_chars - MAX_WORD_CHARS), -1)
        end = next((end for end in ends if text[end].isspace()), None)
        return text[: end or num_chars], end is None
    first = len(text) - num_chars
    starts = range(first, min(len(text), first + MAX_WORD_CHARS))
    start = next((start for start in starts if text[start - 1].isspace()), None)
    return text[start or first :], start is None
