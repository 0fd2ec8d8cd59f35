"""Smaller services: POST /similar, /predict, /json_embed/, /orjson_embed/, /raw_embed/, and /pooling of vLLM."""

import time
from typing import Literal

import numpy as np
from flask import Response
from pydantic import BaseModel, Field

from shoal.contract.options import Options
from shoal.errors import InvalidRequest
from shoal.operations import Embed, Search
from shoal.operations.search import MAX_K
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.answers.vector_format import RAW, base64_rows, vectors_response
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.enqueue import answer_vectors, as_texts, call
from shoal_api.protocols.model_routing import route_to_model
from shoal_api.protocols.openai import OpenAIError, usage
from shoal_api.schema.body import Body, Ignored, Name, Text, Texts, TruncateTo, example
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.schema.requests import TextsOrIds, as_list
from shoal_api.schema.responses import VECTOR_HEADERS, ProtocolAnswer, ProtocolVectors


class SimilarBody(Body):
    """A text for which similar items in the default index are found."""

    model_config = example(text="self driving cars navigation", num_results=3)
    text: Text | None = Field(None, description="The text")
    keywords: Text | None = Field(None, description="Another name of `text`; ignored if there is a `text`")
    num_results: int = Field(5, ge=1, le=MAX_K, description="Items to find")


class PredictBody(Body):
    """Texts to embed."""

    model_config = example(text="a text")
    text: Texts = Field(description="One text or several")


class PredictQuery(BaseModel):
    """The kind of vectors to return."""

    output: Literal["vector", "tokens"] = Field("vector", description="One vector for each text, or for each token")


class NamedModelBody(Body):
    """Texts to embed, and the name of the model."""

    model_config = example(input=["a text", "another text"])
    input: Texts = Field(description="One text or several")
    model_name: Name | None = Field(None, description="The served model, or an alias of it; null: the served one")


class PoolingBody(Body):
    """Texts to embed."""

    model_config = example(input=["a text"], task="token_embed")
    input: TextsOrIds = Field(description="One text or several; or token ids, if `SHOAL_TOKEN_IDS` allows them")
    model: Name | None = Field(None, description="The served model, or an alias of it; null: the served one")
    task: Literal["embed", "token_embed"] | None = Field(
        None, description="embed: a vector of each text; token_embed or null: a vector of each token"
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the numbers as little-endian 32-bit floats; null: lists of numbers"
    )
    use_activation: bool | None = Field(None, description="Give each vector the length 1; null: true")
    truncate_prompt_tokens: TruncateTo = None
    user: Ignored = None


similar_api = Blueprint("similar", __name__, "Similar items", ErrorBody)
predict_api = Blueprint("predict", __name__, "Predictions", ErrorBody)
wire_formats_api = Blueprint("wire_formats", __name__, "Wire formats", ErrorBody)
vllm_api = Blueprint("vllm", __name__, "vLLM", OpenAIError)

_BYTES = {"content": {RAW: {"schema": {"type": "string", "format": "binary"}}}, "headers": VECTOR_HEADERS}


@similar_api.post("/similar", responses={200: ProtocolAnswer})
async def similar(body: SimilarBody) -> Response:
    """Find the items of the default index that are most similar to a text, best first."""
    query = body.keywords if body.text is None else body.text
    if query is None:
        raise InvalidRequest("text is missing: send text or keywords")
    reply = await call(Search([query], k=body.num_results), remedy="shorten the text")
    assert reply.hits is not None
    lines = []
    for hit in reply.hits[0]:
        score = np.format_float_positional(np.float32(hit["score"]), trim="0")  # the fewest digits of a 32-bit float
        lines.append(f"Item:{hit['text']} (index: {hit['id']} score:{score})")
    return json_response({"text": lines}, headers=cost_headers(reply))


@predict_api.post("/predict", responses={200: ProtocolVectors})
async def predict(query: PredictQuery, body: PredictBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order; with output `tokens` one for each token."""
    options = Options(output=query.output, normalize=query.output == "vector")
    if query.output == "tokens":  # vectors of tokens are not normalised
        return await answer_vectors(body.text, options, lambda reply: {"ys": reply.rows_by_text()})
    return await answer_vectors(body.text, options, lambda reply: {"embeddings": reply.vectors})


@wire_formats_api.post("/json_embed/", responses={200: ProtocolVectors})
@wire_formats_api.post("/orjson_embed/", operation_id="wireFormatsOrjsonEmbed", responses={200: ProtocolVectors})
async def json_embed(body: NamedModelBody) -> Response:
    """Embed texts: one vector of length 1 for each, in order."""
    await route_to_model(body.model_name)
    return await answer_vectors(
        body.input, Options(), lambda reply: {"model_name": reply.model, "embedding": reply.vectors}
    )


@wire_formats_api.post("/raw_embed/", responses={200: _BYTES})
async def raw_embed(body: NamedModelBody) -> Response:
    """Embed texts: their vectors as little-endian 32-bit floats, one after the other. Accept is ignored."""
    await route_to_model(body.model_name)
    reply = await call(Embed(as_list(body.input)))
    return vectors_response(reply, RAW)


@vllm_api.post("/pooling", responses={200: ProtocolAnswer})
async def pooling(body: PoolingBody) -> Response:
    """Embed texts: one vector for each, or one for each token (the multivectors of ColBERT and BGE-M3)."""
    await route_to_model(body.model)
    texts, output = await as_texts("input", body.input), "vector"
    if body.task != "embed":
        workers = (await context().pool.read()).ready.values()
        output = "multivector" if any("multivector" in about.get("outputs", ()) for about in workers) else "tokens"
    reply = await call(Embed(texts, Options(output=output, normalize=body.use_activation is not False)))
    found = reply.output_of(output)
    rows = [base64_rows(row[None])[0] for row in found] if body.encoding_format == "base64" else found
    data = [{"index": n, "object": "pooling", "data": row} for n, row in enumerate(rows)]
    about = {"id": reply.id, "object": "list", "created": int(time.time()), "model": reply.model}
    return json_response(about | {"data": data, "usage": usage(reply)}, headers=cost_headers(reply))
