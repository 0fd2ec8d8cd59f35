"""Rerank requests with `documents`, which several protocols share."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from flask import Response
from pydantic import Field

from shoal.contract.excerpt import excerpt
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations import Rerank
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.enqueue import call
from shoal_api.protocols.model_routing import route_to_model
from shoal_api.schema.body import Body, Name, Text, TopN, TruncateTo, example


class RerankBody(Body):
    """A query, and documents to score for it."""

    model_config = example(query="a storm", documents=["rain", "market"])
    query: Text
    documents: Annotated[list[Text | dict[str, Any]], Field(fail_fast=True)]
    model: Name | None = None
    top_n: TopN | None = None
    return_documents: bool = False
    truncate_prompt_tokens: TruncateTo = None


async def rank(
    body: RerankBody,
    fields: Sequence[str] = ("text",),
    *,
    options: Options | None = None,
    raw_scores: bool = False,
    top_n: int | None = None,
    as_objects: bool = True,
) -> tuple[Reply, list[dict[str, Any]]]:
    """Score documents by these fields; return the reply and the best documents, best first. Raises ModelNotFound.

    A returned document is an object with the fields that were read, or a text unless `as_objects`.
    """
    await route_to_model(body.model, "reranker")
    texts = [
        document if isinstance(document, str) else "\n".join(_value(n, document, name) for name in fields)
        for n, document in enumerate(body.documents)
    ]
    reply = await call(Rerank(texts, options or Options(), query=body.query, raw_scores=raw_scores))
    assert reply.scores is not None
    found: list[dict[str, Any]] = []
    for n in best_first(reply)[: top_n or body.top_n]:
        found.append({"index": n, "relevance_score": reply.scores[n]})
        if body.return_documents:
            document = body.documents[n]
            read = {"text": document} if isinstance(document, str) else {name: document[name] for name in fields}
            found[-1]["document"] = read if as_objects else texts[n]
    return reply, found


def ranking(reply: Reply, found: list[dict[str, Any]], version: str = "1") -> Response:
    """Return the response with the best documents that `rank` found."""
    num_tokens = sum(reply.tokens)
    meta = {
        "api_version": {"version": version, "is_experimental": False},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": num_tokens},
    }
    usage = {"prompt_tokens": num_tokens, "completion_tokens": 0, "total_tokens": num_tokens}
    texts = [item | {"document": item["document"].get("text")} if "document" in item else item for item in found]
    about = {"object": "list", "id": reply.id, "model": reply.model, "results": found, "data": texts}
    return json_response(about | {"usage": usage, "meta": meta}, headers=cost_headers(reply))


def best_first(reply: Reply) -> list[int]:
    """Return the positions of the texts, the highest score first. Texts with equal scores keep their order."""
    assert reply.scores is not None
    order: list[int] = np.argsort(-reply.scores, kind="stable").tolist()
    return order


def _value(number: int, document: dict[str, Any], name: str) -> str:
    if not isinstance(value := document.get(name), str):
        words = excerpt(value) if name in document else "missing"
        raise InvalidRequest(f"documents[{number}].{excerpt(name)[1:-1]} is {words}: it takes a string")
    return value
