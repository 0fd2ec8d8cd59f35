"""Texts to token ids, as the model's own tokenizer has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

#: A text is first cut to this many characters for each token the model takes; more are looked at only if need be.
CHARS_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one text, special tokens included, and whether any of the text was left out."""

    ids: tuple[int, ...]
    truncated: bool = False


class Tokenizer:
    """Tokenizes up to the model's length without ever reading much more of a huge text than it keeps."""

    def __init__(self, path: Path, max_tokens: int):
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.max_tokens = max_tokens
        self._num_special = self._tokenizer.num_special_tokens_to_add(is_pair=False)

    def encode(self, texts: Sequence[str], side: str = "right") -> list[Tokens]:
        """The tokens of each text; one that is too long loses its end, or its beginning if `side` is `left`."""
        size = self.max_tokens * CHARS_PER_TOKEN
        encodings = self._tokenizer.encode_batch_fast([text if len(text) <= size else "" for text in texts])
        return [
            Tokens(tuple(encoding.ids))
            if len(encoding.ids) <= self.max_tokens and len(text) <= size
            else self._encode_long(text, size, side)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _encode_long(self, text: str, size: int, side: str) -> Tokens:
        room = self.max_tokens - self._num_special
        while True:
            body = self._tokenizer.encode(_cut(text, size, side), add_special_tokens=False)
            if len(body.ids) > room or size >= len(text):
                break
            size *= 4
        truncated = len(body.ids) > room
        if truncated:
            body.truncate(room, direction=side)
        return Tokens(tuple(self._tokenizer.post_process(body).ids), truncated)


def _cut(text: str, size: int, side: str) -> str:
    """About `size` characters of the text from one side, cut at white space, where no token can reach across."""
    if len(text) <= size:
        return text
    if side == "right":
        end = next((n for n in range(size, len(text)) if text[n].isspace()), len(text))
        return text[:end]
    start = next((n for n in range(len(text) - size, 0, -1) if text[n - 1].isspace()), 0)
    return text[start:]
