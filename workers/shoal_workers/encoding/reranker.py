"""The reranker: an encoder whose model computes a score for a query and a text."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import DOCUMENT_PROMPTS, QUERY_PROMPTS, Options
from shoal.contract.vectors import cut_and_normalise
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.model import parity
from shoal_workers.model.model import Model


class Reranker(Encoder):
    """A cross-encoder. The vector of a pair, `[1, 1]`, is its raw score before the sigmoid. Not thread-safe."""

    is_reranker = True

    #: The output that the model makes of an input.
    output: ClassVar[str] = "vector"

    @property
    def token_digest(self) -> str:
        """The digest of everything on which token vectors of documents depend; empty for a cross-encoder."""
        return ""

    @property
    def prefix(self) -> str:
        """The text before each text that is scored."""
        ((_, prefix),) = self.model.formed([("", "")])
        return prefix

    def pair_bucketing(self, embeds: Bucketing, embedder: Model) -> Bucketing:
        """Return the bucketing for pairs. A pass over pairs takes about as long as a pass of the embedder, or less."""
        ratio = embedder.num_weights / self.model.num_weights if self.model.num_weights else 0.0
        max_tokens = round(embeds.max_batch_tokens * min(1.0, ratio or 1.0))
        return self.bucketing(max(1, max_tokens))

    def inputs_of(self, pairs: Sequence[tuple[str, str]]) -> tuple[Sequence[Any], dict[int, int]]:
        """Return the inputs of the pairs, then the inputs of queries, and for each pair the number of its query.

        A cross-encoder has no inputs of queries, and an empty map.
        """
        return pairs, {}

    def scaled(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of pairs with these vectors: the sigmoid of the raw scores."""
        return sigmoid(vectors[:, 0])

    def tokenize(self, inputs: Sequence[Any], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        """Return the tokens of each pair. A pair that is too long for the model is cut on the named side."""
        return self.tokenizer.encode_pairs(self.model.formed(inputs), truncation_side)

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the raw scores `[pairs]` of a few pairs, all computed in one pass."""
        texts = [TokenizedText(tokens) for tokens in self.tokenize(pairs)]
        self.encode(texts)
        return np.concatenate([text.vectors[:, 0] for text in texts if text.vectors is not None])

    def check_parity(self, folder: Path, precision: str) -> None:
        """Raise ModelMismatch if the engine does not reproduce the reference scores in the folder."""
        largest = parity.MAX_DIFFERENCE_INT8 if precision == "int8" else parity.MAX_DIFFERENCE
        parity.check_scores(folder, self.score, largest)


class QueryText(str):
    """A text that is read as a query."""

    __slots__ = ()


class LateReranker(Reranker):
    """A late-interaction model, which reads queries and texts apart. Not thread-safe.

    The two numbers in the vector of a pair, `[1, 2]`, are its raw score and its score.
    """

    is_reranker = False
    output = "multivector"

    @property
    def token_digest(self) -> str:
        """The digest of everything on which token vectors of documents depend, except the engine and its precision."""
        model, tokenizer = self.model, self.tokenizer
        head = asdict(model.heads[self.output])
        made_of = [model.digest, tokenizer.digest, model.max_tokens, self.prefix, head]
        return blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16).hexdigest()

    @property
    def prefix(self) -> str:
        """The model's prompt for documents."""
        return self.prompt(Options(), DOCUMENT_PROMPTS)

    def inputs_of(self, pairs: Sequence[tuple[str, str]]) -> tuple[Sequence[Any], dict[int, int]]:
        """Return the texts of the pairs, then each different query once, and for each pair the number of its query."""
        prefix, before_query = self.prefix, self.prompt(Options(), QUERY_PROMPTS)
        places: dict[str, int] = {}
        for query, _ in pairs:
            places.setdefault(query, len(pairs) + len(places))
        inputs = [*(prefix + text for _, text in pairs), *(QueryText(before_query + query) for query in places)]
        return inputs, {number: places[query] for number, (query, _) in enumerate(pairs)}

    def scaled(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of pairs with these vectors."""
        return vectors[:, 1]

    def tokenize(self, inputs: Sequence[Any], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        """Return the tokens of each text and query. An input that is too long is cut on the named side."""
        found: dict[int, Tokens] = {}
        for are_queries in (False, True):
            numbers = [number for number, text in enumerate(inputs) if isinstance(text, QueryText) == are_queries]
            texts = [inputs[number] for number in numbers]
            found |= zip(numbers, Encoder.tokenize(self, texts, truncation_side, are_queries), strict=True)
        return [found[number] for number in range(len(inputs))]

    def check_parity(self, folder: Path, precision: str) -> None:
        """Raise ModelMismatch if the engine does not reproduce the reference vectors in the folder."""
        Encoder.check_parity(self, folder, precision)


def token_vectors(text: TokenizedText) -> NDArray[np.float32]:
    """Return the token vectors of an encoded text, normalised: `[tokens, dimension]`."""
    return cut_and_normalise([text.made["multivector"]], Options())


def max_sim(of_query: NDArray[np.float32], of_text: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the raw score and the score of a query and a text with these normalised token vectors, `[1, 2]`.

    The raw score is MaxSim, the sum over the query's vectors of the highest cosine with a vector of the text (Khattab
    and Zaharia, SIGIR 2020, "ColBERT"). The score is the mean of these cosines, but at least 0.
    """
    best = (of_query @ of_text.T).max(axis=1, initial=-1.0)
    return np.array([[best.sum(), max(0.0, best.sum() / max(1, len(best)))]], np.float32)


def sigmoid(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logistic function of raw scores, from 0 to 1."""
    return np.exp(-np.logaddexp(np.float32(0), -scores))
