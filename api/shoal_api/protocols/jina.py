"""Jina: POST /v1/embeddings, and POST /v1/rerank, whose answer has what clients of Cohere's older route read too."""

from flask import Response
from flask_openapi3.models.tag import Tag

from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, prompt_for
from shoal_api.protocols.cohere import rerank_meta
from shoal_api.protocols.openai import embedding_list
from shoal_api.ranking import rank, usage
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.jina import JinaBody, JinaError, JinaRanking, JinaRerankBody
from shoal_api.schema.openai import EmbeddingList
from shoal_api.vector_format import VectorFormat, arrays_of

api = Blueprint("jina", __name__, abp_tags=[Tag(name="Jina")], abp_responses={"4XX": JinaError, "5XX": JinaError})


@api.post("/v1/embeddings", responses={200: EmbeddingList})
async def embeddings(body: JinaBody) -> Response:
    """Embed texts: one vector for each, in order."""
    await check_model(body.model)
    wanted = VectorFormat.of_request()
    reply = await call(body.job(await prompt_for(body.task)), remedy="split the list")
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: embedding_list(reply, body.embedding_type))


@api.post("/v1/rerank", responses={200: JinaRanking})
async def rerank(body: JinaRerankBody) -> Response:
    """Score documents for a query, best first."""
    reply, found = await rank(body)
    answer = {"object": "list", "id": reply.id, "model": reply.model, "results": found, "usage": usage(reply)}
    return rendered(answer | {"meta": rerank_meta(reply, "1")}, headers=cost_headers(reply))
