"""The shapes of Voyage's requests and responses."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.jobs import Job
from shoal.operations import Embed, Rerank
from shoal.options import Options
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Name, Texts, TopN
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.infinity import InfinityRerankBody, RankedText
from shoal_api.schema.openai import Usage
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import WITH_COST


class VoyageBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text"], "input_type": "document"}})
    input: Texts = Field(description="One text or several")
    model: Name | None = Field(None, description="A name of the served model; null: the served one")
    input_type: Literal["query", "document"] | None = Field(
        None, description="Chooses the prompt of the model, if it has one for this"
    )
    truncation: bool | None = Field(None, description="Cut texts that are too long; null: true; false refuses them")
    output_dimension: Dimensions | None = Field(
        None, description="Keep this many numbers of each vector, and normalise again"
    )
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None, description="Type of the numbers, as Cohere's format of that name; null: float"
    )
    encoding_format: Literal["base64"] | None = Field(
        None, description="base64: the bytes of the numbers, floats of 32 bits in little-endian order"
    )

    def job(self, prompt_name: str | None) -> Job:
        """Return the job that does it, with the prompt of that name."""
        options = Options(
            truncate=self.truncation is not False, prompt_name=prompt_name, dimensions=self.output_dimension
        )
        return Embed(as_list(self.input), options)


class VoyageRerankBody(InfinityRerankBody):
    """A query, and texts to score for it."""

    top_k: TopN | None = Field(None, description="Answer this many of the best; null: all")
    truncation: bool | None = Field(None, description="Cut what is too long; null: true; false refuses it")

    def job(self) -> Job:
        """Return the job that does it."""
        options = Options(truncate=self.truncation is not False)
        return Rerank(self.documents, options, query=self.query, raw_scores=self.raw_scores)


class VoyageRanking(BaseModel):
    """The texts, best first."""

    model_config = WITH_COST
    object: Literal["list"]
    data: list[RankedText]
    model: str
    usage: Usage


class VoyageError(ErrorShape):
    """The body of a response with an error."""

    detail: str
