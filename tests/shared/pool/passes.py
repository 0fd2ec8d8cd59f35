"""Texts for the passes of an encoder, and an encoder that notes its passes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText


def tokenized(encoder: Encoder, texts: Sequence[str]) -> list[TokenizedText]:
    """Return the texts, ready for a pass."""
    return [TokenizedText(tokens) for tokens in encoder.tokenize(texts)]


def rows(texts: Sequence[TokenizedText]) -> NDArray[np.float32]:
    """Return the vectors of encoded texts, which are not normalised."""
    return np.concatenate([text.vectors for text in texts if text.vectors is not None])


class Noting(Encoder):
    """The real encoder. It notes its passes, calls `before_pass` ahead of each, and fails on `poison`.

    `passes` has the number of texts of each pass, and `num_tokens` the number of their tokens.
    """

    def __init__(self, encoder: Encoder, poison: Any = "poison"):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine, encoder._head_graphs)
        self.passes: list[int] = []
        self.num_tokens: list[int] = []
        self.before_pass: Callable[[Sequence[TokenizedText]], object] = lambda _: None
        (self.poison,) = encoder.tokenize([poison])

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Note the pass, and start it unless it has a text to fail on."""
        self.before_pass(texts)
        self.passes.append(len(texts))
        self.num_tokens.append(sum(text.num_tokens for text in texts))
        if any(text.tokens.ids == self.poison.ids for text in texts):
            raise RuntimeError("the engine chokes")
        return super().start(texts)
