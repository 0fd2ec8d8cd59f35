"""The bodies, paths and queries of requests, and the jobs that they ask for."""

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Discriminator, Field, Tag, WithJsonSchema

from shoal.contract.jobs import MAX_DEADLINE_S, MAX_TEXT_NUMBER, Job, Lane
from shoal.contract.options import (
    LISTED_OUTPUTS,
    OPTION_DEFAULTS,
    ListedOutput,
    Options,
    Output,
    Pooling,
    TruncationSide,
)
from shoal.errors import InvalidRequest
from shoal.operations import Embed, Rerank, Search
from shoal.operations.search import MAX_K
from shoal.operations.search_options import (
    MAX_GROUP_SIZE,
    MAX_TOP_N,
    SEARCH_DEFAULTS,
    SEARCH_NAMES,
    Mode,
    SearchOptions,
)
from shoal_api.answers.vector_format import NumberType
from shoal_api.schema.body import (
    Body,
    ChunkOverlap,
    ChunkTokens,
    Dimensions,
    IdLists,
    Ids,
    Ignored,
    Name,
    Text,
    TextList,
    Texts,
    example,
)

#: Longest time for which a request for a job's result may wait, in seconds.
MAX_WAIT_S = 60

#: Text Embeddings Inference's words for the end at which texts are cut. OpenAPI's description leaves out the lower-case
#: words, because client generators would give both spellings the same name.
TruncationDirection = Annotated[
    Literal["Left", "Right", "left", "right"], WithJsonSchema({"enum": ["Left", "Right"], "type": "string"})
]


def _kind_of_input(value: Any) -> str | None:
    """Return the tag of the alternative in `TextsOrIds` that fits a value. The first item of a list decides."""
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


_DEFAULTS = OPTION_DEFAULTS | SEARCH_DEFAULTS


def _option(name: str, description: str) -> Any:
    """Return the field of an option, with its default from `shoal.Options` or `shoal.SearchOptions`."""
    return Field(_DEFAULTS[name], description=description)


_LANE: Any = Field("interactive", description="Interactive jobs run first, but a small share of bulk jobs always runs")


class TruncationOptions(Body):
    """Options for texts that are too long for the model."""

    truncate: bool = _option("truncate", "Cut texts that are too long for the model; false refuses them")
    truncation_side: TruncationSide = _option("truncation_side", "End at which texts are cut")
    first_text: int = Field(
        0, ge=0, le=MAX_TEXT_NUMBER, description="Number of the first text in a longer list, for messages"
    )


class TextOptions(TruncationOptions):
    """Options for how the model reads texts."""

    pooling: Pooling | None = _option("pooling", "null: the pooling that the model names")
    prompt_name: Name | None = _option("prompt_name", "Name of the model's prompt to put before each text")


#: Several outputs at once.
Outputs = Annotated[list[ListedOutput], Field(fail_fast=True, max_length=len(LISTED_OUTPUTS))]


class EmbedOptions(TextOptions):
    """Options for how vectors are made."""

    normalize: bool = _option("normalize", "Scale vectors to length 1")
    output: Output | Outputs = _option("output", "Output for each text; a list asks for several outputs")
    dimensions: Dimensions | None = _option("dimensions", "Keep this many numbers of each vector")
    chunk_tokens: ChunkTokens | None = _option(
        "chunk_tokens", "Read all of each text: cut it into chunks of at most this many tokens"
    )
    chunk_overlap: ChunkOverlap = _option("chunk_overlap", "Maximum number of tokens that neighbouring chunks share")


_Item = TypeVar("_Item")

#: A list whose check stops at the first error. `SearchOptions` has the bounds of its items, for clients of Redis too.
_List = Annotated[list[_Item], Field(fail_fast=True)]


