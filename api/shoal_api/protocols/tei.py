"""Text Embeddings Inference: POST /, /embed_all, /embed_sparse, /similarity, /rerank, /tokenize, /decode, /predict.

Shoal's own POST /embed, GET /info and GET /health serve the clients of Text Embeddings Inference too.
"""

from typing import Any, Literal, NoReturn, cast

import numpy as np
from flask import Response
from flask_openapi3.models.schema import Schema
from werkzeug.exceptions import BadRequest

from shoal.contract.options import Options
from shoal.errors import TooLarge, Unsupported
from shoal.operations import Decode, Embed, Rerank, Tokenize
from shoal_api.answers.response import cost_headers, json_response, with_tei_headers
from shoal_api.answers.vector_format import JSON, accepted_type, output_response, vectors_response
from shoal_api.blueprint import Blueprint
from shoal_api.enqueue import as_texts, call
from shoal_api.protocols.rerank import best_first
from shoal_api.request import json_request
from shoal_api.routes import service
from shoal_api.schema.body import Body, Dimensions, IdLists, Ids, Ignored, Name, Text, TextList, Texts, TopN, example
from shoal_api.schema.error_statuses import TeiError
from shoal_api.schema.requests import TextsOrIds, TruncationDirection, as_list
from shoal_api.schema.responses import ProtocolAnswer, ProtocolFacts, ProtocolVectors
from shoal_api.validation import checked

#: Largest number of characters to tokenize in a request. The answer needs some hundred bytes of memory for each.
MAX_TOKENIZED_CHARS = 2**20


class TeiTruncation(Body):
    """Options for texts that are too long."""

    truncate: bool | None = None
    truncation_direction: TruncationDirection = "Right"


class TeiOptions(TeiTruncation):
    """Options for how the model reads texts."""

    prompt_name: Name | None = None


class TeiTokensBody(TeiOptions):
    """Texts whose token vectors are wanted."""

    model_config = example(inputs=["a text", "another text"])
    inputs: TextsOrIds
    normalize: Ignored = None


class TeiEmbedBody(TeiTokensBody):
    """Texts to embed."""

    normalize: bool = True
    dimensions: Dimensions | None = None
    encoding_format: Literal["float"] | None = None
    options: Ignored = None


class SimilarityInputs(Body):
    """A text, and the texts to compare it with."""

    source_sentence: Text
    sentences: TextList


class SimilarityBody(Body):
    """A comparison of texts."""

    model_config = example(inputs={"source_sentence": "a text", "sentences": ["another", "a third"]})
    inputs: SimilarityInputs
    parameters: TeiOptions | None = None
    options: Ignored = None


class TeiRerankBody(TeiTruncation):
    """A query, and texts to score for it."""

    model_config = example(query="a storm", texts=["rain", "market"])
    query: Text
    texts: TextList
    raw_scores: bool = False
    return_text: bool = False
    top_n: TopN | None = None
    model: Ignored = None


class TokenizeBody(Body):
    """Texts to tokenize."""

    model_config = example(inputs=["a text", "another text"])
    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: Name | None = None


class DecodeBody(Body):
    """Ids of tokens to decode."""

    model_config = example(ids=[[101, 102]])
    ids: Ids | IdLists
    skip_special_tokens: bool = True


api = Blueprint("tei", __name__, "Text Embeddings Inference", TeiError)

api.components_schemas["TeiEmbedBody"] = Schema(**TeiEmbedBody.model_json_schema())  # no view names this body

_SHAPES = [{"$ref": f"#/components/schemas/{name}"} for name in ("TeiEmbedBody", "SimilarityBody", "TeiRerankBody")]

#: OpenAPI's description of the body of POST /.
_ANY_BODY: dict[str, Any] = {"required": True, "content": {"application/json": {"schema": {"anyOf": _SHAPES}}}}


@api.post("/embed_all", responses={200: ProtocolVectors})
async def embed_all(body: TeiTokensBody) -> Response:
    """Embed the tokens of texts: one vector for each token, not normalised."""
    return await _embedded(body, output="tokens", normalize=False)


@api.post("/similarity", responses={200: ProtocolAnswer})
async def similarity(body: SimilarityBody) -> Response:
    """Compare a text with other texts: return its cosine with each of them, in order."""
    _refuse_empty("inputs.sentences", body.inputs.sentences)
    parameters = body.parameters or TeiOptions.model_construct()
    job = Embed([body.inputs.source_sentence, *body.inputs.sentences], _options(parameters, parameters.prompt_name))
    reply = await call(job)
    assert reply.vectors is not None
    first, *others = reply.vectors
    return with_tei_headers(json_response(np.array(others) @ first, headers=cost_headers(reply)), reply, job)


