"""The API of Weaviate's model containers: POST /vectors, POST /rerank, GET /meta, and /.well-known/ready and live."""

from typing import Any, Literal

from flask import Response

from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations import Rerank
from shoal_api.answers.response import WholeResponse, cost_headers, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import answer_vectors, call
from shoal_api.protocols.model_routing import prompt_for
from shoal_api.routes import service
from shoal_api.schema.body import Body, Dimensions, Ignored, Text, TextList, example
from shoal_api.schema.error_statuses import one_field
from shoal_api.schema.responses import Info, ProtocolAnswer, ProtocolVectors


class WeaviateConfig(Body):
    """Options of an embedding."""

    task_type: Literal["", "query", "passage"] | None = None
    dimensions: Dimensions | None = None
    pooling_strategy: Ignored = None


class WeaviateBody(Body):
    """A text to embed, or several. With a `text`, `texts` are ignored."""

    model_config = example(text="a text", config={"task_type": "passage"})
    text: Text | None = None
    texts: TextList | None = None
    config: WeaviateConfig | None = None


class WeaviateRerankBody(Body):
    """A query, and texts to score for it. With `documents`, the single text in `property` is ignored."""

    model_config = example(query="a storm", property="title", documents=["rain", "market"])
    query: Text
    property: Text | None = None
    documents: TextList | None = None


api = Blueprint("weaviate", __name__, "Weaviate", one_field("WeaviateError", "error"))


@api.post("/vectors", responses={200: ProtocolVectors})
async def vectors(body: WeaviateBody) -> Response:
    """Embed one text or several: vectors of length 1."""
    config = body.config or WeaviateConfig.model_construct()
    prompt_name = await prompt_for(config.task_type)
    texts = body.texts if body.text is None else [body.text]
    if texts is None:
        raise InvalidRequest("text is missing: send text or texts")

    def in_json(reply: Reply) -> dict[str, Any]:
        rows = reply.vectors
        assert rows is not None
        found: dict[str, Any] = {"text": body.text, "vector": rows[0]}
        if body.text is None:
            found = {"texts": body.texts, "vectors": rows}
        return {**found, "dims": rows.shape[1], "dim": rows.shape[1]}

    return await answer_vectors(texts, Options(prompt_name=prompt_name, dimensions=config.dimensions), in_json)


@api.post("/rerank", responses={200: ProtocolAnswer})
@api.post("/v1/rerank", operation_id="weaviateRerankV1", responses={200: ProtocolAnswer})
@api.post("/v2/rerank", operation_id="weaviateRerankV2", responses={200: ProtocolAnswer})
async def rerank(body: WeaviateRerankBody) -> Response:
    """Score texts for a query, in order."""
    texts = body.documents if body.property is None or body.documents is not None else [body.property]
    if texts is None:
        raise InvalidRequest("documents is missing: send documents, or a single text as property")
    reply = await call(Rerank(texts, query=body.query))
    assert reply.scores is not None
    if body.documents is None:
        found: dict[str, Any] = {"property": body.property, "score": reply.scores[0]}
    else:
        pairs = zip(body.documents, reply.scores, strict=True)
        found = {"scores": [{"document": document, "score": score} for document, score in pairs]}
    return json_response({"query": body.query, **found}, headers=cost_headers(reply))


@api.get("/meta", responses={200: Info})
async def meta() -> Response:
    """Describe the service: its model, indexes, workers and limits."""
    return json_response(await service.describe())


@api.get("/.well-known/ready", responses={204: None})
async def ready() -> Response:
    """Check that a ready worker will answer requests."""
    await service.num_ready()
    return WholeResponse(status=204)


@api.get("/.well-known/live", responses={204: None})
async def live() -> Response:
    """Check that the process is alive."""
    return WholeResponse(status=204)
