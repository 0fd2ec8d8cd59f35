"""Weaviate's containers: POST /vectors, POST /rerank, GET /meta, GET /.well-known/ready and /.well-known/live."""

from typing import Any, Literal

from flask import Response
from pydantic import BaseModel, ConfigDict, Field

from shoal.contract.jobs import Job
from shoal.contract.options import Options
from shoal.errors import InvalidRequest
from shoal.operations import Embed, Rerank
from shoal_api.answers.response import WholeResponse, cost_headers, rendered
from shoal_api.answers.vector_format import VectorFormat, arrays_of
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.model_names import prompt_for
from shoal_api.routes import health as own_health
from shoal_api.routes import info as own_info
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Ignored, Text, TextList
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.responses import IN_ANY_FORMAT, WITH_COST, Info


class WeaviateConfig(Body):
    """The way to embed."""

    task_type: Literal["", "query", "passage"] | None = Field(
        None, description="Chooses the prompt of the model, if it has one"
    )
    dimensions: Dimensions | None = Field(None, description="Keep this many numbers of each vector")
    pooling_strategy: Ignored = None


class WeaviateBody(Body):
    """A text to embed, or several."""

    model_config = ConfigDict(json_schema_extra={"example": {"text": "a text", "config": {"task_type": "passage"}}})
    text: Text | None = Field(None, description="The text")
    texts: TextList | None = Field(None, description="The texts, if there are several; not read beside `text`")
    config: WeaviateConfig | None = Field(None, description="The way to embed them")

    def job(self, prompt_name: str | None) -> Job:
        """Return the job that does it, with the prompt of that name; raises InvalidRequest without a text."""
        texts = self.texts if self.text is None else [self.text]
        if texts is None:
            raise InvalidRequest("text is missing: it is required, or texts in its place")
        dimensions = self.config.dimensions if self.config else None
        return Embed(texts, Options(prompt_name=prompt_name, dimensions=dimensions))


class WeaviateRerankBody(Body):
    """A query, and texts to score for it."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"query": "a storm", "property": "title", "documents": ["rain", "market"]}}
    )
    query: Text = Field(description="The text that the others are scored for")
    property: Text | None = Field(None, description="The only text, without `documents`; not read beside them")
    documents: TextList | None = Field(None, description="The texts")

    def job(self) -> Job:
        """Return the job that does it; raises InvalidRequest without a text."""
        texts = self.documents if self.property is None or self.documents is not None else [self.property]
        if texts is None:
            raise InvalidRequest("documents is missing: it is required, or one text as property in its place")
        return Rerank(texts, query=self.query)


class WeaviateScore(BaseModel):
    """A text and its score."""

    document: str
    score: float


class WeaviateScores(BaseModel):
    """`scores` of the documents, in their order; or without documents the `property` and its `score`."""

    model_config = WITH_COST
    query: str
    scores: list[WeaviateScore] | None = None
    property: str | None = None
    score: float | None = None


class WeaviateVectors(BaseModel):
    """`text` and its `vector`, or `texts` and their `vectors`, with the number of their dimensions under two names."""

    model_config = IN_ANY_FORMAT
    text: str | None = None
    vector: list[float] | None = None
    texts: list[str] | None = None
    vectors: list[list[float]] | None = None
    dims: int
    dim: int


class WeaviateError(ErrorShape):
    """The body of a response with an error."""

    error: str


api = Blueprint("weaviate", __name__, "Weaviate", WeaviateError)


@api.post("/vectors", responses={200: WeaviateVectors})
async def vectors(body: WeaviateBody) -> Response:
    """Embed the text of an object or a query, or several: vectors of length 1."""
    wanted = VectorFormat.of_request()
    task = body.config.task_type if body.config else None
    reply = await call(body.job(await prompt_for(task)), remedy="split the list")
    assert reply.vectors is not None
    rows, dims = reply.vectors, reply.vectors.shape[1]
    one = body.text is not None
    found = {"text": body.text, "vector": rows[0]} if one else {"texts": body.texts, "vectors": rows}
    return wanted.answer(reply, arrays_of(reply), in_json=lambda: {**found, "dims": dims, "dim": dims})


@api.post("/rerank", responses={200: WeaviateScores})
@api.post("/v1/rerank", responses={200: WeaviateScores})
@api.post("/v2/rerank", responses={200: WeaviateScores})
async def rerank(body: WeaviateRerankBody) -> Response:
    """Score texts for a query, in order."""
    reply = await call(body.job(), remedy="split the list")
    assert reply.scores is not None
    if body.documents is None:
        found: dict[str, Any] = {"property": body.property, "score": reply.scores[0]}
    else:
        pairs = zip(body.documents, reply.scores, strict=True)
        found = {"scores": [{"document": document, "score": score} for document, score in pairs]}
    return rendered({"query": body.query, **found}, headers=cost_headers(reply))


@api.get("/meta", responses={200: Info})
async def meta() -> Response:
    """Tell the model, the workers and the limits of the service."""
    return rendered(await own_info.describe())


@api.get("/.well-known/ready", responses={204: None})
async def ready() -> Response:
    """Tell that a ready worker will answer requests."""
    await own_health.num_ready()
    return WholeResponse(status=204)


@api.get("/.well-known/live", responses={204: None})
async def live() -> Response:
    """Tell that the process is alive."""
    return WholeResponse(status=204)
