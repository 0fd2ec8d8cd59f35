"""vLLM: POST /pooling."""

import time
from typing import Literal

from flask import Response
from pydantic import Field

from shoal.contract.options import Options
from shoal.operations import Embed
from shoal_api.answers.response import cost_headers, json_response
from shoal_api.answers.vector_format import base64_rows
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.enqueue import as_texts, call
from shoal_api.protocols.model_routing import route_to_model
from shoal_api.protocols.openai import OpenAIError, usage
from shoal_api.schema.body import Body, Ignored, Name, TruncateTo, example
from shoal_api.schema.requests import TextsOrIds
from shoal_api.schema.responses import ProtocolAnswer


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


api = Blueprint("vllm", __name__, "vLLM", OpenAIError)


@api.post("/pooling", responses={200: ProtocolAnswer})
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
