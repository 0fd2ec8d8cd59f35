"""Jina: POST /v1/embeddings and POST /v1/rerank."""

from dataclasses import replace
from typing import Annotated, Literal

from flask import Response
from pydantic import Field

from shoal.errors import InvalidRequest
from shoal.operations import Embed
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import answer_vectors, call
from shoal_api.protocols.model_routing import options_for
from shoal_api.protocols.openai import OpenAIError, embedding_list
from shoal_api.protocols.rerank import RerankBody, rank, ranking
from shoal_api.schema.body import Body, Ignored, Name, ShortenedTo, Text, example
from shoal_api.schema.error_statuses import UNSUPPORTED
from shoal_api.schema.responses import ProtocolAnswer, ProtocolVectors

Task = Literal["retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"]


class JinaText(Body):
    """A text as an object. Other services also accept images as objects."""

    text: Text


class JinaBody(Body):
    """Texts to embed."""

    model_config = example(input=["a text"], task="retrieval.passage")
    input: Text | Annotated[list[Text | JinaText], Field(fail_fast=True)]
    model: Name | None = None
    task: Task | None = None
    dimensions: ShortenedTo = None
    embedding_type: Literal["float", "base64"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    encoding_type: Literal["float"] | None = None  # from LlamaIndex
    normalized: bool = True
    truncate: bool | None = None
    late_chunking: Literal[False] | None = None
    return_multivector: bool | None = None
    user: Ignored = None


class JinaRerankBody(RerankBody):
    """A query, and documents to score for it."""

    return_documents: bool = True


class JinaError(OpenAIError):
    """The body of a response with an error."""

    statuses = UNSUPPORTED


api = Blueprint("jina", __name__, "Jina", JinaError)


@api.post("/v1/embeddings", responses={200: ProtocolVectors})
async def embeddings(body: JinaBody) -> Response:
    """Embed texts: one vector, or one multivector, for each, in order."""
    more = {"normalize": body.normalized, "dimensions": body.dimensions}
    options = await options_for(body.model, body.task, body.truncate, **more)
    given = [body.input] if isinstance(body.input, str) else body.input
    texts = [item if isinstance(item, str) else item.text for item in given]
    encoding = body.embedding_type or body.encoding_format
    if not body.return_multivector:
        return await answer_vectors(texts, options, lambda reply: embedding_list(reply, encoding))
    if encoding == "base64":
        raise InvalidRequest("the format is base64, but multivectors are lists of numbers: ask for float")
    reply = await call(Embed(texts, replace(options, output="multivector")))
    answer = embedding_list(reply, "float", reply.multivectors, "embeddings")
    return json_response(answer, headers=cost_headers(reply))


@api.post("/v1/rerank", responses={200: ProtocolAnswer})
async def rerank(body: JinaRerankBody) -> Response:
    """Score documents for a query, best first."""
    return ranking(*await rank(body))
