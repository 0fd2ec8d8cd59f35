"""Jina: POST /v1/embeddings and POST /v1/rerank."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from flask import Response
from pydantic import Field

from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations import Embed
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import answer_vectors, call
from shoal_api.protocols.model_routing import prompt_for, route_to_model
from shoal_api.protocols.openai import OpenAIError, embedding_list, usage
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
    input: Text | Annotated[list[Text | JinaText], Field(fail_fast=True)] = Field(
        description="One text, or several, each also as an object with a `text`"
    )
    model: Name | None = Field(None, description="A name of the served model; null: the served one")
    task: Task | None = Field(None, description="Kind of the texts: chooses the model's prompt for it, if there is one")
    dimensions: ShortenedTo = None
    embedding_type: Literal["float", "base64"] | None = Field(None, description="Lists of numbers, or base64 of floats")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="The same as embedding_type, in OpenAI's clients"
    )
    encoding_type: Literal["float"] | None = Field(None, description="Sent by LlamaIndex; has no effect")
    normalized: bool = Field(True, description="Scale vectors to length 1")
    truncate: bool | None = Field(None, description="Cut texts that are too long; null: true; false refuses them")
    late_chunking: Literal[False] | None = Field(None, description="Not supported: each text is embedded by itself")
    return_multivector: bool | None = Field(None, description="Return a multivector for each text; null: false")
    user: Ignored = None


class JinaRerankBody(RerankBody):
    """A query, and documents to score for it."""

    return_documents: bool = Field(True, description="Return the documents too")


class JinaError(OpenAIError):
    """The body of a response with an error."""

    statuses = UNSUPPORTED


api = Blueprint("jina", __name__, "Jina", JinaError)


@api.post("/v1/embeddings", responses={200: ProtocolVectors})
async def embeddings(body: JinaBody) -> Response:
    """Embed texts: one vector, or one multivector, for each, in order."""
    await route_to_model(body.model)
    options = Options(
        normalize=body.normalized,
        truncate=body.truncate is not False,
        prompt_name=await prompt_for(body.task),
        dimensions=body.dimensions,
    )
    given = [body.input] if isinstance(body.input, str) else body.input
    texts = [item if isinstance(item, str) else item.text for item in given]
    encoding = body.embedding_type or body.encoding_format
    if not body.return_multivector:
        return await answer_vectors(texts, options, lambda reply: embedding_list(reply, encoding))
    if encoding == "base64":
        raise InvalidRequest("the format is base64, but multivectors are lists of numbers: ask for float")
    reply = await call(Embed(texts, replace(options, output="multivector")))
    return json_response(_multivector_list(reply), headers=cost_headers(reply))


def _multivector_list(reply: Reply) -> dict[str, Any]:
    rows = [
        {"object": "embedding", "index": n, "embeddings": vectors} for n, vectors in enumerate(reply.multivectors or ())
    ]
    return {"id": reply.id, "object": "list", "data": rows, "model": reply.model, "usage": usage(reply)}


@api.post("/v1/rerank", responses={200: ProtocolAnswer})
async def rerank(body: JinaRerankBody) -> Response:
    """Score documents for a query, best first."""
    return ranking(*await rank(body))
