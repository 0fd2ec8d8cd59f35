"""Jina: POST /v1/rerank, whose answer has what clients of Cohere's older route read too."""

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal_api.enqueue import call
from shoal_api.protocols.cohere import rerank_meta
from shoal_api.ranking import results, usage
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.jina import JinaError, JinaRanking, JinaRerankBody
from shoal_api.served_model import check_reranker

api = APIBlueprint("jina", __name__, abp_tags=[Tag(name="Jina")], abp_responses={"4XX": JinaError, "5XX": JinaError})


@api.post("/v1/rerank", responses={200: JinaRanking})
def rerank(body: JinaRerankBody) -> Response:
    """Score documents for a query, best first."""
    check_reranker(body.model)
    reply = call(body.job(), remedy="split the list")
    found = results(reply, body.top_n, body.document if body.return_documents else None)
    answer = {"object": "list", "id": reply.id, "model": reply.model, "results": found, "usage": usage(reply)}
    return rendered(answer | {"meta": rerank_meta(reply, "1")}, headers=cost_headers(reply))