class SearchFields(Body):
    """Options for how an index is searched."""

    mode: Mode | None = _option(
        "mode", "Rank by meaning, by words, or by both; null: by meaning, or by words in an index of words alone"
    )
    alpha: Annotated[float, Field(ge=0, le=1)] | None = _option("alpha", "Share of the meaning in a hybrid search")
    filter: dict[str, Any] | None = _option("filter", "Condition on fields that each hit fulfils")
    sort: _List[dict[str, Any]] | None = _option("sort", "Fields by which hits are ordered instead of by score")
    boost: _List[dict[str, Any]] | None = _option("boost", "Fields whose values raise or lower the score")
    group_by: str | None = _option("group_by", "Field whose equal values make a group; empty: no groups")
    group_size: Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE)] = _option("group_size", "Most hits in a group")
    facets: _List[str] | None = _option("facets", "Fields whose values are counted")
    facets_top_n: Annotated[int, Field(ge=1, le=MAX_TOP_N)] | None = _option(
        "facets_top_n", "Count the values of this many best documents; null: of all documents that pass the filter"
    )
    fields: _List[str] | None = _option("fields", "Fields that hits have besides id and score; null: all")
    snippet: dict[str, Any] | None = _option("snippet", "Show the best passage of each hit")
    cursor: str | None = _option("cursor", "Page to return: empty for the first page, then the last cursor")
    min_score: float | None = _option("min_score", "Lowest score of a hit")
    explain: bool = _option("explain", "Show the parts of each hit's score")
    like: _List[str] | None = _option("like", "Ids of documents that hits should be like")
    vectors: _List[_List[float]] | None = _option("vectors", "Vectors to search for, as the model makes them")
    negative: Texts | None = Field(None, description="Texts that hits should not be like")
    fuse: bool = _option("fuse", "Return one list of hits for all queries together")
    rerank: dict[str, Any] | None = _option("rerank", "Let the reranker order the best hits")
    diversity: Annotated[float, Field(ge=0, le=1)] | None = _option("diversity", "How much hits should differ")


class EmbedBody(EmbedOptions):
    """Texts to embed. Bodies of clients of Text Embeddings Inference are accepted too."""

    model_config = example(inputs=["first text", "second text"], dimensions=2)
    inputs: TextsOrIds = Field(description="One text or several; or token ids, if `SHOAL_TOKEN_IDS` allows them")
    truncate: bool | None = _option("truncate", "Cut texts that are too long for the model; false refuses them")  # type: ignore[assignment]
    truncation_direction: TruncationDirection | None = Field(
        None, description="Another name of truncation_side, which it overrides"
    )
    output_dtype: NumberType = Field("float32", description="Type of the numbers in the answer")
    answer: Literal["vectors", "result"] = Field(
        "vectors",
        description="The vectors alone, or the result of a job: with its cost, and how much of each text was read",
    )
    lane: Lane = _LANE
    options: Ignored = None


class SearchBody(TextOptions, SearchFields):
    """A search of an index: by queries, by vectors, or by documents that hits should resemble."""

    model_config = example(queries="europe climate change storm", k=1, mode="hybrid")
    queries: Texts | None = Field(None, description="One query or several; needed unless there are `vectors` or `like`")
    k: int = Field(5, ge=1, le=MAX_K, description="Hits for each query, or groups of hits")
    index: Name = Field("default", description="Name of the index")
    lane: Lane = _LANE


class ScoreBody(TruncationOptions):
    """Texts to score for a query."""

    model_config = example(query="storm in europe", inputs=["market falls", "a gale hits france"])
    query: Text = Field(description="Text for which the others are scored")
    inputs: Texts = Field(description="One text or several")
    raw_scores: bool = Field(False, description="Return the reranker's scores unchanged, not from 0 to 1")
    lane: Lane = _LANE


#: For each `op`, the fields that a job may have besides `op`, `lane` and `timeout_s`.
_FIELDS_OF = {
    "embed": ("inputs", *EmbedOptions.model_fields),
    "search": ("queries", "k", "index", *TextOptions.model_fields, *SearchFields.model_fields),
    "rerank": ("inputs", "query", "raw_scores", *TruncationOptions.model_fields),
}


