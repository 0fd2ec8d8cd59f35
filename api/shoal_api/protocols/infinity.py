"""Infinity: POST /embeddings and GET /models, which are OpenAI's with more fields, and POST /rerank."""

import time
from typing import Annotated, Any, Literal

from flask import Response
from pydantic import Field

from shoal.contract.jobs import LANES
from shoal.contract.options import MAX_DIMENSIONS
from shoal.contract.replies import Reply
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.enqueue import answer_vectors
from shoal_api.protocols.model_routing import options_for, served_models
from shoal_api.protocols.openai import OpenAIError, embedding_list, usage
from shoal_api.protocols.rerank import RerankBody, rank
from shoal_api.schema.body import Body, Ignored, Name, TextList, Texts, example
from shoal_api.schema.responses import ProtocolAnswer, ProtocolFacts, ProtocolVectors


class InfinityBody(Body):
    """Texts to embed."""

    model_config = example(input=["a text", "another text"])
    input: Texts
    model: Name | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=0, le=MAX_DIMENSIONS)] = 0  # 0: all
    modality: Literal["text"] = "text"
    user: Ignored = None


class InfinityRerankBody(RerankBody):
    """A query, and documents to score for it."""

    documents: TextList  # type: ignore[assignment]
    raw_scores: bool = False


api = Blueprint("infinity", __name__, "Infinity", OpenAIError)


@api.post("/embeddings", responses={200: ProtocolVectors})
async def embeddings(body: InfinityBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    options = await options_for(body.model, dimensions=body.dimensions or None)
    return await answer_vectors(
        body.input, options, lambda reply: embedding_list(reply, body.encoding_format) | _about(reply)
    )


@api.post("/rerank", responses={200: ProtocolAnswer})
async def rerank(body: InfinityRerankBody) -> Response:
    """Score texts for a query, best first."""
    reply, found = await rank(body, raw_scores=body.raw_scores, as_objects=False)
    answer = {"object": "rerank", "results": found, "model": reply.model, "usage": usage(reply)}
    return json_response(answer | _about(reply), headers=cost_headers(reply))


def _about(reply: Reply) -> dict[str, Any]:
    return {"id": f"infinity-{reply.id}", "created": int(time.time())}


@api.get("/models", responses={200: ProtocolFacts})
async def models() -> Response:
    """List the served model and reranker, with the load of the lanes."""
    settings, loads = context().settings, (await context().client.queue.loads()).values()
    num_texts = sum(load.num_texts for load in loads)
    stats = {
        "queue_fraction": num_texts / (settings.max_backlog_texts * len(LANES)),
        "queue_absolute": num_texts,
        "results_pending": num_texts,
        "batch_size": settings.max_batch_texts,
    }
    about = {"object": "model", "owned_by": "infinity", "created": 0, "backend": "shoal", "stats": stats}
    data = [
        {"id": name, **about, "capabilities": [capability]}
        for part, capability in (("model", "embed"), ("reranker", "rerank"))
        for name in await served_models(part)
    ]
    return json_response({"object": "list", "data": data})
