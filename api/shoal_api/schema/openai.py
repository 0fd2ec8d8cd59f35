"""The shapes of OpenAI's requests and responses: embeddings and models."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.jobs import Job
from shoal.operations import Embed
from shoal.options import Options
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Ignored, Name
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.requests import TextsOrIds
from shoal_api.schema.responses import IN_ANY_FORMAT


class EmbeddingsBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text", "another text"]}})
    input: TextsOrIds = Field(description="One text or several; or token ids, if `SHOAL_TOKEN_IDS` allows them")
    model: Name | None = Field(None, description="The served model, or an alias of it; null: the served one")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the numbers as little-endian 32-bit floats; null: lists of numbers"
    )
    dimensions: Dimensions | None = Field(
        None, description="Keep this many numbers of each vector, and normalise again"
    )
    user: Ignored = None

    def job(self, texts: list[str]) -> Job:
        """Return the job that embeds the texts of `input`."""
        return Embed(texts, Options(dimensions=self.dimensions))


class Embedding(BaseModel):
    """The vector of one text: numbers, or their bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """The tokens that the model read, those of a prompt and special ones included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """One vector for each text, in order."""

    model_config = IN_ANY_FORMAT
    object: Literal["list"]
    data: list[Embedding]
    model: str = Field(description="The model that made the vectors, whatever alias the request had")
    usage: Usage


class ModelPath(BaseModel):
    """The path of a model."""

    model: Name = Field(description="Name of the served model, or an alias of it")


class ModelBody(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Always 0: a model's age is not known")
    owned_by: str


class ModelList(BaseModel):
    """The models that are served: one, unless workers are being replaced."""

    object: Literal["list"]
    data: list[ModelBody]


class OpenAIErrorDetail(BaseModel):
    """An error, in OpenAI's shape."""

    message: str
    type: str = Field(description="The kind of the error, such as invalid_request_error or rate_limit_error")
    param: str | None = Field(description="Always null: the message names the field")
    code: str = Field(description="One of Shoal's error codes")


class OpenAIError(ErrorShape):
    """The body of a response with an error."""

    error: OpenAIErrorDetail
