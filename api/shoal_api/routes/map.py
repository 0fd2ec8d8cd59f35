"""GET /v1/map: the documents of an index in two dimensions. POST /v1/map/documents: those at some of its points."""

from base64 import b64encode
from typing import Any

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal.errors import MalformedJob
from shoal_api.enqueue import call
from shoal_api.response import rendered
from shoal_api.schema.map import MapDocuments, MapDocumentsBody, MapPoints, MapQuery
from shoal_api.schema.responses import ERRORS

api = APIBlueprint("map", __name__, abp_tags=[Tag(name="wait for the answer")], abp_responses=ERRORS)


@api.get("/v1/map", responses={200: MapPoints})
def map_points(query: MapQuery) -> Response:
    """Tell the places of an index's documents, or of a sample of them, on a plane where like ones are near."""
    reply = call(query.job(), "ask again")
    if reply.map is None:
        raise MalformedJob("the reply of the worker has no map: are all workers of this release?")
    return rendered({"index_version": reply.index_version, **as_json(reply.map)})


@api.post("/v1/map/documents", responses={200: MapDocuments})
def map_documents(body: MapDocumentsBody) -> Response:
    """Tell the documents at some points of a map."""
    reply = call(body.job(), "ask again")
    return rendered({"index_version": reply.index_version, "documents": (reply.hits or [[]])[0]})


def as_json(value: Any) -> Any:
    """Return a value with the base64 of its bytes, in maps at any depth."""
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    return b64encode(value).decode() if isinstance(value, bytes) else value
