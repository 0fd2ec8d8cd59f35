"""GET /v1/map: the documents of an index in two dimensions. POST /v1/map/documents: those at some of its points."""

from base64 import b64encode
from typing import Any

from flask import Response

from shoal.contract.wire import is_json
from shoal_api.answers.response import rendered
from shoal_api.blueprint import Blueprint, as_answered
from shoal_api.enqueue import call
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.map import MapDocuments, MapDocumentsBody, MapPoints, MapQuery

api = Blueprint("map", __name__, "wait for the answer", ErrorBody)


@api.get("/v1/map", responses={200: MapPoints})
async def map_points(query: MapQuery) -> Response:
    """Tell the places of an index's documents, or of a sample of them, on a plane where like ones are near."""
    reply = await call(query.job(), "ask again")
    points = {"index_version": reply.index_version, **_as_text(reply.map or {})}
    return rendered(as_answered(MapPoints, points))


@api.post("/v1/map/documents", responses={200: MapDocuments})
async def map_documents(body: MapDocumentsBody) -> Response:
    """Tell the documents at some points of a map."""
    reply = await call(body.job(), "ask again")
    found = {"index_version": reply.index_version, "documents": (reply.hits or [[]])[0]}
    return rendered(as_answered(MapDocuments, found if is_json(found) else {}))


def _as_text(value: Any, max_depth: int = 3) -> Any:
    """Return a value with the base64 of its bytes, in maps of so many levels."""
    if isinstance(value, dict) and max_depth:
        return {name: _as_text(item, max_depth - 1) for name, item in value.items()}
    return b64encode(value).decode() if isinstance(value, bytes) else value
