"""Rankings: the texts of a rerank by their scores."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.replies import Reply


def ranked(reply: Reply, top_n: int | None = None) -> list[tuple[int, np.float32]]:
    """Return the number and the score of the `top_n` best texts, or of all; of equal ones, the first comes first."""
    assert reply.scores is not None
    return [(int(n), reply.scores[n]) for n in np.argsort(-reply.scores, kind="stable")[:top_n]]


def results(reply: Reply, top_n: int | None, document: Callable[[int], Any] | None) -> list[dict[str, Any]]:
    """Return the best texts as most protocols do, each with its `document`, if there is a function that returns it."""
    return [
        {"index": n, "relevance_score": score, **({"document": document(n)} if document else {})}
        for n, score in ranked(reply, top_n)
    ]


def usage(reply: Reply) -> dict[str, int]:
    """Return the tokens of all pairs, as most protocols do."""
    num_tokens = sum(reply.tokens)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
