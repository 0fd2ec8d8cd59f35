"""Text Embeddings Inference: /embed, /embed_all, /similarity, /rerank, /tokenize, /decode, POST /, and others.

At the root, POST /embed, GET /info and GET /health are Shoal's own, which take and answer what its clients need.
"""

from typing import Any, Literal, NoReturn, cast

import numpy as np
from flask import Response
from pydantic import BaseModel, ConfigDict, Field, RootModel
from werkzeug.exceptions import BadRequest

from shoal.contract.jobs import Job
from shoal.contract.options import Options
from shoal.errors import Unsupported
from shoal.operations import Decode, Embed, Rerank, Tokenize
from shoal.operations.tokenize import check_tokenizer_request
from shoal_api import validation
from shoal_api.answers.response import cost_headers, rendered, with_tei_headers
from shoal_api.answers.vector_format import VectorFormat, arrays_of
from shoal_api.description import Blueprint
from shoal_api.enqueue import call
from shoal_api.ranking import ranked
from shoal_api.request import json_request
from shoal_api.routes import health as own_health
from shoal_api.routes import info as own_info
from shoal_api.schema import headers
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import Dimensions, IdLists, Ids, Ignored, Name, Text, TextList, Texts
from shoal_api.schema.errors import TeiError
from shoal_api.schema.requests import TextsOrIds, TruncationDirection, as_list
from shoal_api.schema.responses import ANY_FORMAT, Info, Ready, described
from shoal_api.token_ids import as_texts


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
        """Return the job that does it; raises InvalidRequest for ids of one text beside ids of several."""
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


api = Blueprint("tei", __name__, "Text Embeddings Inference", TeiError)

_ANY_SHAPE = [
    {"$ref": f"#/components/schemas/{shape.__name__}"} for shape in (TeiEmbedBody, SimilarityBody, TeiRerankBody)
]

#: The body of POST /, for the description.
_ANY_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"oneOf": _ANY_SHAPE}}}}
}


@api.post("/embed", responses={200: TeiVectors})
async def embed(body: TeiEmbedBody) -> Response:
    """Embed texts: one vector for each, in order."""
    return await _vectors(body)


@api.post("/embed_all", responses={200: TeiTokenVectors})
async def embed_all(body: TeiTokensBody) -> Response:
    """Embed the tokens of texts: one vector for each token, as the model makes it."""
    return await _vectors(body)


@api.post("/similarity", responses={200: Similarities})
async def similarity(body: SimilarityBody) -> Response:
    """Compare a text with others: the cosine of each, in order."""
    return await _similarities(body)


@api.post("/", responses={200: VectorsOrScores}, openapi_extensions=_ANY_BODY)
async def embed_or_score() -> Response:
    """Embed texts, compare them if `inputs` is an object, or score them if there is a `query`."""
    body = json_request().get_json()
    if "query" in body and "inputs" not in body:
        return await _ranks(validation.checked(TeiRerankBody, body))
    if isinstance(body.get("inputs"), dict):
        return await _similarities(validation.checked(SimilarityBody, body))
    return await _vectors(validation.checked(TeiEmbedBody, body))


@api.post("/tokenize", responses={200: TeiPieces})
async def tokenize(body: TokenizeBody) -> Response:
    """Tell the tokens of texts, which are not cut."""
    _refuse_empty("inputs", body.inputs)
    job = body.job()
    check_tokenizer_request("characters", sum(map(len, job.texts)))
    return rendered((await call(job, remedy="split the list")).pieces)


@api.post("/decode", responses={200: TeiTexts})
async def decode(body: DecodeBody) -> Response:
    """Tell the text that ids of tokens stand for."""
    _refuse_empty("ids", body.ids)
    check_tokenizer_request("ids", body.num_ids())
    return rendered((await call(body.job(), remedy="split the list")).decoded)


@api.post("/embed_sparse", responses={424: TeiError})
async def embed_sparse() -> NoReturn:
    """Refuse: the model makes dense vectors."""
    raise Unsupported("the served model makes no sparse vectors: use /embed")


@api.post("/predict", responses={424: TeiError})
async def predict() -> NoReturn:
    """Refuse: the model is no classifier."""
    raise Unsupported("the served model is no classifier: it makes vectors, by /embed")


@api.post("/rerank", responses={200: TeiRanks, 424: TeiError})
@api.post("/v1/rerank", operation_id="teiRerankV1", responses={200: TeiRanks, 424: TeiError})
@api.post("/v2/rerank", operation_id="teiRerankV2", responses={200: TeiRanks, 424: TeiError})
async def rerank(body: TeiRerankBody) -> Response:
    """Score texts for a query, best first."""
    return await _ranks(body)


@api.get("/info", responses={200: Info})
async def info() -> Response:
    """Tell the model, the workers and the limits of the service."""
    return rendered(await own_info.describe())


@api.get("/health", responses={200: Ready})
async def health() -> Response:
    """Tell that a ready worker will answer requests."""
    return rendered({"status": "ready", "workers": await own_health.num_ready()})


async def _vectors(body: TeiEmbedBody | TeiTokensBody) -> Response:
    _refuse_empty("inputs", body.inputs)
    wanted = VectorFormat.of_request()
    job = body.job(await as_texts("inputs", body.inputs))
    reply = await call(job, remedy="split the list")
    return with_tei_headers(wanted.answer(reply, arrays_of(reply)), reply, job)


async def _similarities(body: SimilarityBody) -> Response:
    _refuse_empty("inputs.sentences", body.inputs.sentences)
    job = body.job()
    reply = await call(job, remedy="split the list")
    assert reply.vectors is not None
    first, *others = reply.vectors
    return with_tei_headers(rendered(np.array(others) @ first, headers=cost_headers(reply)), reply, job)


async def _ranks(body: TeiRerankBody) -> Response:
    _refuse_empty("texts", body.texts)
    job = body.job()
    reply = await call(job, remedy="split the list")
    ranks = ranked(reply, "score", {"text": body.texts.__getitem__} if body.return_text else {})
    return with_tei_headers(rendered(ranks, headers=cost_headers(reply)), reply, job)


def _refuse_empty(name: str, items: Any) -> None:
    """Raise BadRequest for an empty list, which this protocol tells from other wrong values."""
    if items == []:
        raise BadRequest(f"{name} is an empty list: send at least one item")