@api.post("/", responses={200: ProtocolVectors}, openapi_extensions={"requestBody": _ANY_BODY})
async def embed_or_score() -> Response:
    """Embed texts, compare them if `inputs` is an object, or score them if there is a `query`."""
    body = json_request().get_json()
    if "query" in body and "inputs" not in body:
        answer: Response = await rerank(checked(TeiRerankBody, body))
    elif isinstance(body.get("inputs"), dict):
        answer = await similarity(checked(SimilarityBody, body))
    else:
        asked = checked(TeiEmbedBody, body)
        how = {"output": "sparse"} if await service.is_sparse() else {"normalize": asked.normalize}
        answer = await _embedded(asked, dimensions=asked.dimensions, **how)
    return answer


@api.post("/tokenize", responses={200: ProtocolFacts})
async def tokenize(body: TokenizeBody) -> Response:
    """Return the tokens of texts. No text is cut."""
    _refuse_empty("inputs", body.inputs)
    texts = as_list(body.inputs)
    if (num_chars := sum(map(len, texts))) > MAX_TOKENIZED_CHARS:
        raise TooLarge(f"the request has {num_chars:,} characters and may have {MAX_TOKENIZED_CHARS:,}: split the list")
    job = Tokenize(texts, Options(prompt_name=body.prompt_name), special_tokens=body.add_special_tokens)
    return json_response((await call(job)).pieces)


@api.post("/decode", responses={200: ProtocolFacts})
async def decode(body: DecodeBody) -> Response:
    """Return the texts of the given token ids."""
    _refuse_empty("ids", body.ids)
    lists = [part for part in body.ids if isinstance(part, list)] or [cast(list[int], body.ids)]
    job = Decode([" ".join(map(str, ids)) for ids in lists], special_tokens=not body.skip_special_tokens)
    return json_response((await call(job)).decoded)


@api.post("/embed_sparse", responses={200: ProtocolAnswer, 424: TeiError})
async def embed_sparse(body: TeiTokensBody) -> Response:
    """Embed texts by a model that weighs words: the ids of the tokens of each text, and their weights."""
    return await _embedded(body, output="sparse")


@api.post("/predict", responses={424: TeiError})
async def predict() -> NoReturn:
    """Refuse the request, because the model is not a classifier."""
    raise Unsupported("the served model is no classifier: it makes vectors, which /embed returns")


@api.post("/rerank", responses={200: ProtocolAnswer, 424: TeiError})
@api.post("/v1/rerank", operation_id="teiRerankV1", responses={200: ProtocolAnswer, 424: TeiError})
@api.post("/v2/rerank", operation_id="teiRerankV2", responses={200: ProtocolAnswer, 424: TeiError})
async def rerank(body: TeiRerankBody) -> Response:
    """Score texts for a query, best first."""
    _refuse_empty("texts", body.texts)
    job = Rerank(body.texts, _options(body), query=body.query, raw_scores=body.raw_scores)
    reply = await call(job)
    assert reply.scores is not None
    ranks = [{"index": n, "score": reply.scores[n]} for n in best_first(reply)[: body.top_n]]
    if body.return_text:
        ranks = [about | {"text": body.texts[about["index"]]} for about in ranks]
    return with_tei_headers(json_response(ranks, headers=cost_headers(reply)), reply, job)


async def _embedded(body: TeiTokensBody, **options: Any) -> Response:
    """Embed the texts of a body. `options` has further options with Shoal's names. Sparse vectors are always JSON."""
    _refuse_empty("inputs", body.inputs)
    is_sparse = options.get("output") == "sparse"
    media_type = JSON if is_sparse else accepted_type()
    job = Embed(await as_texts("inputs", body.inputs), _options(body, body.prompt_name, **options))
    reply = await call(job)
    answer = output_response(reply, media_type) if is_sparse else vectors_response(reply, media_type)
    return with_tei_headers(answer, reply, job)


def _options(body: TeiTruncation, prompt_name: str | None = None, **others: Any) -> Options:
    """Return the options of a body together with the `others`, which have Shoal's names."""
    side = body.truncation_direction.lower()
    return Options(truncate=body.truncate is not False, truncation_side=side, prompt_name=prompt_name, **others)


def _refuse_empty(name: str, items: Any) -> None:
    """Raise BadRequest for an empty list, because this protocol has an error of its own for that."""
    if items == []:
        raise BadRequest(f"{name} is an empty list: send at least one item")
