"""The shapes of POST /predict with a `text`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.jobs import Job
from shoal.operations import Embed
from shoal.options import Options
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Texts
from shoal_api.schema.requests import as_list
from shoal_api.schema.responses import IN_ANY_FORMAT

#: What a vector is for.
Per = Literal["vector", "tokens"]


class PredictBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"text": "a text"}})
    text: Texts = Field(description="One text or several")

    def job(self, output: Per) -> Job:
        """Return the job that does it; vectors of tokens are as the model makes them."""
        return Embed(as_list(self.text), Options(output=output, normalize=output == "vector"))


class PredictQuery(BaseModel):
    """The vectors that are wanted."""

    output: Per = Field("vector", description="One vector for each text, or for each token")


class Predictions(BaseModel):
    """One vector for each text; or with `output=tokens`, for each text a list of one vector for each token."""

    model_config = IN_ANY_FORMAT
    embeddings: list[list[float]] | None = Field(None, description="Without `output=tokens`")
    ys: list[list[list[float]]] | None = Field(None, description="With `output=tokens`")
