"""The shapes of Weaviate's requests to its container of transformers, and of the responses."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.errors import InvalidRequest
from shoal.jobs import Job
from shoal.operations import Embed, Rerank
from shoal.options import Options
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Ignored, Text, TextList
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.responses import IN_ANY_FORMAT, WITH_COST


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
