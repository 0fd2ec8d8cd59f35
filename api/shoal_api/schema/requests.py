"""The shapes that requests are checked against: bodies, paths and queries. The OpenAPI page is made from them."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from shoal.contract.jobs import MAX_DEADLINE_S, MAX_TEXT_NUMBER, Job, Lane
from shoal.contract.options import OPTION_DEFAULTS, Options, Output, Pooling, TruncationSide
from shoal.errors import InvalidRequest
from shoal.operations import Embed, Rerank, Search
from shoal.operations.search import MAX_K
from shoal_api.answers.number_type import NumberType
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import (
    ChunkOverlap,
    ChunkTokens,
    Dimensions,
    IdLists,
    Ids,
    Ignored,
    Name,
    Path,
    Text,
    TextList,
    Texts,
)
from shoal_api.schema.search_fields import SearchFields

#: Longest that a request for a job's result may wait, in seconds.
MAX_WAIT_S = 60

#: Text Embeddings Inference's words for the end at which texts are cut. The OpenAPI description leaves out those in
#: small letters: generators of clients make one name of both.
TruncationDirection = Annotated[
    Literal["Left", "Right", "left", "right"], WithJsonSchema({"enum": ["Left", "Right"], "type": "string"})
]


def _kind_of_input(value: Any) -> str | None:
    """Return the tag of the kind of `TextsOrIds` that a value is to be; the first item of a list decides."""
    if isinstance(value, str):
        return "a text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    if isinstance(first, list) and all(type(item) is int for item in first[:1]):
        return "lists of token ids"
    return "token ids" if type(first) is int else "several texts"


#: A text, several texts, the token ids of a text, or the token ids of several texts.
TextsOrIds = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[TextList, Tag("several texts")]
    | Annotated[Ids, Tag("token ids")]
    | Annotated[IdLists, Tag("lists of token ids")],
    Discriminator(_kind_of_input),
]


def _option(name: str, description: str) -> Any:
    """Return the field of an option, with the default that it has in `shoal.Options`."""
    return Field(OPTION_DEFAULTS[name], description=description)


_LANE: Any = Field(
    "interactive", description="Bulk jobs let interactive ones go first; a small share of them always runs"
)


class TruncationOptions(Body):
    """Options of how texts are cut that are too long for the model."""

    truncate: bool = _option("truncate", "Cut texts that are too long for the model; false refuses them")
    truncation_side: TruncationSide = _option("truncation_side", "End at which texts are cut")
    first_text: int = Field(
        0, ge=0, le=MAX_TEXT_NUMBER, description="Number of the first text in a longer list, for messages"
    )


class TextOptions(TruncationOptions):
    """Options of how the model reads texts."""

    pooling: Pooling | None = _option("pooling", "null: as the model says")
    prompt_name: Name | None = _option("prompt_name", "Name of the model's prompt to put before each text")


class EmbedOptions(TextOptions):
    """Options of how vectors are made."""

    normalize: bool = _option("normalize", "Scale vectors to length 1")
    output: Output = _option("output", "One vector for each text, for each token, or for each chunk")
    dimensions: Dimensions | None = _option("dimensions", "Keep this many numbers of each vector")
    chunk_tokens: ChunkTokens | None = _option(
        "chunk_tokens", "Cut no text off: cut each into chunks of at most so many tokens"
    )
    chunk_overlap: ChunkOverlap = _option("chunk_overlap", "Most tokens that two neighbours share")


class EmbedBody(EmbedOptions):
    """Texts to embed. Bodies of Text Embeddings Inference's clients are taken too."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": ["first text", "second text"], "dimensions": 2}})
    inputs: TextsOrIds = Field(description="One text or several; or token ids, if `SHOAL_TOKEN_IDS` allows them")
    truncate: bool | None = _option("truncate", "Cut texts that are too long for the model; false refuses them")  # type: ignore[assignment]
    truncation_direction: TruncationDirection | None = Field(
        None, description="Another name of truncation_side, which it overrides"
    )
    output_dtype: NumberType = Field("float32", description="Type of the numbers in the answer")
    answer: Literal["vectors", "result"] = Field(
        "vectors",
        description="The vectors alone, or the result of a job: what it cost, and how much of each text was read",
    )
    lane: Lane = _LANE
    options: Ignored = None

    def job(self, texts: list[str]) -> Job:
        """Return the job that embeds the texts of `inputs`; raises InvalidRequest for options at odds."""
        options = vars(self) | {"truncate": self.truncate is not False}
        if self.truncation_direction is not None:
            options["truncation_side"] = self.truncation_direction.lower()
        return Embed(texts, Options.from_map(options), first_text=self.first_text)


