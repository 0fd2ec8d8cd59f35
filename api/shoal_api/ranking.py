"""Rankings: the texts of a rerank by their scores."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal_api.answers.response import is_json
from shoal_api.enqueue import call
from shoal_api.model_names import check_reranker
from shoal_api.schema.rerank import RerankBody


async def rank(body: RerankBody, top_k: int | None = None) -> tuple[Reply, list[dict[str, Any]]]:
    """Score the documents of the request, and return the reply, and the best of them as most protocols do.

    `top_k` is the protocol's own word for `top_n`.

    Raises ModelNotFound, InvalidRequest for a document that cannot be read or answered, and what `call` raises.
    """
    await check_reranker(body.model)
    job = body.job()
    if body.return_documents:
        _check_documents(body.documents)
    reply = await call(job, remedy="split the list")
    answered = {"document": body.document} if body.return_documents else {}
    return reply, ranked(reply, "relevance_score", answered, top_k or body.top_n)


def ranked(
    reply: Reply, score_name: str, answered: Mapping[str, Callable[[int], Any]], top_n: int | None = None
) -> list[dict[str, Any]]:
    """Return the `top_n` best texts, or all; of equal ones, the first comes first.

    Each has its number as `index`, its score under the given name, and what is `answered` beside: the value that each
    function returns for the number.
    """
    assert reply.scores is not None
    return [
        {"index": n, score_name: reply.scores[n], **{name: value(n) for name, value in answered.items()}}
        for n in np.argsort(-reply.scores, kind="stable")[:top_n].tolist()
    ]


def _check_documents(documents: Sequence[str | dict[str, Any]]) -> None:
    """Raise InvalidRequest for a document that is an object and cannot be part of an answer."""
    for n, document in enumerate(documents):
        if not isinstance(document, str) and not is_json({"results": [{"document": document}]}):
            raise InvalidRequest(
                f"documents[{n}] cannot be written as JSON: it is nested too deeply, or has a value such as NaN that "
                "JSON lacks; change that, or set return_documents to false"
            )


def usage(reply: Reply) -> dict[str, int]:
    """Return the tokens of all pairs, as most protocols do."""
    num_tokens = sum(reply.tokens)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
