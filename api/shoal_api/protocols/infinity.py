"""Infinity: POST /embeddings and GET /models, which are OpenAI's with more fields, and POST /rerank."""

import time
from typing import Any

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal.jobs import LANES
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, served_models, served_rerankers
from shoal_api.protocols.openai import embedding_list
from shoal_api.ranking import rank, usage
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.infinity import (
    InfinityBody,
    InfinityEmbeddings,
    InfinityModels,
    InfinityRanking,
    InfinityRerankBody,
)
from shoal_api.schema.openai import OpenAIError
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint(
    "infinity", __name__, abp_tags=[Tag(name="Infinity")], abp_responses={"4XX": OpenAIError, "5XX": OpenAIError}
)


@api.post("/embeddings", responses={200: InfinityEmbeddings})
def embeddings(body: InfinityBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    check_model(body.model)
    wanted = VectorFormat.of_request()
    reply = call(body.job(), remedy="split the list")
    about = {"id": f"infinity-{reply.id}", "created": int(time.time())}
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: embedding_list(reply, body.encoding_format) | about)


@api.post("/rerank", responses={200: InfinityRanking})
def rerank(body: InfinityRerankBody) -> Response:
    """Score texts for a query, best first."""
    reply, found = rank(body)
    answer = {"object": "rerank", "results": found, "model": reply.model, "usage": usage(reply)}
    about = {"id": f"infinity-{reply.id}", "created": int(time.time())}
    return rendered(answer | about, headers=cost_headers(reply))


@api.get("/models", responses={200: InfinityModels})
def models() -> Response:
    """List the model and the reranker that are served, with the load of the lanes."""
    about = {"object": "model", "owned_by": "infinity", "created": 0, "backend": "shoal", "stats": _load()}
    capabilities = [(name, "embed") for name in served_models()] + [(name, "rerank") for name in served_rerankers()]
    data = [{"id": name, **about, "capabilities": [capability]} for name, capability in capabilities]
    return rendered({"object": "list", "data": data})


def _load() -> dict[str, Any]:
    """Return the load of all lanes under Infinity's names."""
    settings, loads = context().settings, context().client.run(lambda client: client.queue.loads()).values()
    num_texts = sum(load.num_texts for load in loads)
    return {
        "queue_fraction": num_texts / (settings.max_backlog_texts * len(LANES)),
        "queue_absolute": num_texts,
        "results_pending": num_texts,
        "batch_size": settings.max_batch_texts,
    }
