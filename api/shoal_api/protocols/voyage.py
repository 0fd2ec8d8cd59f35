"""Voyage: POST /v1/embeddings and POST /v1/rerank."""

from typing import Literal

from flask import Response

from shoal.contract.options import Options
from shoal.operations import Embed
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import call
from shoal_api.protocols.cohere import formatted
from shoal_api.protocols.infinity import InfinityRerankBody
from shoal_api.protocols.model_routing import options_for
from shoal_api.protocols.openai import OpenAIError, embedding_list, usage
from shoal_api.protocols.rerank import rank
from shoal_api.schema.body import Body, Name, ShortenedTo, Texts, TopN, example
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import ProtocolAnswer


class VoyageBody(Body):
    """Texts to embed."""

    model_config = example(input=["a text"], input_type="document")
    input: Texts
    model: Name | None = None
    input_type: Literal["query", "document"] | None = None
    truncation: bool | None = None
    output_dimension: ShortenedTo = None
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class VoyageRerankBody(InfinityRerankBody):
    """A query, and texts to score for it."""

    top_k: TopN | None = None
    truncation: bool | None = None


api = Blueprint("voyage", __name__, "Voyage", OpenAIError)


@api.post("/v1/embeddings", responses={200: ProtocolAnswer})
async def embeddings(body: VoyageBody) -> Response:
    """Embed texts: one vector for each, in order, in the type of numbers that is asked for."""
    options = await options_for(body.model, body.input_type, body.truncation, dimensions=body.output_dimension)
    reply = await call(Embed(as_list(body.input), options))
    assert reply.vectors is not None
    rows = formatted(reply.vectors, body.output_dtype or "float")
    return json_response(embedding_list(reply, body.encoding_format, rows), headers=cost_headers(reply))


@api.post("/v1/rerank", responses={200: ProtocolAnswer})
async def rerank(body: VoyageRerankBody) -> Response:
    """Score texts for a query, best first."""
    options = Options(truncate=body.truncation is not False)
    reply, found = await rank(body, options=options, raw_scores=body.raw_scores, top_n=body.top_k, as_objects=False)
    answer = {"object": "list", "data": found, "model": reply.model, "usage": usage(reply)}
    return json_response(answer, headers=cost_headers(reply))
