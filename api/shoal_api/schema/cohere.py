"""The shapes of Cohere's requests and responses."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.errors import InvalidRequest
from shoal.excerpt import excerpt
from shoal.jobs import Job
from shoal.operations import Embed, Rerank
from shoal.options import Options
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, Ignored, Name, TextList
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.rerank import RankedDocument, RerankBody
from shoal_api.schema.responses import WITH_COST

#: Most names in `rank_fields`.
MAX_RANK_FIELDS = 100

#: Most formats in `embedding_types`, equal ones included.
MAX_FORMATS = 16

Format = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType = Literal["search_document", "search_query", "classification", "clustering"]


class CohereBody(Body):
    """Texts to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"texts": ["a text"], "input_type": "search_document"}})
    texts: TextList = Field(description="The texts")
    model: Name | None = Field(None, description="The served model, or an alias of it; null: the served one")
    input_type: InputType | None = Field(None, description="Chooses the prompt of the model, if it has one for this")
    embedding_types: Annotated[list[Format], Field(fail_fast=True, max_length=MAX_FORMATS)] | None = Field(
        None, description="Formats of the vectors"
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        "END", description="End at which texts are cut; null: END; NONE refuses"
    )
    output_dimension: Dimensions | None = Field(
        None, description="Keep this many numbers of each vector, and normalise again"
    )

    priority: Ignored = None

    def job(self, prompt_name: str | None) -> Job:
        """Return the job that does it, with the prompt of that name."""
        options = Options(
            truncate=self.truncate != "NONE",
            truncation_side="left" if self.truncate == "START" else "right",
            prompt_name=prompt_name,
            dimensions=self.output_dimension,
        )
        return Embed(self.texts, options)


class CohereRerankBody(RerankBody):
    """A query, and documents to score for it."""

    model_config = ConfigDict(json_schema_extra={"example": {"query": "a storm", "documents": ["rain", "market"]}})
    max_tokens_per_doc: Ignored = None
    priority: Ignored = None


class CohereFieldsBody(CohereRerankBody):
    """A query, and documents to score for it, which may have several fields."""

    rank_fields: Annotated[list[Name], Field(fail_fast=True, min_length=1, max_length=MAX_RANK_FIELDS)] | None = Field(
        None, description="Different names of the fields that are read of documents that are objects; null: `text`"
    )

    max_chunks_per_doc: Ignored = None

    def job(self) -> Job:
        """Return the job that does it.

        Raises InvalidRequest for a document without such a field, and for a field that is named twice, by which texts
        would have more characters than the body.
        """
        fields = self.rank_fields or ["text"]
        for n, name in enumerate(fields):
            if name in fields[:n]:
                raise InvalidRequest(f"rank_fields has {excerpt(name)} twice: name each field once")
        return Rerank(self._texts(fields), query=self.query)


class CohereAnswer(BaseModel):
    """The fields of both answers."""

    model_config = WITH_COST
    id: str
    texts: list[str]
    meta: dict[str, Any] = Field(description="The version of the protocol, and the tokens of all texts")


class CohereEmbeddings(CohereAnswer):
    """A list of vectors for each format, with one vector for each text."""

    response_type: Literal["embeddings_by_type"]
    embeddings: dict[Format, list[list[float]] | list[list[int]] | list[str]]


class CohereFloats(CohereAnswer):
    """One vector for each text; with `embedding_types`, as /v2/embed answers."""

    response_type: Literal["embeddings_floats", "embeddings_by_type"]
    embeddings: list[list[float]] | dict[Format, list[list[float]] | list[list[int]] | list[str]]


class CohereRanking(BaseModel):
    """The documents, best first."""

    model_config = WITH_COST
    id: str
    results: list[RankedDocument]
    meta: dict[str, Any] = Field(description="The version of the protocol, and the tokens of all pairs")


class CohereError(ErrorShape):
    """The body of a response with an error."""

    message: str
