"""The shapes of requests and responses, from which the OpenAPI page is made.

Requests are checked against these; responses are only described by them.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal.errors import InvalidRequest
from shoal.jobs import MAX_K, OPTION_DEFAULTS, Job, Lane, Operation, Options, Output, Pooling, TruncationSide
from shoal.replies import Status

#: Longest that a request for a job's result may wait, in seconds.
MAX_WAIT_S = 60

Texts = str | Annotated[list[str], Field(fail_fast=True)]


def _option(name: str, description: str) -> Any:
    """Return the field of an option, with the default that it has in `shoal.Options`."""
    return Field(OPTION_DEFAULTS[name], description=description)


class _Body(BaseModel):
    """A JSON body: types are taken strictly, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class TextOptions(_Body):
    """How texts are read by the model."""

    pooling: Pooling | None = _option("pooling", "null: as the model says")
    prompt_name: str | None = _option("prompt_name", "Name of the model's prompt to put before each text")
    truncate: bool = _option("truncate", "Cut texts that are too long for the model; false refuses them")
    truncation_side: TruncationSide = _option("truncation_side", "Where texts are cut")


class EmbedOptions(TextOptions):
    """How vectors are made."""

    normalize: bool = _option("normalize", "Scale vectors to length 1")
    output: Output = _option("output", "One vector for each text, or for each token")
    dimensions: Annotated[int, Field(ge=1)] | None = _option("dimensions", "Keep the first so many numbers")


class EmbedBody(EmbedOptions):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": ["a text", "another text"]}})
    inputs: Texts = Field(description="One text or several")

    def job(self) -> Job:
        """The job that does it."""
        return Job("embed", _listed(self.inputs), Options.from_map(vars(self)))


class SearchBody(TextOptions):
    """Queries to search an index for."""

    model_config = ConfigDict(json_schema_extra={"example": {"queries": "europe climate change storm", "k": 3}})
    queries: Texts = Field(description="One query or several")
    k: int = Field(5, ge=1, le=MAX_K, description="Hits for each query")
    index: str = Field("default", description="Name of the index")

    def job(self) -> Job:
        """The job that does it."""
        return Job("search", _listed(self.queries), Options.from_map(vars(self)), k=self.k, index=self.index)


class JobBody(EmbedOptions):
    """A job to submit: `inputs` to embed, or `queries` to search for."""

    model_config = ConfigDict(json_schema_extra={"example": {"op": "embed", "inputs": ["a text"], "lane": "bulk"}})
    op: Operation = Field(description="What to do")
    inputs: Texts | None = Field(None, description="Texts of op embed")
    queries: Texts | None = Field(None, description="Queries of op search")
    k: int = Field(5, ge=1, le=MAX_K, description="Hits for each query, with op search")
    index: str = Field("default", description="Name of the index, with op search")
    lane: Lane = Field("interactive", description="Bulk gives way to interactive, and a little of it always runs")

    def job(self) -> Job:
        """The job.

        Raises InvalidRequest if the texts are not under the name that fits `op`.
        """
        name = "inputs" if self.op == "embed" else "queries"
        texts = getattr(self, name)
        if texts is None:
            raise InvalidRequest(f"{name} is missing: op {self.op} takes a string or a list of strings there")
        return Job(self.op, _listed(texts), Options.from_map(vars(self)), k=self.k, index=self.index)


class JobPath(BaseModel):
    """Where a job is found."""

    id: str = Field(description="Id that the submit answered")


class ResultQuery(BaseModel):
    """How long to wait for a result."""

    wait: float = Field(0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Seconds to wait for the result")


class LetterPath(BaseModel):
    """Where a dead letter is found."""

    id: str = Field(description="Id that the list of dead letters has")


class DeadQuery(BaseModel):
    """How many dead letters to list."""

    limit: int = Field(100, ge=1, le=1_000, description="The newest so many")


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="A stable word")
    message: str = Field(description="A sentence for a person")


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


#: What every route may answer besides.
ERRORS: dict[Any, Any] = {"4XX": ErrorBody, "5XX": ErrorBody}


class Embeddings(RootModel[list[list[float]] | list[list[list[float]]]]):
    """One vector for each text, or with output `tokens` a list of vectors for each text."""


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
    """Where the time of a job went, in seconds."""

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
    """The result of a job: `embeddings` or `results`, and what it cost."""

    embeddings: list[list[float]] | list[list[list[float]]] | None = None
    results: list[list[Hit]] | None = None
    tokens: list[int] = Field(description="Tokens of each text")
    truncated: list[bool] = Field(description="Whether each text was cut")
    timings: Timings
    cached: int = Field(description="Texts whose vectors were not computed for this job")
    model: str


class DeadLetterBrief(BaseModel):
    """A job that could not be answered; null where its bytes cannot be read."""

    id: str = Field(description="Id of the dead letter")
    time: float = Field(description="When it came, in Unix seconds")
    job_id: str | None
    op: str | None
    num_texts: int | None
    lane: str
    deliveries: int = Field(description="How often a worker had it")
    worker: str = Field(description="The worker that had it last")
    reason: str


class DeadLetterBody(DeadLetterBrief):
    """A dead letter with what was asked."""

    traceback: str = Field(description="Where the worker was, if it could still tell")
    asked: dict[str, Any] | None = Field(description="The texts and options of the job")
    size_bytes: int
    bytes: str | None = Field(description="The first 1,000 bytes in hex, of a job that cannot be read")


class DeadLetterList(BaseModel):
    """The newest dead letters, and how many there are in all."""

    count: int
    dead: list[DeadLetterBrief]


class Dropped(BaseModel):
    """It is gone."""

    id: str
    dropped: Literal[True]


class Health(BaseModel):
    """The process lives."""

    status: Literal["ok"]


class ReadyQuery(BaseModel):
    """What is to be ready."""

    index: str | None = Field(None, description="Name of an index that a worker is to serve")


class Ready(BaseModel):
    """Requests will be answered."""

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
    """What is being served, by whom, and within which limits; null where no worker is alive to say so."""

    version: str
    model: str | None
    digest: str | None
    dimension: int | None
    max_tokens: int | None
    engine: str | None
    precision: str | None
    prompts: list[str]
    indexes: dict[str, dict[str, Any]]
    limits: dict[str, float]
    workers: list[dict[str, Any]]
    workers_alive: int


class Links(BaseModel):
    """Where to go from here."""

    name: str
    version: str
    docs: str
    openapi: str
    info: str


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
