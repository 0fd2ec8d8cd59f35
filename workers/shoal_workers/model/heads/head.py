"""The properties of a head and of a late-interaction model's queries, in the description of a prepared model.

This module imports no library that computes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Head:
    """An output besides the pooled vector. Its graph makes `size` numbers from each token vector.

    `kind` says how these numbers become the output: "max" and "sum" reduce them over a text's tokens to the weights of
    all words of the vocabulary (SPLADE), "ids" takes the one number of a token as the weight of its id (BGE-M3),
    "vectors" keeps them as the token's vector (ColBERT), and "rest" does so for all tokens but the first (BGE-M3).

    For "ids" and "vectors", tokens with an id in `skipped` are left out; in queries only with `skips_queries`. For a
    word's weight, log(1 + x) is applied `num_logs` times to its number. A text has at most `max_weights` weights; 0
    means no limit.
    """

    kind: str
    size: int
    skipped: tuple[int, ...] = ()
    skips_queries: bool = False
    num_logs: int = 1
    max_weights: int = 0


@dataclass(frozen=True, slots=True)
class QueryForm:
    """The form of queries, which differs from the form of documents: cut to `max_tokens`, filled to `min_tokens`.

    `filler` is the id of the tokens that fill a query. Unless `is_filler_seen`, no token attends to them.
    """

    max_tokens: int
    min_tokens: int = 0
    filler: int = 0
    is_filler_seen: bool = False
