"""The shapes of responses: the OpenAPI page is made from them, and nothing is checked against them."""

from typing import Any, Literal, cast

from flask_openapi3.models.data_type import DataType
from flask_openapi3.models.media_type import MediaType
from flask_openapi3.models.schema import Schema
from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal.replies import Status
from shoal_api.schema.errors import ErrorShape
from shoal_api.vector_format import FORMATS


class ErrorDetail(BaseModel):
    """An error, for a program and for a person."""

    code: str = Field(description="A stable word, to decide by")
    message: str = Field(description="A sentence for a person; may change")


class ErrorBody(ErrorShape):
    """The body of every response with an error."""

    error: ErrorDetail


#: The error responses that every route may have.
ERRORS: dict[Any, Any] = {"4XX": ErrorBody, "5XX": ErrorBody}


_BINARY = MediaType(schema=Schema(type=DataType.STRING, format="binary"))

#: Configuration of the shape of a response with vectors: `Accept` may ask for another format than JSON.
IN_ANY_FORMAT = cast(ConfigDict, {"openapi_extra": {"content": dict.fromkeys(FORMATS, _BINARY)}})


class ScaledEmbeddings(BaseModel):
    """Vectors of whole numbers, and the scale by which each is multiplied to restore it."""

    embeddings: list[list[int]] | list[list[list[int]]]
    scales: list[float] | list[list[float]]


class Embeddings(RootModel[list[list[float]] | list[list[list[float]]] | ScaledEmbeddings]):
    """One vector for each text, or with output `tokens` a list of vectors for each text; int8 ones have scales."""

    model_config = IN_ANY_FORMAT


class Hit(BaseModel):
    """A document found, with its other fields beside these."""

    model_config = ConfigDict(extra="allow")
    id: str
    score: float
    text: str


class SearchResults(BaseModel):
    """One list of hits for each query, best first."""

    results: list[list[Hit]]


class Timings(BaseModel):
    """The time of each step of a job, in seconds."""

    queue_s: float
    tokenize_s: float
    encode_s: float
    search_s: float


class Submitted(BaseModel):
    """A job and the status it now has."""

    id: str
    status: Status


class JobStatus(Submitted):
    """A job, its status, and its timings once it is done."""

    timings: Timings | dict[str, float]


class JobResult(Submitted):
    """The result of a job: `embeddings`, `results` or `scores`, and what it cost."""

    model_config = IN_ANY_FORMAT
    embeddings: list[list[float]] | list[list[list[float]]] | None = None
    scales: list[float] | list[list[float]] | None = Field(None, description="Scales of int8 vectors")
    results: list[list[Hit]] | None = None
    scores: list[float] | None = Field(None, description="The score of each text of a rerank")
    tokens: list[int] = Field(description="Tokens of each text")
    truncated: list[bool] = Field(description="True for each text that was cut")
    characters: list[int] = Field(description="Characters of each text that were read, from the side that was kept")
    timings: Timings
    cached: int = Field(description="Texts whose vectors were not computed for this job")
    model: str


class DeadLetterBrief(BaseModel):
    """A job that could not be answered; null where the beginning of its bytes does not tell."""

    id: str = Field(description="Id of the dead letter")
    time: float = Field(description="Time when the job was given up, in Unix seconds")
    job_id: str | None
    op: str | None
    num_texts: int | None
    lane: str
    deliveries: int = Field(description="Number of deliveries to a worker")
    worker: str = Field(description="Worker that it was delivered to last")
    reason: str


class DeadLetterBody(DeadLetterBrief):
    """A dead letter with its job."""

    traceback: str = Field(description="Traceback of the worker, if it could still write one")
    asked: dict[str, Any] | None = Field(description="The texts and options of the job")
    size_bytes: int
    bytes: str | None = Field(description="First 1,000 bytes in hex, of a job that cannot be read")


class DeadLetterList(BaseModel):
    """The newest dead letters, and how many there are in all."""

    count: int
    dead: list[DeadLetterBrief]


class Dropped(BaseModel):
    """A dead letter that was deleted."""

    id: str
    dropped: Literal[True]


class Health(BaseModel):
    """The status of a process that is alive."""

    status: Literal["ok"]


class Ready(BaseModel):
    """The status of a service that will answer requests."""

    status: Literal["ready"]
    workers: int


class IndexInfo(BaseModel):
    """An index that is being served."""

    name: str
    count: int
    version: str
    built_at: str
    model: str
    digest: str
    dimension: int


class Indexes(BaseModel):
    """All indexes that are being served."""

    indexes: list[IndexInfo]


class Info(BaseModel):
    """The model, indexes, limits and workers of the service; null where no ready worker tells."""

    version: str
    model: str | None
    digest: str | None
    dimension: int | None
    max_tokens: int | None
    engine: str | None
    precision: str | None
    prompts: list[str]
    reranker: str | None
    indexes: dict[str, dict[str, Any]]
    clock_offset_s: float = Field(description="Seconds by which the clock of this API's machine is ahead of Redis's")
    limits: dict[str, float]
    workers: list[dict[str, Any]]
    workers_alive: int
    model_id: str = Field(description="This and what follows: as Text Embeddings Inference tells it")
    served_model_name: str
    model_sha: None
    model_dtype: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int
    max_input_length: int | None
    max_batch_tokens: int
    max_batch_requests: None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: None
    sha: None
    docker_label: None


class Links(BaseModel):
    """Links to the pages that say more."""

    name: str
    version: str
    docs: str
    openapi: str
    info: str
