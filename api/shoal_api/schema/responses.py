"""The shapes of responses, for OpenAPI's description only. No response is checked against them."""

from typing import Any, Literal, cast

from flask_openapi3.models.data_type import DataType
from flask_openapi3.models.media_type import MediaType
from flask_openapi3.models.schema import Schema
from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal.contract.replies import FINGERPRINT_HEADER
from shoal_api.answers.vector_format import FORMATS


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


#: The headers with the cost of an answer.
COST_HEADERS = {
    "Server-Timing": _header("Milliseconds of `queue`, `tokenize`, `encode` and `search`"),
    "X-Tokens": _header("Tokens of all texts together", "integer"),
    "X-Truncated": _header("Texts that were cut", "integer"),
    "X-Cached": _header("Texts that were not computed, because the cache had their vectors", "integer"),
    FINGERPRINT_HEADER: _header("Fingerprint of the model of the answer"),
}

#: The headers of an answer with vectors.
VECTOR_HEADERS = COST_HEADERS | {
    "X-Dtype": _header("For formats other than JSON: the type of a number, such as float32"),
    "X-Shape": _header("For formats other than JSON: the numbers of rows and columns, such as 2,384"),
}

#: The headers of the answer to a submit.
SUBMITTED_HEADERS = {"Location": _header("Path of the job")}

#: The headers of an error.
ERROR_HEADERS = {
    "Retry-After": _header("With 429 and 503: seconds to wait before another attempt", "integer"),
    "WWW-Authenticate": _header("With 401: the way to send a key"),
}

#: The headers of every answer to a request whose key has a rate.
RATE_HEADERS = {
    "RateLimit-Policy": _header("The rate of the key"),
    "RateLimit": _header("Seconds to wait once the rate is exceeded"),
}


def described(*, example: Any = None, answer_headers: Any = None, **others: Any) -> ConfigDict:
    """Return the configuration of a shape with an example, and with the headers and other facts of its response."""
    extra = {"headers": answer_headers, **others}
    config: dict[str, Any] = {"openapi_extra": {name: value for name, value in extra.items() if value}}
    return cast(ConfigDict, config | ({} if example is None else {"json_schema_extra": {"example": example}}))


_BINARY = MediaType(schema=Schema(type=DataType.STRING, format="binary"))

ANY_FORMAT = {"content": dict.fromkeys(FORMATS, _BINARY), "answer_headers": VECTOR_HEADERS}


class DocumentedAnswer(RootModel[dict[str, Any]]):
    """An answer for operators. docs/http.md describes its fields."""


class ProtocolFacts(RootModel[Any]):
    """An answer in the shape of the protocol's own service."""


class ProtocolAnswer(ProtocolFacts):
    """An answer in the shape of the protocol's own service, with the cost of the job in headers."""

    model_config = described(answer_headers=COST_HEADERS)


class ProtocolVectors(ProtocolFacts):
    """An answer in the shape of the protocol's own service, or vectors in another format that `Accept` asks for."""

    model_config = described(**ANY_FORMAT)


class Outputs(BaseModel):
    """The outputs of each text: `embeddings`, with scales or chunks, or the outputs that a list in `output` names."""

    embeddings: list[list[float]] | list[list[list[float]]] | None = None
    scales: list[float] | list[list[float]] | None = Field(None, description="Scales of int8 vectors")
    chunks: list[list[dict[str, int]]] | None = Field(None, description="`start`, `stop` and `tokens` of each chunk")
    vector: list[list[float]] | None = None
    sparse: list[list[dict[str, float]]] | None = Field(None, description="`index` and `value` of each token")
    multivector: list[list[list[float]]] | None = None


class Hit(BaseModel):
    """A document that was found. It also has the other fields of the document."""

    model_config = ConfigDict(extra="allow")
    id: str
    score: float
    text: str | None = Field(None, description="Left out if the `fields` of the search do not name it")
    explain: dict[str, Any] | None = Field(None, description="The parts of the score, if they are asked for")


