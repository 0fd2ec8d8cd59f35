"""Infinity: POST /embeddings and GET /models, which are OpenAI's with more fields, and POST /rerank."""

import time
from typing import Annotated, Any, Literal

from flask import Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shoal.contract.jobs import LANES, Job
from shoal.contract.options import MAX_DIMENSIONS, Options
from shoal.operations import Embed, Rerank
from shoal_api.answers.response import cost_headers, rendered
from shoal_api.answers.vector_format import VectorFormat, arrays_of
from shoal_api.context import context
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import check_model, served_models, served_rerankers
from shoal_api.protocols.openai import EmbeddingList, ModelBody, OpenAIError, Usage, embedding_list
from shoal_api.ranking import rank, usage
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Ignored, Name, TextList, Texts
from shoal_api.schema.errors import BAD_REQUEST, UNSUPPORTED
from shoal_api.schema.requests import as_list
from shoal_api.schema.rerank import RerankBody
from shoal_api.schema.responses import WITH_COST

#: The model that Infinity's client names if it was told none.
_UNSPECIFIED = "default/not-specified"

Model = Annotated[Name | None, AfterValidator(lambda name: None if name == _UNSPECIFIED else name)]


class InfinityBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text", "another text"]}})
    input: Texts = Field(description="One text or several")
    model: Model = Field(None, description="The served model, or an alias of it; null: the served one")
    encoding_format: Literal["float", "base64"] = Field("float", description="Lists of numbers, or base64 of floats")
    dimensions: Annotated[int, Field(ge=0, le=MAX_DIMENSIONS)] = Field(
        0, description="Keep this many numbers of each vector; 0: all"
    )
    modality: Literal["text"] = Field("text", description="Kind of the input")
    user: Ignored = None

    def job(self) -> Job:
        """Return the job that does it."""
        return Embed(as_list(self.input), Options(dimensions=self.dimensions or None))


class InfinityRerankBody(RerankBody):
    """A query, and documents to score for it."""

    model_config = ConfigDict(json_schema_extra={"example": {"query": "a storm", "documents": ["rain", "market"]}})
    documents: TextList = Field(description="The texts")  # type: ignore[assignment]
    model: Model = Field(None, description="The served reranker, or an alias of it; null: the served one")
    raw_scores: bool = Field(False, description="Answer the reranker's numbers as they are")

    def job(self) -> Job:
        """Return the job that does it."""
        return Rerank(self.documents, query=self.query, raw_scores=self.raw_scores)

    def document(self, number: int) -> str:
        """Return the document of that number as it is answered: a text."""
        return self.documents[number]


class RankedText(BaseModel):
    """The place of a text in the request, and its score."""

    index: int
    relevance_score: float
    document: str | None = Field(None, description="The text, if it is asked for")


class InfinityRanking(BaseModel):
    """The texts, best first."""

    model_config = WITH_COST
    object: Literal["rerank"]
    results: list[RankedText]
    model: str
    usage: Usage
    id: str
    created: int


class InfinityEmbeddings(EmbeddingList):
    """One vector for each text, in order."""

    id: str
    created: int


class LaneStats(BaseModel):
    """The load of the lanes."""

    queue_fraction: float = Field(description="Part of the lanes' limit of texts that is used")
    queue_absolute: int = Field(description="Texts that wait or are being embedded")
    results_pending: int = Field(description="The same")
    batch_size: int = Field(description="Most texts that a worker takes for a pass")


class InfinityModel(ModelBody):
    """A model that is served."""

    stats: LaneStats
    backend: str
    capabilities: list[str]


class InfinityModels(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[InfinityModel]


class InfinityError(OpenAIError):
    """The body of a response with an error."""

    statuses = BAD_REQUEST | UNSUPPORTED


api = Blueprint("infinity", __name__, "Infinity", InfinityError)


@api.post("/embeddings", responses={200: InfinityEmbeddings})
async def embeddings(body: InfinityBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    await check_model(body.model)
    wanted = VectorFormat.of_request()
    reply = await call(body.job(), remedy="split the list")
    about = {"id": f"infinity-{reply.id}", "created": int(time.time())}
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: embedding_list(reply, body.encoding_format) | about)


@api.post("/rerank", responses={200: InfinityRanking})
async def rerank(body: InfinityRerankBody) -> Response:
    """Score texts for a query, best first."""
    reply, found = await rank(body)
    answer = {"object": "rerank", "results": found, "model": reply.model, "usage": usage(reply)}
    about = {"id": f"infinity-{reply.id}", "created": int(time.time())}
    return rendered(answer | about, headers=cost_headers(reply))


@api.get("/models", responses={200: InfinityModels})
async def models() -> Response:
    """List the model and the reranker that are served, with the load of the lanes."""
    about = {"object": "model", "owned_by": "infinity", "created": 0, "backend": "shoal", "stats": await _load()}
    capabilities = [(name, "embed") for name in await served_models()]
    capabilities += [(name, "rerank") for name in await served_rerankers()]
    data = [{"id": name, **about, "capabilities": [capability]} for name, capability in capabilities]
    return rendered({"object": "list", "data": data})


async def _load() -> dict[str, Any]:
    """Return the load of all lanes under Infinity's names."""
    settings, loads = context().settings, (await context().client.queue.loads()).values()
    num_texts = sum(load.num_texts for load in loads)
    return {
        "queue_fraction": num_texts / (settings.max_backlog_texts * len(LANES)),
        "queue_absolute": num_texts,
        "results_pending": num_texts,
        "batch_size": settings.max_batch_texts,
    }
