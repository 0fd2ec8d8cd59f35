"""Voyage: POST /v1/embeddings and POST /v1/rerank, with fields and answers of its own."""

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, prompt_for
from shoal_api.protocols.cohere import formatted
from shoal_api.protocols.openai import embedding_list
from shoal_api.ranking import rank, usage
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.openai import EmbeddingList
from shoal_api.schema.voyage import VoyageBody, VoyageError, VoyageRanking, VoyageRerankBody

api = Blueprint(
    "voyage", __name__, abp_tags=[Tag(name="Voyage")], abp_responses={"4XX": VoyageError, "5XX": VoyageError}
)


@api.post("/v1/embeddings", responses={200: EmbeddingList})
async def embeddings(body: VoyageBody) -> Response:
    """Embed texts: one vector for each, in order, in the type of numbers that is asked for."""
    await check_model(body.model)
    reply = await call(body.job(await prompt_for(body.input_type)), remedy="split the list")
    assert reply.vectors is not None
    rows = formatted(reply.vectors, body.output_dtype or "float")
    return rendered(embedding_list(reply, body.encoding_format, rows), headers=cost_headers(reply))


@api.post("/v1/rerank", responses={200: VoyageRanking})
async def rerank(body: VoyageRerankBody) -> Response:
    """Score texts for a query, best first."""
    reply, found = await rank(body, body.top_k)
    answer = {"object": "list", "data": found, "model": reply.model, "usage": usage(reply)}
    return rendered(answer, headers=cost_headers(reply))
