"""POST /embed: vectors of texts."""

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal_api.enqueue import PREFER, PREFERENCE_APPLIED, call, prefers_async, submit
from shoal_api.response import cost_headers, rendered
from shoal_api.schema.requests import EmbedBody
from shoal_api.schema.responses import ERRORS, Embeddings, Submitted

api = APIBlueprint("embed", __name__, abp_tags=[Tag(name="wait for the answer")], abp_responses=ERRORS)


@api.post("/embed", responses={200: Embeddings, 202: Submitted}, openapi_extensions={"parameters": [PREFER]})
def embed(body: EmbedBody) -> Response:
    """Embed texts: one vector for each, in order."""
    job = body.job()
    if prefers_async():
        return submit(job, headers=PREFERENCE_APPLIED)
    reply = call(job, remedy="split the list, or stream it with `shoal embed` or Client.embed_stream")
    rows = reply.rows_by_text() if job.options.output == "tokens" else reply.vectors
    return rendered(rows, headers=cost_headers(reply))
