"""The shapes of Infinity's requests and responses."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.jobs import Job, Options
from shoal_api.schema.openai import EmbeddingList, ModelBody
from shoal_api.schema.requests import Body, Texts, as_list


class InfinityBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text", "another text"]}})
    input: Texts = Field(description="One text or several")
    model: str | None = Field(None, description="The served model, or an alias of it; null: the served one")
    encoding_format: Literal["float", "base64"] = Field("float", description="Lists of numbers, or base64 of floats")
    dimensions: Annotated[int, Field(ge=0)] = Field(0, description="Keep this many numbers of each vector; 0: all")
    modality: Literal["text"] = Field("text", description="Kind of the input")
    user: str | None = Field(None, description="Ignored")

    def job(self) -> Job:
        """Return the job that does it."""
        return Job("embed", as_list(self.input), Options(dimensions=self.dimensions or None))


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