class JobBody(EmbedOptions, SearchFields):
    """A job to submit: `inputs` to embed or to score for a query, or `queries` to search for."""

    model_config = example(op="embed", inputs=["a text"], lane="bulk")
    op: Literal["embed", "search", "rerank"] = Field(description="The operation")
    inputs: Texts | None = Field(None, description="Texts, with op embed or rerank")
    queries: Texts | None = Field(None, description="Queries, with op search")
    k: int = Field(5, ge=1, le=MAX_K, description="Hits for each query, with op search")
    index: Name = Field("default", description="Name of the index, with op search")
    query: Text | None = Field(None, description="Text for which the others are scored, with op rerank")
    raw_scores: bool = Field(False, description="Return the reranker's scores unchanged, with op rerank")
    lane: Lane = _LANE
    timeout_s: float | None = Field(
        None, ge=0, le=MAX_DEADLINE_S, allow_inf_nan=False, description="Seconds after which a waiting job expires"
    )


def embed_job(body: EmbedBody | JobBody, texts: list[str]) -> Embed:
    """Return the job that embeds the texts of a body. Raises InvalidRequest for conflicting options."""
    options = vars(body) | {"truncate": body.truncate is not False}
    if isinstance(body, EmbedBody) and body.truncation_direction is not None:
        options["truncation_side"] = body.truncation_direction.lower()
    return Embed(texts, Options.from_map(options), first_text=body.first_text)


def search_job(body: SearchBody | JobBody) -> Search:
    """Return the search job of a body. Raises InvalidRequest if there is nothing to search for."""
    given = {name: getattr(body, name) for name in body.model_fields_set.intersection(SEARCH_NAMES)}
    negative = [] if body.negative is None else as_list(body.negative)
    if body.negative is not None:
        given["num_negative"] = len(negative)
    search = SearchOptions.from_map(given)
    if body.queries is None and not search.num_given:
        raise InvalidRequest(
            "queries is missing: a search takes a string or a list of strings there, or vectors, or like"
        )
    texts = [*([] if body.queries is None else as_list(body.queries)), *negative]
    options = Options.from_map(vars(body))
    return Search(texts, options, k=body.k, index=body.index, search=search, first_text=body.first_text)


def rerank_job(body: ScoreBody | JobBody, texts: Texts) -> Rerank:
    """Return the job that scores texts for the query of a body. Raises InvalidRequest for an empty query."""
    options = Options.from_map(vars(body))
    return Rerank(as_list(texts), options, query=body.query, raw_scores=body.raw_scores, first_text=body.first_text)


def submitted_job(body: JobBody) -> Job:
    """Return the job of a body. Raises InvalidRequest for missing texts, or a field that its `op` does not have."""
    fields = _FIELDS_OF[body.op]
    for name in sorted(body.model_fields_set.difference(fields, ("op", "lane", "timeout_s"))):
        if getattr(body, name) != JobBody.model_fields[name].default:  # generated clients also send defaults
            raise InvalidRequest(f"{name} does not go with op {body.op}: leave it out")
    if body.op == "search":
        job: Job = search_job(body)
    elif body.inputs is None:
        raise InvalidRequest(f"inputs is missing: op {body.op} takes a string or a list of strings there")
    elif body.op == "embed":
        job = embed_job(body, as_list(body.inputs))
    else:
        job = rerank_job(body, body.inputs)
    return replace(job, timeout_s=body.timeout_s)


def as_list(texts: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [texts] if isinstance(texts, str) else texts


class JobPath(BaseModel):
    """The part of a route that names a job or a dead letter."""

    id: Name = Field(description="Id that the submit returned, or that the list of dead letters has")


class ListQuery(BaseModel):
    """The number of long jobs, or of dead letters, to list."""

    limit: int = Field(100, ge=1, le=1_000, description="Maximum number to list, the newest first")


class ResultQuery(BaseModel):
    """The time to wait for a result, and the type of its numbers."""

    wait: float = Field(0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Seconds to wait for the result")
    output_dtype: NumberType = Field("float32", description="Type of the numbers of vectors")


class ReadyQuery(BaseModel):
    """The index that has to be served."""

    index: Name | None = Field(None, description="Name of an index that a ready worker must serve")
