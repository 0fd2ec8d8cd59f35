"""Weaviate's containers: POST /vectors, POST /rerank, GET /meta, GET /.well-known/ready and /.well-known/live."""

from typing import Any

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import prompt_for
from shoal_api.response import WholeResponse, cost_headers, rendered
from shoal_api.routes import health as own_health
from shoal_api.routes import info as own_info
from shoal_api.schema.responses import Info
from shoal_api.schema.weaviate import WeaviateBody, WeaviateError, WeaviateRerankBody, WeaviateScores, WeaviateVectors
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint(
    "weaviate", __name__, abp_tags=[Tag(name="Weaviate")], abp_responses={"4XX": WeaviateError, "5XX": WeaviateError}
)


@api.post("/vectors", responses={200: WeaviateVectors})
async def vectors(body: WeaviateBody) -> Response:
    """Embed the text of an object or a query, or several: vectors of length 1."""
    wanted = VectorFormat.of_request()
    task = body.config.task_type if body.config else None
    reply = await call(body.job(await prompt_for(task)), remedy="split the list")
    assert reply.vectors is not None
    rows, dims = reply.vectors, reply.vectors.shape[1]
    one = body.text is not None
    found = {"text": body.text, "vector": rows[0]} if one else {"texts": body.texts, "vectors": rows}
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: {**found, "dims": dims, "dim": dims})


@api.post("/rerank", responses={200: WeaviateScores})
@api.post("/v1/rerank", responses={200: WeaviateScores})
@api.post("/v2/rerank", responses={200: WeaviateScores})
async def rerank(body: WeaviateRerankBody) -> Response:
    """Score texts for a query, in order."""
    reply = await call(body.job(), remedy="split the list")
    assert reply.scores is not None
    if body.documents is None:
        found: dict[str, Any] = {"property": body.property, "score": reply.scores[0]}
    else:
        pairs = zip(body.documents, reply.scores, strict=True)
        found = {"scores": [{"document": document, "score": score} for document, score in pairs]}
    return rendered({"query": body.query, **found}, headers=cost_headers(reply))


@api.get("/meta", responses={200: Info})
async def meta() -> Response:
    """Tell the model, the workers and the limits of the service."""
    return rendered(await own_info.describe())


@api.get("/.well-known/ready", responses={204: None})
async def ready() -> Response:
    """Tell that a ready worker will answer requests."""
    await own_health.num_ready()
    return WholeResponse(status=204)


@api.get("/.well-known/live", responses={204: None})
async def live() -> Response:
    """Tell that the process is alive."""
    return WholeResponse(status=204)
