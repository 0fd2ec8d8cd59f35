"""Jina: POST /v1/embeddings, and POST /v1/rerank, whose answer has what clients of Cohere's older route read too."""

from typing import Any, Literal

from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from shoal.contract.jobs import Job
from shoal.contract.options import Options
from shoal.operations import Embed
from shoal_api.answers.response import cost_headers, rendered
from shoal_api.answers.vector_format import VectorFormat, arrays_of
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, prompt_for
from shoal_api.protocols.cohere import rerank_meta
from shoal_api.protocols.openai import EmbeddingList, embedding_list
from shoal_api.ranking import rank, usage
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Ignored, Name, Texts
from shoal_api.schema.errors import UNSUPPORTED, ErrorShape
from shoal_api.schema.requests import as_list
from shoal_api.schema.rerank import RankedDocument, RerankBody
from shoal_api.schema.responses import WITH_COST

Task = Literal["retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"]


class JinaBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text"], "task": "retrieval.passage"}})
    input: Texts = Field(description="One text or several")
    model: Name | None = Field(None, description="A name of the served model; null: the served one")
    task: Task | None = Field(None, description="Chooses the prompt of the model, if it has one for this")
    dimensions: Dimensions | None = Field(
        None, description="Keep this many numbers of each vector, and normalise again"
    )
    embedding_type: Literal["float", "base64"] | None = Field(None, description="Lists of numbers, or base64 of floats")
    normalized: bool = Field(True, description="Scale vectors to length 1")
    truncate: bool | None = Field(None, description="Cut texts that are too long; null: true; false refuses them")
    late_chunking: Literal[False] | None = Field(None, description="Not supported: each text is embedded by itself")
    user: Ignored = None

    def job(self, prompt_name: str | None) -> Job:
        """Return the job that does it, with the prompt of that name."""
        options = Options(
            normalize=self.normalized,
            truncate=self.truncate is not False,
            prompt_name=prompt_name,
            dimensions=self.dimensions,
        )
        return Embed(as_list(self.input), options)


class JinaRerankBody(RerankBody):
    """A query, and documents to score for it."""

    model_config = ConfigDict(json_schema_extra={"example": {"query": "a storm", "documents": ["rain", "market"]}})
    return_documents: bool = Field(True, description="Answer the documents too")


class JinaRanking(BaseModel):
    """The documents, best first, with the fields of Cohere's older route too."""

    model_config = WITH_COST
    object: Literal["list"]
    id: str
    model: str
    results: list[RankedDocument]
    usage: dict[str, int] = Field(description="The tokens of the query with each document")
    meta: dict[str, Any]


class JinaError(ErrorShape):
    """The body of a response with an error."""

    detail: str

    statuses = UNSUPPORTED


api = Blueprint("jina", __name__, "Jina", JinaError)


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
