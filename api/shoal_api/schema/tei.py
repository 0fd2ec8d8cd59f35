"""The shapes of Text Embeddings Inference's requests and responses."""

from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal.jobs import Job
from shoal.operations import Decode, Embed, Rerank, Tokenize
from shoal.options import Options
from shoal_api.schema import headers
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, IdLists, Ids, Ignored, Name, Text, TextList, Texts
from shoal_api.schema.errors import ErrorShape
from shoal_api.schema.requests import TextsOrIds, TruncationDirection, as_list
from shoal_api.schema.responses import ANY_FORMAT, ErrorBody, described


class TeiTruncation(Body):
    """Options of how texts that are too long are read."""

    truncate: bool | None = Field(None, description="Cut texts that are too long; null: true; false refuses them")
    truncation_direction: TruncationDirection = Field("Right", description="End at which texts are cut")

    def text_options(self, **others: Any) -> Options:
        """Return these options and others, under Shoal's names."""
        side = self.truncation_direction.lower()
        return Options(truncate=self.truncate is not False, truncation_side=side, **others)


class TeiOptions(TeiTruncation):
    """Options of how the model reads texts."""

    prompt_name: Name | None = Field(None, description="Name of the model's prompt to put before each text")

    def text_options(self, **others: Any) -> Options:
        """Return these options and others, under Shoal's names."""
        return super().text_options(prompt_name=self.prompt_name, **others)


class TeiTokensBody(TeiOptions):
    """Texts whose token vectors are wanted."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": ["a text", "another text"]}})
    inputs: TextsOrIds = Field(description="One text or several; or token ids, if `SHOAL_TOKEN_IDS` allows them")
    normalize: Ignored = None

    def job(self, texts: list[str]) -> Job:
        """Return the job that embeds the texts of `inputs`."""
        return Embed(texts, self.text_options(output="tokens", normalize=False))


class TeiEmbedBody(TeiTokensBody):
    """Texts to embed."""

    normalize: bool = Field(True, description="Scale vectors to length 1")
    dimensions: Dimensions | None = Field(None, description="Keep this many numbers of each vector")
    encoding_format: Literal["float"] | None = Field(None, description="Lists of numbers")
    options: Ignored = None

    def job(self, texts: list[str]) -> Job:
        """Return the job that embeds the texts of `inputs`."""
        options = self.text_options(normalize=self.normalize, dimensions=self.dimensions)
        return Embed(texts, options)


class SimilarityInputs(Body):
    """A text, and those to compare it with."""

    source_sentence: Text
    sentences: TextList


class SimilarityBody(Body):
    """A comparison of texts."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"inputs": {"source_sentence": "a text", "sentences": ["another", "a third"]}}}
    )
    inputs: SimilarityInputs = Field(description="The texts")
    parameters: TeiOptions | None = Field(None, description="Options of how the model reads them")
    options: Ignored = None

    def job(self) -> Job:
        """Return the job that embeds the source sentence and then the others."""
        options = (self.parameters or TeiOptions.model_construct()).text_options()
        return Embed([self.inputs.source_sentence, *self.inputs.sentences], options)


class TeiRerankBody(TeiTruncation):
    """A query, and texts to score for it."""

    model_config = ConfigDict(json_schema_extra={"example": {"query": "a storm", "texts": ["rain", "market"]}})
    query: Text = Field(description="The text that the others are scored for")
    texts: TextList = Field(description="The texts")
    raw_scores: bool = Field(False, description="Answer the reranker's numbers as they are, not from 0 to 1")
    return_text: bool = Field(False, description="Answer the texts too")

    def job(self) -> Job:
        """Return the job that does it."""
        return Rerank(self.texts, self.text_options(), query=self.query, raw_scores=self.raw_scores)


class TokenizeBody(Body):
    """Texts to tokenize."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": ["a text", "another text"]}})
    inputs: Texts = Field(description="One text or several")
    add_special_tokens: bool = Field(True, description="Add special tokens, such as [CLS]")
    prompt_name: Name | None = Field(None, description="Name of the model's prompt to put before each text")

    def job(self) -> Job:
        """Return the job that does it."""
        options = Options(prompt_name=self.prompt_name)
        return Tokenize(as_list(self.inputs), options, special_tokens=self.add_special_tokens)


class DecodeBody(Body):
    """Ids of tokens to decode."""

    model_config = ConfigDict(json_schema_extra={"example": {"ids": [[101, 102]]}})
    ids: Ids | IdLists = Field(description="The ids of one text, or of several")
    skip_special_tokens: bool = Field(True, description="Leave special tokens out")

    def num_ids(self) -> int:
        """Return the number of ids of all texts."""
        return sum(len(ids) for ids in self._lists())

    def job(self) -> Job:
        """Return the job that does it; raises InvalidRequest for ids of one text beside those of several."""
        texts = [" ".join(map(str, ids)) for ids in self._lists()]
        return Decode(texts, special_tokens=not self.skip_special_tokens)

    def _lists(self) -> list[list[int]]:
        return [part for part in self.ids if isinstance(part, list)] or [cast(list[int], self.ids)]


class TeiPiece(BaseModel):
    """A token of a text, and its place there in characters; null for one that was added."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiPieces(RootModel[list[list[TeiPiece]]]):
    """The tokens of each text."""


class TeiTexts(RootModel[list[str]]):
    """The text of each list of ids."""


_VECTORS = described(**ANY_FORMAT | {"answer_headers": headers.VECTORS | headers.TEI})
_SCORES = described(answer_headers=headers.COST | headers.TEI)


class TeiVectors(RootModel[list[list[float]]]):
    """One vector for each text."""

    model_config = _VECTORS


class TeiTokenVectors(RootModel[list[list[list[float]]]]):
    """A list of vectors for each text, one for each token."""

    model_config = _VECTORS


class Similarities(RootModel[list[float]]):
    """The cosine of the source sentence and each other one."""

    model_config = _SCORES


class TeiRank(BaseModel):
    """The place of a text in the request, and its score."""

    index: int
    score: float
    text: str | None = Field(None, description="The text, if it is asked for")


class TeiRanks(RootModel[list[TeiRank]]):
    """The texts, best first."""

    model_config = _SCORES


class VectorsOrScores(RootModel[list[list[float]] | list[float] | list[TeiRank]]):
    """The vectors of texts, the similarities of sentences, or the scores of texts."""

    model_config = _VECTORS


class TeiError(ErrorShape):
    """The body of a response with an error."""

    error: str
    error_type: str = Field(description="One of Validation, Empty, Overloaded, Backend and Unhealthy")


class OwnOrTeiError(RootModel[ErrorBody | TeiError]):
    """The body of a response with an error: of the second shape to a body of Text Embeddings Inference's clients."""

    model_config = ErrorShape.model_config
