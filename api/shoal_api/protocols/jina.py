"""Jina: POST /v1/embeddings and POST /v1/rerank. The answer to a rerank has the fields of Cohere's older route too."""

from typing import Any, Literal

from flask import Response
from pydantic import BaseModel, Field

from shoal.contract.options import Options
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import answer_vectors
from shoal_api.protocols.cohere import rerank_meta
from shoal_api.protocols.model_routing import prompt_for, route_to_model
from shoal_api.protocols.openai import EmbeddingList, embedding_list, usage
from shoal_api.protocols.rerank import RankedDocument, RerankBody, rank
from shoal_api.schema.body import Body, Ignored, Name, ShortenedTo, Texts, example
from shoal_api.schema.errors import UNSUPPORTED, one_field
from shoal_api.schema.responses import WITH_COST

Task = Literal["retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"]


class JinaBody(Body):
    """Texts to embed."""

    model_config = example(input=["a text"], task="retrieval.passage")
    input: Texts = Field(description="One text or several")
    model: Name | None = Field(None, description="A name of the served model; null: the served one")
    task: Task | None = Field(None, description="Kind of the texts: chooses the model's prompt for it, if there is one")
    dimensions: ShortenedTo = None
    embedding_type: Literal["float", "base64"] | None = Field(None, description="Lists of numbers, or base64 of floats")
    normalized: bool = Field(True, description="Scale vectors to length 1")
    truncate: bool | None = Field(None, description="Cut texts that are too long; null: true; false refuses them")
    late_chunking: Literal[False] | None = Field(None, description="Not supported: each text is embedded by itself")
    user: Ignored = None


class JinaRerankBody(RerankBody):
    """A query, and documents to score for it."""

    return_documents: bool = Field(True, description="Return the documents too")


class JinaRanking(BaseModel):
    """The documents, best first, with the fields of Cohere's older route too."""

    model_config = WITH_COST
    object: Literal["list"]
    id: str
    model: str
    results: list[RankedDocument]
    usage: dict[str, int] = Field(description="The tokens of the query with each document")
    meta: dict[str, Any]


api = Blueprint("jina", __name__, "Jina", one_field("JinaError", "detail", UNSUPPORTED))


@api.post("/v1/embeddings", responses={200: EmbeddingList})
async def embeddings(body: JinaBody) -> Response:
    """Embed texts: one vector for each, in order."""
    await route_to_model(body.model)
    options = Options(
        normalize=body.normalized,
        truncate=body.truncate is not False,
        prompt_name=await prompt_for(body.task),
        dimensions=body.dimensions,
    )
    return await answer_vectors(body.input, options, lambda reply: embedding_list(reply, body.embedding_type))


@api.post("/v1/rerank", responses={200: JinaRanking})
async def rerank(body: JinaRerankBody) -> Response:
    """Score documents for a query, best first."""
    reply, found = await rank(body)
    answer = {"object": "list", "id": reply.id, "model": reply.model, "results": found, "usage": usage(reply)}
    return json_response(answer | {"meta": rerank_meta(reply, "1")}, headers=cost_headers(reply))
