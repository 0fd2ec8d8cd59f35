"""The shapes of Ollama's requests and responses."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.checks import MAX_NUMBER
from shoal.errors import InvalidRequest
from shoal.jobs import Job
from shoal.operations import Embed
from shoal.options import Options
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Ignored, Name, Text, Texts
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import IN_ANY_FORMAT

#: The time to keep a model in memory: a duration such as "5m", or seconds.
KeepAlive = Name | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]


class OllamaEmbedBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "sentence-transformers/all-MiniLM-L6-v2", "input": ["a text"]}}
    )
    model: Name = Field(description="The served model, or an alias of it, also with `:latest` after it")
    input: Texts = Field(description="One text or several")
    truncate: bool | None = Field(None, description="Cut texts that are too long; null: true; false refuses them")
    dimensions: Dimensions | None = Field(
        None, description="Keep this many numbers of each vector; all if it has no more"
    )
    options: Ignored = None
    keep_alive: Ignored = None

    def job(self, dimension: int) -> Job:
        """Return the job that does it; `dimension` is that of the model, or 0 while it is not known."""
        wanted = None if self.dimensions and 0 < dimension <= self.dimensions else self.dimensions
        options = Options(truncate=self.truncate is not False, dimensions=wanted)
        return Embed(as_list(self.input), options)


class OllamaPromptBody(Body):
    """A text to embed."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "sentence-transformers/all-MiniLM-L6-v2", "prompt": "a text"}}
    )
    model: Name = Field(description="The served model, or an alias of it, also with `:latest` after it")
    prompt: Text = Field(description="The text")
    options: Ignored = None
    keep_alive: Ignored = None

    def job(self) -> Job:
        """Return the job that does it."""
        return Embed([self.prompt])


class OllamaModelBody(Body):
    """A model."""

    model_config = ConfigDict(json_schema_extra={"example": {"model": "sentence-transformers/all-MiniLM-L6-v2"}})
    model: Name | None = Field(None, description="The served model, or an alias of it, also with `:latest` after it")
    name: Name | None = Field(None, description="Older name of `model`, read where that is missing or empty")

    def asked(self) -> str:
        """Return the name of the model; raises InvalidRequest without one."""
        if name := self.model or self.name:
            return name
        raise InvalidRequest("model is missing: it is required, or name in its place")


class OllamaShowBody(OllamaModelBody):
    """A model to tell about."""

    verbose: Ignored = None
    system: Ignored = None
    template: Ignored = None
    options: Ignored = None


class OllamaPullBody(OllamaModelBody):
    """A model to pull, which is there already or nowhere."""

    stream: bool | None = Field(None, description="Answer lines of JSON; null: true; false answers one object")
    insecure: Ignored = None


class OllamaEmbeddings(BaseModel):
    """One vector for each text, in order, and what they cost."""

    model_config = IN_ANY_FORMAT
    model: str
    embeddings: list[list[float]]
    total_duration: int = Field(description="Time to answer, in nanoseconds")
    load_duration: int = Field(description="Always 0: the model is in memory")
    prompt_eval_count: int = Field(description="Tokens of all texts")


class OllamaEmbedding(BaseModel):
    """The vector of a text."""

    model_config = IN_ANY_FORMAT
    embedding: list[float]


class OllamaDetails(BaseModel):
    """The kind of a model; what is not known is empty."""

    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str = Field(description="The number format in which the model is computed")


class OllamaModel(BaseModel):
    """A model that is served."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(BaseModel):
    """The models that are served: one, unless workers are being replaced."""

    models: list[OllamaModel]


class OllamaShow(BaseModel):
    """The properties of a model."""

    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaStatus(BaseModel):
    """The outcome of a pull."""

    status: Literal["success"]


class OllamaVersion(BaseModel):
    """The version of Shoal."""

    version: str


class OllamaError(ErrorShape):
    """The body of a response with an error."""

    error: str