_HIT = {
    "id": "2",
    "score": 0.7662453651428223,
    "text": "Storms hitting western Europe now carry a fifth more rain than in 1970",
    "topic": "climate",
}


class AskedFacts(BaseModel):
    """The facts about each list of hits that a search may ask for."""

    cursors: list[str | None] | None = Field(None, description="For each list, the cursor of its next page, if any")
    totals: list[int] | None = Field(None, description="For each list, the number of documents that could be in it")
    facets: list[dict[str, Any]] | None = Field(None, description="For each list, the counts of the values of fields")


class SearchResults(AskedFacts):
    """One list of hits for each query, best first."""

    model_config = described(
        answer_headers=COST_HEADERS, example={"results": [[_HIT]], "index_version": "20261121T030000Z-5d41c7"}
    )
    results: list[list[Hit]]
    index_version: str = Field(description="Version of the index that was searched. All hits come from it")


class Scores(BaseModel):
    """The score of each text for the query, in the order of the texts."""

    model_config = described(answer_headers=COST_HEADERS, example={"scores": [0.9871, 0.0123]})
    scores: list[float]


class JobState(BaseModel):
    """A job or a long job, and its present status. Only a long job is ever deleted."""

    id: str
    status: Literal["queued", "running", "done", "failed", "cancelled", "expired", "deleted"]
    note: str | None = Field(None, description="Why a long job does not begin, if no runner is alive")


class Submitted(JobState):
    """A job or a long job that was submitted now, or before with the same idempotency key."""

    model_config = described(
        answer_headers=SUBMITTED_HEADERS, example={"id": "05994f8ba4d8bac6959289ef", "status": "queued"}
    )


class JobStatus(JobState):
    """A job, its status, and its timings once it is done. docs/http.md describes the further fields of a long job."""

    model_config = ConfigDict(extra="allow")
    timings: dict[str, float] | None = None


class JobResult(JobState, Outputs, AskedFacts):
    """The result of a job: `embeddings`, other outputs, `results` or `scores`, and its cost."""

    model_config = described(
        **ANY_FORMAT,
        example={
            "id": "8e726b305347c305c8f72f4a",
            "status": "done",
            "embeddings": [[-0.94, -0.32], [0.96, -0.26]],
            "tokens": [3, 3],
            "truncated": [False, False],
            "characters": [5, 4],
            "timings": {"queue_s": 0.0018, "tokenize_s": 0.0003, "encode_s": 0.0078, "search_s": 0.0},
            "cached": 0,
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "fingerprint": "3c9ab18ad9cd7ce5c34ef50b53f54a60",
        },
    )
    results: list[list[Hit]] | None = None
    index_version: str | None = Field(None, description="Version of the index that was searched")
    scores: list[float] | None = Field(None, description="The score of each text of a rerank")
    tokens: list[int] = Field(description="Tokens of each text")
    truncated: list[bool] = Field(description="True for each text that was cut")
    characters: list[int] = Field(description="Characters of each text that were read, from the side that was kept")
    timings: dict[str, float] = Field(description="The time of each step, in seconds")
    cached: int = Field(description="Texts whose vectors were not computed for this job")
    model: str
    fingerprint: str = Field(description="Fingerprint of the model of the answer")


class AnyJobResult(RootModel[JobResult | JobStatus]):
    """The result of a job, or a long job that is done."""

    model_config = described(**ANY_FORMAT)


class Embeddings(
    RootModel[list[list[float]] | list[list[list[float]]] | list[list[dict[str, float]]] | Outputs | JobResult]
):
    """One vector for each text, or with output `tokens` or `multivector` a list of vectors for each text.

    Vectors of type int8 come with scales, and vectors of chunks with the chunks' positions. If the request's `answer`
    is `result`, this is the result of a job.
    """

    model_config = described(
        **ANY_FORMAT,
        example=[[-0.3032372, 0.95291513], [-0.17424214, 0.9847028]],
    )


class Ready(BaseModel):
    """The status of a service that will answer requests."""

    status: Literal["ready"]
    workers: int


class Info(DocumentedAnswer):
    """The model, indexes, limits and workers of the service. docs/http.md describes its fields."""