class SearchBody(TextOptions, SearchFields):
    """Queries to search an index for, or vectors, or documents that hits are to be like."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"queries": "europe climate change storm", "k": 1, "mode": "hybrid"}}
    )
    queries: Texts | None = Field(None, description="One query or several; needed unless there are `vectors` or `like`")
    k: int = Field(5, ge=1, le=MAX_K, description="Hits for each query, or groups of hits")
    index: Name = Field("default", description="Name of the index")
    lane: Lane = _LANE

    def job(self) -> Job:
        """Return the job that does it; raises InvalidRequest for options that do not go together."""
        return search_job(self, self.queries, self.k, self.index, self.first_text)


class ScoreBody(TruncationOptions):
    """Texts to score for a query."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"query": "storm in europe", "inputs": ["market falls", "a gale hits france"]}}
    )
    query: Text = Field(description="The text that the others are scored for")
    inputs: Texts = Field(description="One text or several")
    raw_scores: bool = Field(False, description="Answer the reranker's numbers as they are, not from 0 to 1")
    lane: Lane = _LANE

    def job(self) -> Job:
        """Return the job that does it; raises InvalidRequest for an empty query."""
        options = Options.from_map(vars(self))
        return Rerank(
            as_list(self.inputs), options, query=self.query, raw_scores=self.raw_scores, first_text=self.first_text
        )


#: The fields of a job beside `op` and `lane`, by its `op`: the texts first.
_FIELDS_OF = {
    "embed": ("inputs", *EmbedOptions.model_fields),
    "search": ("queries", "k", "index", *TextOptions.model_fields, *SearchFields.model_fields),
    "rerank": ("inputs", "query", "raw_scores", *TruncationOptions.model_fields),
}


class JobBody(EmbedOptions, SearchFields):
    """A job to submit: `inputs` to embed or to score for a query, or `queries` to search for."""

    model_config = ConfigDict(json_schema_extra={"example": {"op": "embed", "inputs": ["a text"], "lane": "bulk"}})
    op: Literal["embed", "search", "rerank"] = Field(description="What to do")
    inputs: Texts | None = Field(None, description="Texts of op embed and rerank")
    queries: Texts | None = Field(None, description="Queries of op search")
    k: int = Field(5, ge=1, le=MAX_K, description="Hits for each query, with op search")
    index: Name = Field("default", description="Name of the index, with op search")
    query: Text | None = Field(None, description="The text that the others are scored for, with op rerank")
    raw_scores: bool = Field(False, description="Answer the reranker's numbers as they are, with op rerank")
    lane: Lane = _LANE
    timeout_s: float | None = Field(
        None, ge=0, le=MAX_DEADLINE_S, allow_inf_nan=False, description="Seconds after which the job is not computed"
    )

    def job(self) -> Job:
        """Return the job; raises InvalidRequest if its texts are missing, or for a field that `op` does not take."""
        return replace(self._job(), timeout_s=self.timeout_s)

    def _job(self) -> Job:
        fields = _FIELDS_OF[self.op]
        for name in sorted(self.model_fields_set.difference(fields, ("op", "lane", "timeout_s"))):
            if getattr(self, name) != type(self).model_fields[name].default:  # generated clients send defaults
                raise InvalidRequest(f"{name} does not go with op {self.op}: leave it out")
        if self.op == "search":
            return search_job(self, self.queries, self.k, self.index, self.first_text)
        if self.inputs is None:
            raise InvalidRequest(f"inputs is missing: op {self.op} takes a string or a list of strings there")
        options = Options.from_map(vars(self))
        if self.op == "embed":
            return Embed(as_list(self.inputs), options, first_text=self.first_text)
        return Rerank(
            as_list(self.inputs), options, query=self.query, raw_scores=self.raw_scores, first_text=self.first_text
        )


def search_job(body: SearchFields, queries: Texts | None, k: int, index: str, first_text: int = 0) -> Job:
    """Return the job of a body that searches; raises InvalidRequest if there is nothing to search for."""
    search = body.search_options()
    if queries is None and not search.num_given:
        raise InvalidRequest(
            "queries is missing: a search takes a string or a list of strings there, or vectors, or like"
        )
    texts = [text for given in (queries, body.negative) if given is not None for text in as_list(given)]
    return Search(texts, Options.from_map(vars(body)), k=k, index=index, search=search, first_text=first_text)


class JobPath(BaseModel):
    """The path of a job."""

    id: Name = Field(description="Id that the submit answered")


class ResultQuery(BaseModel):
    """The time to wait for a result, and the type of its numbers."""

    wait: float = Field(0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Seconds to wait for the result")
    output_dtype: NumberType = Field("float32", description="Type of the numbers of vectors")


class DeadLetterPath(BaseModel):
    """The path of a dead letter."""

    id: Name = Field(description="Id that the list of dead letters has")


class DeadLettersQuery(BaseModel):
    """The number of dead letters to list."""

    limit: int = Field(100, ge=1, le=1_000, description="Most to list, the newest first")


class PageFilePath(BaseModel):
    """The name of a file of the page, with the folders that it is in."""

    file: Path


class ReadyQuery(BaseModel):
    """The condition to check beside a ready worker."""

    index: Name | None = Field(None, description="Name of an index that a ready worker must serve")


def as_list(texts: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [texts] if isinstance(texts, str) else texts
