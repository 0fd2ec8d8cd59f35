"""The shapes of POST /json_embed/, /orjson_embed/ and /raw_embed/."""

from pydantic import BaseModel, ConfigDict, Field

from shoal.jobs import Job
from shoal.operations import Embed
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Name, Texts
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import IN_ANY_FORMAT


class NamedModelBody(Body):
    """Texts to embed with a model that is named."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["a text", "another text"]}})
    input: Texts = Field(description="One text or several")
    model_name: Name | None = Field(None, description="The served model, or an alias of it; null: the served one")

    def job(self) -> Job:
        """Return the job that does it."""
        return Embed(as_list(self.input))


class NamedModelVectors(BaseModel):
    """The model, and one vector for each text."""

    model_config = IN_ANY_FORMAT
    model_name: str
    embedding: list[list[float]]
