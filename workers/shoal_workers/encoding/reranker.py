"""The reranker: an encoder whose model computes one score for a pair of texts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.model import parity
from shoal_workers.model.model import Model


class Reranker(Encoder):
    """A cross-encoder. The vector of a pair, `[1, 1]`, is its raw score before the sigmoid. Not thread-safe."""

    is_reranker = True

    def bucketing(self, embeds: Bucketing[TokenizedText], embedder: Model) -> Bucketing[TokenizedText]:
        """Return the bucketing for pairs. A pass of pairs takes about as long as a pass of the embedder, or less."""
        ratio = embedder.num_weights / self.model.num_weights if self.model.num_weights else 0.0
        max_tokens = round(embeds.max_batch_tokens * min(1.0, ratio or 1.0))
        return replace(embeds, max_batch_tokens=max(1, max_tokens), shares_rows=self.model.shares_rows)

    def inputs_of(self, pairs: Sequence[tuple[str, str]]) -> tuple[Sequence[Any], dict[int, int]]:
        """Return the inputs for the pairs: first one for each pair, then queries.

        If queries have inputs of their own, the map has the place of the query of each pair.
        """
        return pairs, {}

    def scaled(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of pairs with these vectors: the sigmoid of the raw scores."""
        return sigmoid(vectors[:, 0])

    def tokenize(self, inputs: Sequence[Any], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        """Return the tokens of each pair. A pair that is too long for the model is cut on the named side."""
        return self.tokenizer.encode_pairs(inputs, truncation_side)

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the raw scores `[pairs]` of a few pairs, all computed in one pass."""
        texts = [TokenizedText(tokens) for tokens in self.tokenize(pairs)]
        self.encode(texts)
        return np.concatenate([text.vectors[:, 0] for text in texts if text.vectors is not None])

    def check_parity(self, folder: Path, precision: str) -> None:
        """Raise ModelMismatch if the engine does not reproduce the reference scores in the folder."""
        largest = parity.MAX_DIFFERENCE_INT8 if precision == "int8" else parity.MAX_DIFFERENCE
        parity.check_scores(folder, self.score, largest)


def sigmoid(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return raw scores scaled to numbers from 0 to 1."""
    return np.exp(-np.logaddexp(np.float32(0), -scores))


def max_sim(query: NDArray[np.float32], text: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return two scores of a text, `[1, 2]`: the sum of the best product of each query vector, and the mean of these.

    `query` and `text` have a vector for each token, `[tokens, dimension]` (Khattab and Zaharia, SIGIR 2020, "ColBERT").
    """
    best = (query @ text.T).max(axis=1)
    return np.array([[best.sum(), best.mean()]], np.float32)
